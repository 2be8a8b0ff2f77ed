"""Files that runs write: whole or not at all, and never over what is the user's.

`write_file` and its kin replace a file in one step. `RunFolder` is a folder of results: it keeps a
list of what runs wrote there, so that a later run removes and replaces these files, and no others.
"""

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
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

Write = Callable[[BinaryIO], Any]  # writes a file's content


def write_file(path: str | Path, write: Write) -> None:
    """Replace `path` by what `write` writes; the old content stays until the new one is on disk.

    Raises UserError when the directory cannot be written or the disk is full.
    """
    path = Path(path)
    with whole_file(path, write) as temporary:
        os.replace(temporary, path)


def write_text(path: str | Path, text: str) -> None:
    """Replace `path` by a text in UTF-8, as `write_file`."""
    write_file(path, lambda file: file.write(text.encode("utf-8")))


def write_json(path: str | Path, value: Any) -> None:
    """Replace `path` by JSON, two spaces, keys in the order given, as `write_file`."""
    write_text(path, as_json(value))


def as_json(value: Any) -> str:
    """Format a value as JSON, two spaces, keys in the order given."""
    return json.dumps(value, indent=2) + "\n"


@contextmanager
def whole_file(path: Path, write: Write) -> Iterator[Path]:
    """Write a temporary file beside `path`, on disk before it is handed over to be moved there.

    It is removed if it was not moved. Raises UserError when the directory cannot be written or the
    disk is full.
    """
    # The same directory, because a rename is atomic only within one file system.
    temporary = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        clear_partials(path.parent, path.name)
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


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
        process = re.fullmatch(r"\d{1,9}", path.name.removesuffix(PARTIAL).rpartition(".")[2])
        if process and not psutil.pid_exists(int(process[0])):
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
            lock.unlink(missing_ok=True)  # a process that waits for it sees that, and makes another


class RunFolder:
    """A folder of results, with the list of what runs wrote into it.

    The list, `written.json`, has the names of these files and the SHA-256 of each. A file is put on
    the list before it is moved to its name: whenever a run is killed, each of its files is on the
    list, and no other is. Only what is on the list, and unchanged since, is ever removed or written
    over; a user's file that is in the way is renamed. A link is not followed.

        results = RunFolder(output_dir)
        results.write_json("eval_results.json", summary)

    A name, a str, is relative to the folder; a Path is a whole path, of a file in the folder.
    Writing raises UserError as `write_file` does.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def write(self, name: str | Path, write: Write) -> None:
        """Replace a file by what `write` writes, and put it on the list."""
        path = name if isinstance(name, Path) else self.path / name
        with whole_file(path, write) as temporary, locked(self.path / LIST):
            self.list_before_move({path: temporary})
            os.replace(temporary, path)

    def write_text(self, name: str | Path, text: str) -> None:
        """Replace a file by a text in UTF-8, and put it on the list."""
        self.write(name, lambda file: file.write(text.encode("utf-8")))

    def write_json(self, name: str | Path, value: Any) -> None:
        """Replace a file by JSON, and put it on the list."""
        self.write_text(name, as_json(value))

    def list_before_move(self, files: Mapping[Path, Path]) -> None:
        """Put files on the list that are about to be moved into the folder.

        files: where each goes, and where it is now. What stands in the way and is on no list is
        renamed. Files that lead out of the folder are left out.
        """
        listed = self.read_list()
        inside = [x for x in files if resolve_within(self.path, os.path.abspath(x.parent))]
        for path in inside:
            name, hashes = os.path.relpath(path, self.path), [file_hash(files[path])]
            if self.has_own(name, listed):
                hashes.append(file_hash(path))  # until it is replaced
            elif os.path.lexists(path):
                put_aside(path, "has the name of a result that is written now")
            listed[name] = " ".join(hashes)
        if inside:
            write_json(self.path / LIST, listed)

    def list_growing(self, paths: Iterable[Path]) -> None:
        """Put files on the list that a library goes on writing, whatever they will hold."""
        growing = {os.path.relpath(path, self.path): GROWING for path in paths}
        with locked(self.path / LIST):
            write_json(self.path / LIST, self.read_list() | growing)

    def read_list(self) -> dict[str, Any]:
        """Read the list: hashes by name; {} where there is none that can be read."""
        with suppress(UserError):
            if (self.path / LIST).is_file():
                return read_json(self.path / LIST)
        return {}

    def has_own(self, name: str, listed: Mapping[str, Any] | None = None) -> bool:
        """Tell whether file `name` is there, is no link, and is as a run wrote it.

        listed: the list, where it has been read already.
        """
        path = self.path / name
        listed_hashes = str((self.read_list() if listed is None else listed).get(name))
        if not os.path.isfile(path) or path.is_symlink() or not resolve_within(self.path, name):
            return False
        with suppress(OSError):  # not readable
            return listed_hashes == GROWING or file_hash(path) in listed_hashes
        return False

    def remove(self, names: Iterable[str] | None = None) -> list[str]:
        """Delete what runs wrote, or those of these `names`; return what was deleted.

        Folders that are empty then go as well.
        """
        listed, removed = self.read_list(), []
        # A checkpoint without its configuration does not pass for one: that goes first.
        order = sorted(listed if names is None else names, key=lambda name: name != "config.json")
        for name in order:
            if self.has_own(name, listed):
                (self.path / name).unlink()
                removed.append(name)
                with suppress(OSError):  # not empty
                    for parent in list(Path(name).parents)[:-1]:
                        (self.path / parent).rmdir()
        if names is None and listed:
            (self.path / LIST).unlink(missing_ok=True)
            with suppress(OSError):
                self.path.rmdir()
        return removed


def put_aside(path: Path, why: str) -> None:
    """Rename a file to NAME.1 (.2, …), and say so."""
    old = next(x for n in count(1) if not os.path.lexists(x := Path(f"{path}.{n}")))
    path.rename(old)
    logger.warning("%s %s: it is now %s", path, why, old)


# Are these the same?


def fingerprint(*values: Any) -> str:
    """Return the SHA-256 of `values` in this order.

    A Path counts by its file's content, bytes as they are, everything else by its `repr`. The
    `repr` of a NumPy array leaves elements out: give its bytes.
    """
    digest = hashlib.sha256()
    for value in values:
        content = file_fingerprint(value) if isinstance(value, Path) else value
        digest.update(content if isinstance(content, bytes) else repr(content).encode())
    return digest.hexdigest()


def file_fingerprint(path: Path) -> dict[str, Any]:
    """Return the size of a file in bytes, and its SHA-256."""
    return {"size": path.stat().st_size, "sha256": file_hash(path)}


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Find the keys whose values are not as `before`, with both values.

    A key that one of the two lacks is no difference: another version may have written it.
    """
    shared = [key for key in now if key in before]
    return {key: (before[key], now[key]) for key in shared if before[key] != now[key]}
