"""What a run wrote: a list in its folder, of names with size and SHA-256. No torch here.

Only what is on the list, and unchanged since, is ever removed or written over. Links are not
followed.
"""

import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from modeling.errors import UserError
from modeling.loading.files import read_json, resolve_within
from utils.files import write_json
from utils.fingerprint import file_fingerprint

logger = logging.getLogger(__name__)

CHECKSUMS = "checksums.json"  # the list of a checkpoint: all of its files
LIST = "written.json"  # that of a model's or a sweep's folder: results, also in folders within


def read_list(folder: Path, listed: str = LIST) -> dict[str, Any]:
    """Read a list; {} where there is none that can be read."""
    try:
        return read_json(folder / listed) if (folder / listed).is_file() else {}
    except UserError:
        return {}


def note(folder: Path, paths: Iterable[Path]) -> None:
    """Put files that a run wrote on the list of `folder`, those outside of it left out."""
    inside = [x for x in paths if x.is_file() and resolve_within(folder, os.path.abspath(x))]
    if inside:
        names = {os.path.relpath(path, folder): file_fingerprint(path) for path in inside}
        write_json(folder / LIST, read_list(folder) | names)


def is_own(folder: Path, name: str, known: dict[str, Any]) -> bool:
    """Whether file `name` is in `folder`, is no link, and is as the list `known` says."""
    path = folder / name
    if not os.path.isfile(path) or path.is_symlink() or not resolve_within(folder, name):
        return False
    try:
        return known.get(name) == file_fingerprint(path)
    except OSError:  # not readable
        return False


def put_aside(path: Path, why: str) -> None:
    """Rename a file to NAME.1 (.2, …), and say so."""
    old = next(x for n in count(1) if not os.path.lexists(x := Path(f"{path}.{n}")))
    try:
        path.rename(old)
    except OSError as error:
        raise UserError(f"cannot rename {path} to {old}: {error.strerror}") from error
    logger.warning("%s %s: it is now %s", path, why, old)


def make_room(folder: Path, paths: Iterable[Path]) -> None:
    """Put aside what stands where a run is about to write, unless it is on the list, unchanged."""
    known = read_list(folder)
    for path in paths:
        name = os.path.relpath(path, folder)
        inside = resolve_within(folder, os.path.abspath(path.parent)) and os.path.lexists(path)
        if inside and not path.is_dir() and not is_own(folder, name, known):
            put_aside(path, "has the name of a result that is written now")


def remove(folder: Path, names: Iterable[str] | None = None, listed: str = LIST) -> list[str]:
    """Delete a run's own files in `folder`, or those of these `names`; what was deleted.

    Folders that are empty then go, too. Raises UserError for what cannot be deleted.
    """
    known, gone = read_list(folder, listed), []
    # A checkpoint without its configuration does not pass for one: that goes first.
    for name in sorted(known if names is None else names, key=lambda x: x != "config.json"):
        if is_own(folder, name, known):
            try:
                (folder / name).unlink()
            except OSError as error:
                raise UserError(f"cannot remove {folder / name}: {error.strerror}") from error
            gone.append(name)
            with suppress(OSError):  # not empty
                for parent in list(Path(name).parents)[:-1]:
                    (folder / parent).rmdir()
    if names is None and known:
        (folder / listed).unlink()
        with suppress(OSError):
            folder.rmdir()
    return gone
