"""The parts of a table that is not whole yet: saved one by one, checked, and joined at the end."""

import gzip
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from glue.table_writing import join_parquet
from glue.tables import kind_of
from modeling.errors import UserError
from modeling.files import file_hash, read_json
from runs.console import say
from runs.files import PARTIAL, write_file, write_json, write_text


class Part(NamedTuple):
    """A part that is on disk: its file's name, its rows, and the SHA-256 of the file."""

    name: str
    rows: int
    sha256: str


class UnfinishedOutput:
    """The parts of an output file that is not whole yet, in a folder beside it.

    run.json in the folder says what the parts were made from, and parts.jsonl what each of them
    holds: a part counts only while it is as it was written.

    Attributes:
        folder: the parts.
        kind: suffix of the parts.
        parts: those that are there.
        skipped_file: list of rows that were left out; it will stand beside the output.
    """

    def __init__(self, output: Path) -> None:
        self.output = output
        self.kind = written_kind(output)
        self.folder = output.with_name(f".{output.name}.parts")
        self.about = self.folder / "run.json"
        self.list_file = self.folder / "parts.jsonl"
        self.parts: list[Part] = []
        self.skipped_file = output.with_name(f"{output.name}.skipped.txt")

    @property
    def rows(self) -> int:
        """Rows of all parts."""
        return sum(part.rows for part in self.parts)

    def check_folder(self) -> None:
        """Raise UserError for a folder that no run made: it will be removed at the end."""
        if not os.path.lexists(self.folder):
            return
        if self.folder.is_symlink() or not self.folder.is_dir():
            raise UserError(
                f"{self.folder}, where the parts of {self.output} are saved, is a link or a file: "
                "remove it, or choose another --output_file"
            )
        names = (self.about.name, self.list_file.name, self.skipped_file.name)
        for path in sorted(self.folder.iterdir()):
            is_part = re.fullmatch(rf"part-\d{{8,}}{re.escape(self.kind)}", path.name)
            is_partial = path.name.startswith(".") and path.name.endswith(PARTIAL)
            if path.name not in names and not is_part and not is_partial:
                raise UserError(
                    f"{path} is no part of {self.output}, and its folder will be removed: move it "
                    "away"
                )

    def open(self, signature: dict[str, Any] | None, overwrite: bool) -> None:
        """Make the folder, or go on with the one that is there.

        signature: what the answers are made from, by name; None for rows that come only once.

        Raises UserError for a folder that belongs to another run, unless it may be overwritten.
        """
        has_answers = self.about.exists() and self.path(0).exists()
        changed: list[str] = []
        if has_answers and signature is not None:
            before = self.signature_before()
            names = dict.fromkeys([*signature, *before])
            changed = [name for name in names if before.get(name) != signature.get(name)]
        if signature is None or not has_answers or (changed and overwrite):
            shutil.rmtree(self.folder, ignore_errors=True)
        elif changed:
            raise UserError(
                f"{self.folder} has the answers of an unfinished run, which differs in: "
                f"{', '.join(changed)[:500]}. Restore what that run read, and give its flags, to "
                "continue it; or --overwrite to start anew"
            )
        self.folder.mkdir(exist_ok=True)
        if signature is not None:
            write_json(self.about, signature)
        self.parts = self.saved_parts()
        lines = [part_line(part) for part in self.parts]
        write_text(self.list_file, "".join(lines))

    def signature_before(self) -> dict[str, Any]:
        """Read what the parts were made from; {} where the file is damaged."""
        with suppress(UserError):
            return read_json(self.about)
        return {}

    def saved_parts(self) -> list[Part]:
        """Read the list of parts, up to the first one that is not as it was written."""
        parts: list[Part] = []
        lines = self.list_file.read_text().splitlines() if self.list_file.exists() else []
        for number, line in enumerate(lines):
            try:
                part = Part(**json.loads(line))
            except (TypeError, ValueError):  # a run was killed while it wrote the line
                break
            if part.name != self.path(number).name or not self.is_whole(part):
                say(
                    f"{self.path(number)} is not as it was written: its rows, and those behind "
                    "them, are answered again"
                )
                break
            parts.append(part)
        return parts

    @contextmanager
    def listing(self, errors: Any) -> Iterator[None]:
        """List the rows that are left out meanwhile, in a file among the parts."""
        path = self.folder / self.skipped_file.name
        with path.open("w", encoding="utf-8") as errors.file:
            yield
        errors.file = None
        if not errors.count:
            path.unlink()

    def path(self, number: int) -> Path:
        """Return the path of a part."""
        return self.folder / f"part-{number:08d}{self.kind}"

    def is_whole(self, part: Part) -> bool:
        """Tell whether a part is as it was written."""
        path = self.folder / part.name
        return path.is_file() and file_hash(path) == part.sha256

    def add(self, rows: int, write: Callable[[BinaryIO], Any]) -> None:
        """Write the next part, and put it on the list."""
        path = self.path(len(self.parts))
        write_file(path, write)
        part = Part(path.name, rows, file_hash(path))
        with self.list_file.open("a") as file:
            file.write(part_line(part))
            file.flush()
            os.fsync(file.fileno())
        self.parts.append(part)

    def finish(self, header: bytes, schema: Any) -> None:
        """Put the parts together as the output, and remove them.

        Raises UserError for a part that is not as it was written.
        """
        for part in self.parts:
            if not self.is_whole(part):
                raise UserError(
                    f"{self.folder / part.name} was changed since it was written, so "
                    f"{self.output} was not: give the same command again, which answers its rows "
                    "once more"
                )
        paths = [self.folder / part.name for part in self.parts]

        def write(file: BinaryIO) -> None:
            if self.kind == ".parquet":
                join_parquet(file, schema, paths)
            elif self.output.suffix.lower() == ".gz":
                with gzip.open(file, "wb") as packed:
                    copy_all(packed, header, paths)
            else:
                copy_all(file, header, paths)

        write_file(self.output, write)
        skipped = self.folder / self.skipped_file.name
        if skipped.exists():
            os.replace(skipped, self.skipped_file)
        else:  # of the output that this one replaces
            self.skipped_file.unlink(missing_ok=True)
        shutil.rmtree(self.folder)


def part_line(part: Part) -> str:
    """Format a part as a line of the list."""
    return json.dumps(part._asdict()) + "\n"


def copy_all(file: Any, header: bytes, paths: list[Path]) -> None:
    """Write a header and the content of files into a file."""
    file.write(header)
    for path in paths:
        with path.open("rb") as content:
            shutil.copyfileobj(content, file)


def written_kind(output: Path) -> str:
    """Return the suffix of the kind that a file is written in: .json is JSON lines, too."""
    kind = kind_of(output)
    return ".jsonl" if kind == ".json" else kind
