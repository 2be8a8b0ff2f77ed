"""The one exception whose message is written for the user, and others' messages in one line."""


class UserError(ValueError):
    """An error that the user can correct, such as a missing file or a value out of range.

    It is a `ValueError`. The message names the file, the key or the line, the value, and what is
    allowed. Scripts print it without a traceback, and exit with status 2.
    """


def in_one_line(error: BaseException) -> str:
    """Return the beginning of an error's message, in one line, or its kind where it has none."""
    return " ".join(str(error).split())[:500] or type(error).__name__
