"""A folder of results, which knows what runs wrote into it. Loads no torch."""

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from modeling.errors import UserError
from modeling.files import file_hash, read_json, resolve_within
from runs.files import Write, as_json, locked, put_aside, temporary_file, write_json
from runs.settings import EMISSIONS_FILE

LIST_FILE = "written.json"
GROWING = "any content"  # on the list, in place of a hash


class RunFolder:
    """A folder of results, with the list of what runs wrote into it.

    The list, `written.json`, has the names of these files and the SHA-256 of each. A file is put on
    the list before it is moved to its name: whenever a run is killed, each of its files is on the
    list, and no other is. Only what is on the list, and unchanged since, is ever removed or written
    over; a user's file that is in the way is renamed. A link is not followed.

        results = RunFolder(output_dir)
        results.write_json("eval_results.json", summary)

    Where a file is to be written, a str is its name in the folder, and a Path its whole path, which
    does not begin at the folder: Path("out/a.txt") is file a.txt of RunFolder("out"). Writing
    raises UserError as `write_file` does.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    # Writing.

    def write(self, name: str | Path, write: Write) -> None:
        """Replace a file by what `write` writes, and put it on the list."""
        path = name if isinstance(name, Path) else self.path / name
        with temporary_file(path, write) as temporary, locked(self.path / LIST_FILE):
            self.list_before_move({path: temporary})
            os.replace(temporary, path)

    def write_text(self, name: str | Path, text: str) -> None:
        """Replace a file by a text in UTF-8, and put it on the list."""
        self.write(name, lambda file: file.write(text.encode("utf-8")))

    def write_json(self, name: str | Path, value: Any) -> None:
        """Replace a file by a value as JSON, and put it on the list."""
        self.write_text(name, as_json(value))

    def list_before_move(self, files: Mapping[Path, Path]) -> None:
        """Put files on the list that are about to be moved into the folder.

        A file that is in the way and on no list is renamed. Files that a link leads out of the
        folder are not listed, and so never removed.

        files: where each is now, by the path that it will have.
        """
        listed = self.read_list()
        has_changed = False
        for path, current_path in files.items():
            if not resolve_within(self.path, os.path.abspath(path.parent)):
                continue
            name = os.path.relpath(path, self.path)
            hashes = [file_hash(current_path)]
            if self.has_own(name, listed):
                hashes.append(file_hash(path))  # what is there until it is replaced
            elif path.is_file() and not path.is_symlink() and file_hash(path) in hashes:
                continue  # the user's own, with this very content
            elif os.path.lexists(path):
                put_aside(path, "has the name of a result that is written now")
            listed[name] = " ".join(hashes)
            has_changed = True
        if has_changed:
            write_json(self.path / LIST_FILE, listed)

    def list_growing(self, paths: Iterable[Path]) -> None:
        """Put files on the list that a library goes on writing, whatever they will hold.

        They are TensorBoard's and codecarbon's; see `may_grow`.
        """
        growing = {os.path.relpath(path, self.path): GROWING for path in paths}
        with locked(self.path / LIST_FILE):
            write_json(self.path / LIST_FILE, {**self.read_list(), **growing})

    # Reading and removing what is listed.

    def read_list(self) -> dict[str, Any]:
        """Read the list: hashes by name; {} where there is none that can be read."""
        with suppress(UserError):
            if (self.path / LIST_FILE).is_file():
                return read_json(self.path / LIST_FILE)
        return {}

    def has_own(self, name: str, listed: Mapping[str, Any] | None = None) -> bool:
        """Tell whether file `name` is there, is no link, and is as a run wrote it.

        listed: the list, where it has been read already.
        """
        if listed is None:
            listed = self.read_list()
        path = self.path / name
        # The list may be a foreign one, with names that lead out of the folder.
        is_file_here = os.path.isfile(path) and not path.is_symlink()
        if not is_file_here or not resolve_within(self.path, name):
            return False
        hashes = listed.get(name)
        if hashes == GROWING:
            return may_grow(name)
        return isinstance(hashes, str) and file_hash(path) in hashes.split()

    def remove(self, names: Iterable[str] | None = None) -> list[str]:
        """Delete what runs wrote, and the folders that are empty then; return the names deleted.

        names: the files to delete if they are runs' own. By default all, and the list as well.
        """
        listed = self.read_list()
        removed = []
        # A folder without config.json holds no model: it goes first, so that a run that is killed
        # here leaves no half of one.
        candidates = listed if names is None else names
        for name in sorted(candidates, key=lambda name: name != "config.json"):
            if self.has_own(name, listed):
                (self.path / name).unlink()
                removed.append(name)
                self.remove_empty_parents(name)
        if names is None and listed:
            (self.path / LIST_FILE).unlink(missing_ok=True)
            with suppress(OSError):  # not empty
                self.path.rmdir()
        return removed

    def remove_empty_parents(self, name: str) -> None:
        """Remove the folders between this one and file `name` that are empty."""
        *parents, _ = Path(name).parents  # the last is this folder
        with suppress(OSError):  # not empty
            for parent in parents:
                (self.path / parent).rmdir()


def may_grow(name: str) -> bool:
    """Tell whether a name in a folder is that of a file which a library goes on writing.

    TensorBoard has its files in `runs`, codecarbon has emissions.csv.
    The list of a foreign folder must not give up the user's own files.
    """
    parts = Path(os.path.normpath(name)).parts
    is_tensorboards = parts[-1].startswith("events") or parts[-1] == "hparams.yml"
    return (parts[0] == "runs" and is_tensorboards) or parts == (EMISSIONS_FILE,)
