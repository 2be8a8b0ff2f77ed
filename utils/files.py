"""Whole-file writing, fingerprints (are these the same data?), and how a script starts and ends."""

import hashlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from modeling.errors import UserError
from modeling.loading.files import file_hash
from modeling.runtime import waiting

# What torch says where the machine gives no more; CUDA's error is a RuntimeError, too.
OUT_OF_MEMORY = re.compile(
    "(?i)out of memory|not enough memory|can't allocate memory|create a prim"
)


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
        apply_umask(temporary)
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)


def write_text(path: str | Path, text: str) -> None:
    """Replace `path` by a text in UTF-8, as `write_file`."""
    write_file(path, lambda file: file.write(text.encode("utf-8")))


def flush(path: str | Path) -> None:
    """Wait until a file, or the names in a directory, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def apply_umask(path: str | Path) -> None:
    """Give a file the permissions of any new one: mkstemp and safetensors make theirs private."""
    mask = os.umask(0)
    os.umask(mask)
    os.chmod(path, 0o666 & ~mask)


def write_json(path: str | Path, value: Any) -> None:
    """Replace `path` by JSON, two spaces, keys in the order given, as `write_file`."""
    write_text(path, json.dumps(value, indent=2) + "\n")


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


def differences(
    before: Mapping[str, Any], now: Mapping[str, Any], ignore: Collection[str] = ()
) -> dict[str, tuple[Any, Any]]:
    """Find the keys whose values are not as `before`, with both values.

    A key that one of the two lacks is no difference: another version may have written it.
    """
    return {
        key: (before[key], now[key])
        for key in now
        if key in before and key not in ignore and before[key] != now[key]
    }


def run_all_then_raise(*steps: Callable[[], Any]) -> None:
    """Take every step, for what one cannot write the next may; then raise what was wrong."""
    errors = []
    for step in steps:
        try:
            step()
        except UserError as error:
            errors.append(error)
    if errors:
        raise UserError("; ".join(map(str, errors))) from errors[0]


class Console:
    """stdout or stderr. Its terminal may be closed, the reader of its pipe may go, its file may
    fill the disk: then what is written is lost, and nothing else.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        self.attempt(self.stream.write, text)
        return len(text)

    def flush(self) -> None:
        self.attempt(self.stream.flush)

    def attempt(self, action: Callable[..., Any], *given: Any) -> None:
        try:
            action(*given)
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.stream.fileno())  # where its buffer goes, too
            os.close(nowhere)


def run_script(main: Callable[[], None]) -> None:
    """Call `main`; a UserError becomes one line on stderr and exit status 2, Ctrl-C one and 130.

    Its threads wait for each other as `waiting` says. A console may be closed, or take ASCII
    alone.
    """
    os.environ.update(waiting())
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # else the next file that is opened would be the console
            os.open(os.devnull, os.O_RDWR)
    nowhere = Path(os.devnull).open("w")  # noqa: SIM115 - to the end
    out, err = (Console(stream or nowhere) for stream in (sys.stdout, sys.stderr))
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except UserError as error:
            shown = "".join(x if x.isprintable() else "?" for x in str(error))
            print(f"error: {shown}", file=sys.stderr)
            sys.exit(2)
        except (MemoryError, RuntimeError) as error:
            if not (isinstance(error, MemoryError) or OUT_OF_MEMORY.search(str(error))):
                raise
            reason = str(error).strip().partition("\n")[0][:200]
            print(
                f"error: out of memory ({reason}); smaller batches or a shorter "
                "--max_seq_length take less",
                file=sys.stderr,
            )
            sys.exit(2)
        except KeyboardInterrupt:
            print("stopped by Ctrl-C", file=sys.stderr)
            sys.exit(130)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
