"""The one exception whose message is written for the user."""


class UserError(ValueError):
    """Something the user can put right. Scripts print the message alone, and exit with status 2."""
