"""The one exception whose message is written for the user."""


class UserError(ValueError):
    """An error that the user can correct, such as a missing file or a value out of range.

    It is a `ValueError`. The message names the file, the key or the line, the value, and what is
    allowed. Scripts print it without a traceback, and exit with status 2.
    """
