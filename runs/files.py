"""Writing a file whole or not at all, and changing it in one process at a time.

A file is written beside its place first and then moved there: whoever reads it sees the old content
or the new, also where the process is killed in between. Results of a run, which a later run may
remove, are written by `RunFolder` in runs/folder.py. Loads no torch.
"""

import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

import psutil
from filelock import FileLock

from modeling.errors import UserError

logger = logging.getLogger(__name__)

PARTIAL = ".partial"  # ends the name of a file or folder that is not whole yet

Write = Callable[[BinaryIO], Any]  # writes a file's content


def write_file(path: str | Path, write: Write) -> None:
    """Replace `path` by what `write` writes; the old content stays until the new one is on disk.

    Raises UserError when the directory cannot be written or the disk is full.
    """
    path = Path(path)
    with temporary_file(path, write) as temporary:
        os.replace(temporary, path)


def check_place(path: Path) -> None:
    """Raise UserError where a file cannot be made at `path`, before the work that it is for."""
    folder = path.absolute().parent
    while not os.path.lexists(folder):
        folder = folder.parent
    if not folder.is_dir():
        raise UserError(f"cannot write {path}: {folder} is no folder")
    if not os.access(folder, os.W_OK):
        raise UserError(f"cannot write {path}: {folder} is read-only")


def write_text(path: str | Path, text: str) -> None:
    """Replace `path` by a text in UTF-8, as `write_file` does."""
    write_file(path, lambda file: file.write(text.encode("utf-8")))


def write_json(path: str | Path, value: Any) -> None:
    """Replace `path` by a value as JSON, as `write_file` does."""
    write_text(path, as_json(value))


def as_json(value: Any) -> str:
    """Format a value as JSON, indented by two spaces, keys in the order given."""
    return json.dumps(value, indent=2) + "\n"


@contextmanager
def temporary_file(path: Path, write: Write) -> Iterator[Path]:
    """Write a temporary file beside `path`, and yield it when it is on disk, to be moved to `path`.

    Afterwards it is removed if it was not moved. Raises UserError, also for the body's OSErrors,
    when the directory cannot be written or the disk is full.
    """
    # The same directory, because a rename is atomic only within one file system.
    temporary = path.with_name(partial_name(path.name))
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


def partial_name(name: str) -> str:
    """Return the name under which this process writes what will be called `name`."""
    return f".{name}.{os.getpid()}{PARTIAL}"


def clear_partials(folder: Path, name: str = "*") -> None:
    """Remove what processes that were killed had begun to write in `folder`.

    name: of the files or folders that were to be; by default, all.
    """
    for path in folder.glob(f".{name}.*{PARTIAL}"):
        process = path.name.removesuffix(PARTIAL).rpartition(".")[2]
        # A user's file may have such a name with something else in place of a process's number.
        is_of_process = re.fullmatch(r"\d{1,9}", process)
        if is_of_process and not psutil.pid_exists(int(process)):
            with suppress(OSError):  # another process removes it at the same time
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()


def flush(path: str | Path) -> None:
    """Wait until a file, or the names in a directory, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def put_aside(path: Path, why: str) -> None:
    """Rename a file to NAME.1 (.2, …), and warn that it was; why: "PATH <why>: it is now …"."""
    free_path = numbered(path)
    path.rename(free_path)
    logger.warning("%s %s: it is now %s", path, why, free_path)


def numbered(path: Path) -> Path:
    """Return the first of NAME.1, NAME.2, … that is free."""
    paths = (Path(f"{path}.{number}") for number in count(1))
    return next(free_path for free_path in paths if not os.path.lexists(free_path))


@contextmanager
def locked(path: Path, timeout: float = -1) -> Iterator[None]:
    """Let one process at a time change `path`, a file or folder.

    timeout: seconds to wait for another process before filelock's Timeout is raised; -1: for ever.
    """
    lock = lock_file(path)
    with FileLock(lock, timeout):
        try:
            yield
        finally:
            # A process that waits for the lock notices that its file is gone, and makes another.
            lock.unlink(missing_ok=True)


def lock_file(path: Path) -> Path:
    """Return the file that exists while `path` is locked."""
    return path.with_name(f".{path.name}.lock")
