"""The one exception whose message is written for the user."""


class UserError(ValueError):
    """An error that the user can correct.

    Scripts print its message alone, without a traceback, and exit with status 2.
    """
