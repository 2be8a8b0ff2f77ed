"""The one exception whose message is written for the user."""


class UserError(ValueError):
    """Something the user can put right: a value, a file, a flag.

    The message names the thing, what was found, what is allowed and, where it helps, the next
    command to run. Scripts print it without a traceback and exit with status 2.
    """
