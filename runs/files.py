"""Whole-file writing; what a run wrote; fingerprints (are these the same data?).

A list in a folder, `written.json`, has the names of the files that runs wrote into it, with the
SHA-256 of each. A file is put on the list before it is moved to its name: so at whatever moment a
run is killed, each of its files is on the list, and no other is. Only what is on it, and unchanged
since, is ever removed or written over; a link is not followed.
"""

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

import psutil
from filelock import FileLock

from elbert_base.errors import UserError
from elbert_base.files import file_hash, read_json, resolve_within

logger = logging.getLogger(__name__)

LIST = "written.json"
GROWING = "any content"  # in place of a hash
PARTIAL = ".partial"  # ends the name of what is not whole yet


def write_file(
    path: str | Path, write: Callable[[BinaryIO], Any], listed_in: Path | None = None
) -> None:
    """Replace `path` by what `write` writes; the old content stays until the new one is on disk.

    listed_in: of a run's result, the folder that has the list. What stands at `path` and is on no
    list is renamed. Raises UserError when the directory cannot be written or the disk is full.
    """
    path = Path(path)
    # The same directory, because a rename is atomic only within one file system.
    temporary = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        clear_partials(path.parent, path.name)
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        with locked(listed_in / LIST) if listed_in else nullcontext():
            if listed_in:
                list_first(listed_in, {path: temporary})
            os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_text(path: str | Path, text: str, listed_in: Path | None = None) -> None:
    """Replace `path` by a text in UTF-8, as `write_file`."""
    write_file(path, lambda file: file.write(text.encode("utf-8")), listed_in)


def write_json(path: str | Path, value: Any, listed_in: Path | None = None) -> None:
    """Replace `path` by JSON, two spaces, keys in the order given, as `write_file`."""
    write_text(path, json.dumps(value, indent=2) + "\n", listed_in)


def flush(path: str | Path) -> None:
    """Wait until a file, or the names in a directory, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def clear_partials(folder: Path, name: str = "*") -> None:
    """Remove what processes that were killed had begun to write in `folder`."""
    for path in folder.glob(f".{name}.*{PARTIAL}"):
        owner = re.fullmatch(r"\d{1,9}", path.name.removesuffix(PARTIAL).rpartition(".")[2])
        if owner and not psutil.pid_exists(int(owner[0])):
            with suppress(OSError):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


@contextmanager
def locked(path: Path, timeout: float = -1) -> Iterator[None]:
    """Let one process at a time change `path`; filelock's Timeout after so many seconds, if any."""
    lock = path.with_name(f".{path.name}.lock")
    with FileLock(lock, timeout):
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)  # who waits for it sees that, and makes another


# What a run wrote.


def read_list(folder: Path) -> dict[str, Any]:
    """Read a folder's list, of hashes by name; {} where there is none that can be read."""
    with suppress(UserError):
        return read_json(folder / LIST) if (folder / LIST).is_file() else {}
    return {}


def is_own(folder: Path, name: str, known: Mapping[str, Any]) -> bool:
    """Whether file `name` is in `folder`, is no link, and is as the list `known` says."""
    path, listed = folder / name, str(known.get(name))
    if not os.path.isfile(path) or path.is_symlink() or not resolve_within(folder, name):
        return False
    with suppress(OSError):  # not readable
        return listed == GROWING or file_hash(path) in listed
    return False


def list_first(folder: Path, files: Mapping[Path, Path]) -> None:
    """Put files on the list of `folder`, by where they go, from where they are; rename what stands
    in their way and is not on it. Those that lead out of `folder` are left out."""
    known = read_list(folder)
    inside = [x for x in files if resolve_within(folder, os.path.abspath(x.parent))]
    for path in inside:
        name, hashes = os.path.relpath(path, folder), [file_hash(files[path])]
        if is_own(folder, name, known):
            hashes.append(file_hash(path))  # until it is replaced
        elif os.path.lexists(path):
            put_aside(path, "has the name of a result that is written now")
        known[name] = " ".join(hashes)
    if inside:
        write_json(folder / LIST, known)


def list_growing(folder: Path, paths: Iterable[Path]) -> None:
    """Put files that a library goes on writing on the list of `folder`, whatever they will hold."""
    found = {os.path.relpath(path, folder): GROWING for path in paths}
    with locked(folder / LIST):
        write_json(folder / LIST, read_list(folder) | found)


def put_aside(path: Path, why: str) -> None:
    """Rename a file to NAME.1 (.2, …), and say so."""
    old = next(x for n in count(1) if not os.path.lexists(x := Path(f"{path}.{n}")))
    path.rename(old)
    logger.warning("%s %s: it is now %s", path, why, old)


def remove(folder: Path, names: Iterable[str] | None = None) -> list[str]:
    """Delete what runs wrote into `folder`, or those of these `names`, and folders that are empty
    then; return what was deleted."""
    known, gone = read_list(folder), []
    # A checkpoint without its configuration does not pass for one: that goes first.
    for name in sorted(known if names is None else names, key=lambda x: x != "config.json"):
        if is_own(folder, name, known):
            (folder / name).unlink()
            gone.append(name)
            with suppress(OSError):  # not empty
                for parent in list(Path(name).parents)[:-1]:
                    (folder / parent).rmdir()
    if names is None and known:
        (folder / LIST).unlink(missing_ok=True)
        with suppress(OSError):
            folder.rmdir()
    return gone


# Are these the same?


def fingerprint(*values: Any) -> str:
    """SHA-256 of `values` in this order: of a Path by its file's content, of others by `repr`.

    A NumPy array's `repr` leaves elements out: give its bytes.
    """
    digest = hashlib.sha256()
    for value in values:
        known = file_fingerprint(value) if isinstance(value, Path) else value
        digest.update(known if isinstance(known, bytes) else repr(known).encode())
    return digest.hexdigest()


def file_fingerprint(path: Path) -> dict[str, Any]:
    """Size in bytes and SHA-256 of a file."""
    return {"size": path.stat().st_size, "sha256": file_hash(path)}


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Find the keys whose values are not as `before`, with both values.

    A key that one of the two lacks is no difference: another version may have written it.
    """
    both = [key for key in now if key in before]
    return {key: (before[key], now[key]) for key in both if before[key] != now[key]}
