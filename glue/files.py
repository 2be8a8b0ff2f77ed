"""Whole-file writing, and how a script ends on a user's error."""

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from modeling.errors import UserError


def write_file(path: str | Path, write: Callable[[BinaryIO], Any]) -> None:
    """Replace `path` by what `write` writes; the old content stays until the new one is on disk.

    Raises UserError when the directory cannot be written or the disk is full.
    """
    path = Path(path)
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The same directory, because a rename is atomic only within one file system.
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        make_public(temporary)
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
    finally:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)


def write_text(path: str | Path, text: str) -> None:
    """`write_file` for a text, in UTF-8."""
    write_file(path, lambda file: file.write(text.encode("utf-8")))


def make_public(path: str | Path) -> None:
    """Give a file the permissions of any new one: mkstemp and safetensors make theirs private."""
    mask = os.umask(0)
    os.umask(mask)
    os.chmod(path, 0o666 & ~mask)


def write_json(path: str | Path, value: Any) -> None:
    """`write_text` for JSON: two spaces, keys in the order given."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def run_script(main: Callable[[], None]) -> None:
    """Call `main`; a UserError becomes one line on stderr and exit status 2."""
    try:
        main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
