"""The one exception whose message is written for the user."""

from typing import NoReturn


class UserError(ValueError):
    """Something the user can put right. Scripts print the message alone, and exit with status 2."""


def no_remote_code(*_: object) -> NoReturn:
    """Raise UserError, in place of transformers' register_for_auto_class."""
    raise UserError(
        "a model's code is not saved with it: whoever loads it installs this package, and runs "
        "import elbert before from_pretrained"
    )
