"""Tables of texts, and beside each row the answer of a trained model.

Rows are read, answered and written in parts, so that memory does not grow with the table, and a run
that was killed goes on. Files are first read once from end to end: rows are counted, and one that
cannot be read, answered or written is found before hours of work.
"""

import gzip
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from filelock import Timeout
from tqdm import tqdm

from elbert.classifier import Text
from elbert_base.errors import UserError
from elbert_base.files import file_hash, has_weights, read_json, weights_hash
from glue.table_writing import (
    check_writable,
    file_schema,
    format_records,
    header_line,
    join_parquet,
    joint_schema,
    schema_of,
    write_records,
)
from glue.tables import (
    STDIN,
    SUFFIXES,
    NumberedRecords,
    OnError,
    Record,
    kind_of,
    read_records,
)
from runs.console import progress
from runs.files import locked, write_file, write_json
from runs.fingerprint import differences

from .scorer import Scorer
from .table_settings import STREAM, TEXT_KINDS, ColumnSettings, ModelSettings, TableSettings

SURVEY_ROWS = 4096  # that are looked at together
SECONDS_BETWEEN_LINES = 60  # of a log without a terminal
ERRORS_SHOWN = 10


def say(message: str) -> None:
    """Print a message to stderr, above a progress bar: answers may go to stdout."""
    with tqdm.external_write_mode(sys.stderr):
        print(message, file=sys.stderr, flush=True)


class Row(NamedTuple):
    """A row of a table that can be answered."""

    place: str  # file and line, for an error
    record: Record
    text: Text


def score_tables(model: ModelSettings, columns: ColumnSettings, tables: TableSettings) -> None:
    """Write the rows of tables with the answers of a trained model beside them.

    Raises UserError for flags, a model or a table that do not fit; nothing is written then.
    """
    if tables.output_file == STREAM:
        stream_answers(model, columns, tables)
        return
    output = check_output(tables)
    output.parent.mkdir(parents=True, exist_ok=True)
    try:
        with locked(output, timeout=0):
            write_answers(output, model, columns, tables)
    except Timeout as error:
        raise UserError(f"--output_file {output}: another process is writing it") from error


def check_output(tables: TableSettings) -> Path:
    """Return the file to write.

    Raises UserError for a file that exists, or is one of the tables read, and for an unknown kind.
    """
    output = Path(tables.output_file)
    if kind_of(output) not in SUFFIXES or output.is_dir():
        raise UserError(
            f"--output_file {output}: the name must end in one of: {' '.join(SUFFIXES)}"
        )
    if kind_of(output) == ".parquet" and find_spec("pyarrow") is None:
        raise UserError(f"--output_file {output}: pip install pyarrow to write it")
    for name in tables.input_file:
        if is_among(output, Path(name)):
            raise UserError(f"--output_file {output} is among the tables to read")
    if output.exists() and not tables.overwrite:
        raise UserError(f"--output_file {output} exists: choose another name, or add --overwrite")
    return output


def is_among(output: Path, source: Path) -> bool:
    """Tell whether a file is `source`, or lies in this folder."""
    place = output.parent if source.is_dir() else output
    with suppress(OSError):  # there may be no such file yet
        return place.samefile(source)
    return False


# Reading.


@dataclass
class Survey:
    """What is known of the rows before they are answered.

    Attributes:
        columns: of all rows, in the order of their first appearance.
        rows: how many can be answered; None where they come through a pipe.
        schema: their columns and the added ones as a pyarrow Schema; None where no Parquet is
            written.
    """

    columns: list[str]
    rows: int | None = None
    schema: Any = None


class InputTables:
    """The tables of --input_file, read as one.

    Args:
        settings: names and kinds.
        scorer: says which columns are read.
        output_kind: suffix of the table that the rows must fit into.
        on_error: gets the errors of rows that cannot be read, answered or written.

    Raises:
        UserError: a file is missing, or of no known kind.
    """

    def __init__(
        self, settings: TableSettings, scorer: Scorer, output_kind: str, on_error: OnError
    ) -> None:
        self.scorer = scorer
        self.output_kind = output_kind
        self.is_stream = settings.input_file == [STREAM]
        if self.is_stream:
            self.paths = [STDIN]
            self.kind = f".{settings.input_format}"
            columns, rows = self.records(STDIN, on_error, self.kind)
            scorer.choose_columns(STDIN, columns)
            self.columns = columns
            self.stream = rows
            return
        self.paths = list(find_tables(settings.input_file))
        self.kind = kind_of(self.paths[0])
        self.columns, _ = self.records(self.paths[0], on_error)
        scorer.choose_columns(self.paths[0], self.columns)

    def records(
        self, path: Path, on_error: OnError, kind: str = ""
    ) -> tuple[list[str], NumberedRecords]:
        """Read the columns and rows of a table as the model's training read its own."""
        return read_records(path, kind, on_error, self.scorer.keeps_quotes)

    def rows(self, on_error: OnError) -> Iterator[Row]:
        """Yield all rows that can be answered and written."""
        if self.is_stream:
            yield from self.checked_rows(STDIN, self.stream, on_error)
            return
        for path in self.paths:
            columns, records = self.records(path, on_error)
            is_json = kind_of(path) in (".json", ".jsonl")
            if not is_json and sorted(columns) != sorted(self.columns):
                raise UserError(
                    f"{path} has the columns {', '.join(columns)[:200]}; {self.paths[0]} has "
                    f"{', '.join(self.columns)[:200]}: classify them one by one"
                )
            yield from self.checked_rows(path, records, on_error)

    def checked_rows(
        self, path: Path, records: NumberedRecords, on_error: OnError
    ) -> Iterator[Row]:
        """Yield those rows of one table that can be answered and written."""
        unit = "row" if kind_of(path) == ".parquet" else "line"
        for number, record in records:
            place = f"{path}, {unit} {number}"
            try:
                text = self.scorer.text_of(place, record)
                check_writable(self.output_kind, place, record)
            except UserError as error:
                on_error(error)
                continue
            yield Row(place, record, text)

    def survey(self, on_error: OnError) -> Survey:
        """Read everything once: count rows, find their columns and types, and check them.

        Of rows that come through a pipe only the first columns are known.
        """
        if self.is_stream:
            return Survey(self.columns)
        columns = dict.fromkeys(self.columns)
        row_count = empty_count = 0
        schemas = []
        for batch in batches(self.rows(on_error), SURVEY_ROWS):
            row_count += len(batch)
            for row in batch:
                columns.update(dict.fromkeys(row.record))
                empty_count += row.text in ("", ("", ""))
            if self.output_kind == ".parquet" and self.kind != ".parquet":
                schemas.append(batch_schema(list(columns), batch))
        self.scorer.choose_columns(self.paths[0], list(columns))  # of later JSON objects, too
        say(f"{row_count} rows to answer, in {len(self.paths)} file(s)")
        if empty_count:
            say(f"{empty_count} rows have an empty text, which is answered as well")
        survey = Survey(list(columns), row_count)
        if self.output_kind == ".parquet":
            if self.kind == ".parquet":
                schemas = [file_schema(path) for path in self.paths]
            survey.schema = joint_schema([*schemas, self.scorer.schema()])
        return survey

    def signature(self) -> list[Any]:
        """Return what changes when a file does: its path, size, and time of the last change."""
        entries = []
        for path in self.paths:
            status = path.stat()
            entries.append([str(path.resolve()), status.st_size, status.st_mtime_ns])
        return entries


def find_tables(names: Sequence[str]) -> Iterator[Path]:
    """Yield the tables that names stand for; a folder stands for all tables in it."""
    for name in names:
        path = Path(name)
        if path.is_dir():
            found = sorted(file for file in path.iterdir() if kind_of(file) in SUFFIXES)
            if not found:
                raise UserError(f"--input_file {path}: no table in this folder")
            yield from found
        elif not path.is_file():
            raise UserError(f"--input_file {path}: no such file")
        elif kind_of(path) not in SUFFIXES:
            endings = " ".join(SUFFIXES)
            raise UserError(f"{path}: the name must end in one of: {endings} (or these with .gz)")
        else:
            yield path


def batch_schema(columns: Sequence[str], batch: Sequence[Row]) -> Any:
    """Infer the types of rows; raises UserError, with the first one's place."""
    try:
        return schema_of(columns, [row.record for row in batch])
    except (ValueError, TypeError) as error:
        raise UserError(
            f"{batch[0].place}, or one of the next {len(batch)} rows, does not fit into Parquet: "
            f"{error}; write .jsonl"
        ) from error


def batches(rows: Iterator[Row], size: int) -> Iterator[list[Row]]:
    """Yield rows in lists of a size; the last may be shorter."""
    while batch := list(islice(rows, size)):
        yield batch


class ErrorLog:
    """What becomes of rows that cannot be read: the first is raised, or all are listed.

    Attributes:
        count: rows that were left out.
        file: where each of them is listed; None for nowhere.
    """

    def __init__(self, on_error: str) -> None:
        self.on_error = on_error
        self.count = 0
        self.file: Any = None

    def __call__(self, error: UserError) -> None:
        """Take the error of a row."""
        if self.on_error == "stop":
            raise UserError(f"{error} (--on_error skip leaves such rows out)") from error
        self.count += 1
        if self.file:
            self.file.write(f"{error}\n")
        if self.count <= ERRORS_SHOWN:
            say(f"left out: {error}")
        elif self.count == ERRORS_SHOWN + 1:
            say("left out: more rows, which are not shown here")


def ignore(error: UserError) -> None:
    """Leave a row out that has been counted before."""


# Writing.


class UnfinishedOutput:
    """The parts of an output file that is not whole yet, in a folder beside it.

    Attributes:
        folder: the parts; run.json beside them says what they belong to.
        kind: suffix of the parts.
        parts: those that are there.
        skipped_file: list of rows that were left out; it will stand beside the output.
    """

    def __init__(self, output: Path) -> None:
        self.output = output
        self.kind = written_kind(output)
        self.folder = output.with_name(f".{output.name}.parts")
        self.parts: list[Path] = []
        self.skipped_file = output.with_name(f"{output.name}.skipped.txt")

    def open(self, signature: dict[str, Any] | None, overwrite: bool) -> None:
        """Make the folder, or go on with the one that is there.

        signature: what the answers depend on, by name; None for rows that come only once.

        Raises UserError for a folder that belongs to another run, unless it may be overwritten.
        """
        about = self.folder / "run.json"
        has_answers = about.exists() and self.part(0).exists()
        changed: Iterable[str] = ()
        if has_answers and signature is not None:
            changed = differences(read_json(about), signature)
        if signature is None or not has_answers or (changed and overwrite):
            shutil.rmtree(self.folder, ignore_errors=True)
        elif changed:
            raise UserError(
                f"{self.folder} has the answers of an unfinished run, which differs in: "
                f"{', '.join(changed)}. Give the flags of that run to continue it, or --overwrite "
                "to start anew"
            )
        self.folder.mkdir(exist_ok=True)
        if signature is not None:
            write_json(about, signature)
        while self.part(len(self.parts)).exists():
            self.parts.append(self.part(len(self.parts)))

    @contextmanager
    def listing(self, errors: ErrorLog) -> Iterator[None]:
        """List the rows that are left out meanwhile, in a file among the parts."""
        path = self.folder / self.skipped_file.name
        with path.open("w", encoding="utf-8") as errors.file:
            yield
        errors.file = None
        if not errors.count:
            path.unlink()

    def part(self, number: int) -> Path:
        """Return the path of a part."""
        return self.folder / f"part-{number:08d}{self.kind}"

    def add(self, write: Callable[[BinaryIO], Any]) -> None:
        """Write the next part."""
        path = self.part(len(self.parts))
        write_file(path, write)
        self.parts.append(path)

    def finish(self, header: bytes, schema: Any) -> None:
        """Put the parts together as the output, and remove them."""

        def write(file: BinaryIO) -> None:
            if self.kind == ".parquet":
                join_parquet(file, schema, self.parts)
            elif self.output.suffix.lower() == ".gz":
                with gzip.open(file, "wb") as packed:
                    self.copy_parts(packed, header)
            else:
                self.copy_parts(file, header)

        write_file(self.output, write)
        skipped = self.folder / self.skipped_file.name
        if skipped.exists():
            os.replace(skipped, self.skipped_file)
        shutil.rmtree(self.folder)

    def copy_parts(self, file: Any, header: bytes) -> None:
        """Write the header and all parts into a file."""
        file.write(header)
        for part in self.parts:
            with part.open("rb") as content:
                shutil.copyfileobj(content, file)


def written_kind(output: Path) -> str:
    """Return the suffix of the kind that a file is written in: .json is JSON lines, too."""
    kind = kind_of(output)
    return ".jsonl" if kind == ".json" else kind


class Progress:
    """A progress bar in a terminal; elsewhere a line each minute.

    Args:
        total: rows in all; None where it is not known.
        done: rows of an earlier run.
    """

    def __init__(self, total: int | None, done: int = 0) -> None:
        self.total = total
        self.done = done
        self.done_before = done
        self.start = self.last_line = time.monotonic()
        self.bar = progress(total=total, initial=done, desc="Rows", unit=" rows")

    def update(self, rows: int) -> None:
        """Count rows that were answered."""
        self.bar.update(rows)
        self.done += rows
        now = time.monotonic()
        if self.bar.disable and now - self.last_line > SECONDS_BETWEEN_LINES:
            self.last_line = now
            say(self.line())

    def line(self) -> str:
        """Say how many rows are done, how fast, and how long the others will take."""
        rate = (self.done - self.done_before) / max(time.monotonic() - self.start, 1e-9)
        text = f"{self.done} rows, {rate:.0f} rows/s"
        if self.total is None or self.total == self.done:
            return text
        seconds = round((self.total - self.done) / max(rate, 1e-9))
        return f"{text}, {self.total - self.done} left, for {seconds // 60}:{seconds % 60:02d} min"


def stream_answers(model: ModelSettings, columns: ColumnSettings, tables: TableSettings) -> None:
    """Write answers to standard output as they come."""
    kind = tables.output_format or tables.input_format
    if kind is None:
        first_kind = written_kind(Path(tables.input_file[0])).removeprefix(".")
        kind = first_kind if first_kind in TEXT_KINDS else None
    if kind is None:
        raise UserError("--output_file -: give --output_format csv, tsv or jsonl")
    check_stream(tables)
    errors = ErrorLog(columns.on_error)
    scorer = Scorer(model, columns)
    source = InputTables(tables, scorer, f".{kind}", errors)
    names = [*source.columns, *scorer.added]
    sys.stdout.buffer.write(header_line(f".{kind}", names))
    bar = Progress(None)
    for batch in batches(source.rows(errors), tables.rows_per_part):
        check_columns(f".{kind}", names, batch)
        sys.stdout.buffer.write(format_records(f".{kind}", names, answered(scorer, batch)))
        sys.stdout.buffer.flush()
        bar.update(len(batch))
    report(bar, errors, "standard output")


def write_answers(
    output: Path, model: ModelSettings, columns: ColumnSettings, tables: TableSettings
) -> None:
    """Write answers into a file, part by part; go on where an earlier run stopped."""
    check_stream(tables)
    unfinished = UnfinishedOutput(output)
    kind = unfinished.kind
    if kind == ".parquet" and tables.input_file == [STREAM]:
        raise UserError("--input_file - with a .parquet output: write .csv or .jsonl")
    errors = ErrorLog(columns.on_error)
    scorer = Scorer(model, columns)
    source = InputTables(tables, scorer, kind, errors)
    say(f"{model.model_dir}: {scorer.rule}")
    run = None if source.is_stream else signature(source, model, columns, tables)
    unfinished.open(run, tables.overwrite)
    with unfinished.listing(errors):
        survey = source.survey(errors)
        names = [*survey.columns, *scorer.added]
        done = len(unfinished.parts) * tables.rows_per_part
        if survey.rows is not None:
            done = min(done, survey.rows)
        if done:
            say(f"{done} rows were answered before: going on behind them")
        bar = Progress(survey.rows, done)
        rows = source.rows(errors if source.is_stream else ignore)
        for batch in batches(islice(rows, done, None), tables.rows_per_part):
            check_columns(kind, names, batch)
            records = answered(scorer, batch)
            if kind == ".parquet":
                unfinished.add(partial(write_records, survey.schema, records))
            else:
                unfinished.add(partial(write_bytes, format_records(kind, names, records)))
            bar.update(len(batch))
    unfinished.finish(header_line(kind, names), survey.schema)
    report(bar, errors, str(output))
    if errors.count:
        say(f"they are listed in {unfinished.skipped_file}")


def write_bytes(content: bytes, file: BinaryIO) -> None:
    """Write a file's content."""
    file.write(content)


def check_stream(tables: TableSettings) -> None:
    """Raise UserError for standard input of no stated kind, or beside files."""
    if STREAM not in tables.input_file:
        return
    if len(tables.input_file) > 1:
        raise UserError("--input_file: - is standard input, and goes without files")
    if tables.input_format is None:
        raise UserError("--input_file -: give --input_format csv, tsv or jsonl")


def check_columns(kind: str, names: Sequence[str], batch: Sequence[Row]) -> None:
    """Raise UserError for a row with a column that the header does not have."""
    if kind == ".jsonl":
        return
    known = set(names)
    for row in batch:
        unknown = [name for name in row.record if name not in known]
        if unknown:
            raise UserError(
                f"{row.place}: a column {unknown[0]!r} that the first row does not have: write "
                "JSON lines"
            )


def answered(scorer: Scorer, batch: Sequence[Row]) -> list[Record]:
    """Return the records of rows with their answers."""
    return scorer.add_answers([row.record for row in batch], [row.text for row in batch])


def signature(
    source: InputTables, model: ModelSettings, columns: ColumnSettings, tables: TableSettings
) -> dict[str, Any]:
    """Return all that the answers depend on, by name, as JSON holds it."""
    folder = Path(model.model_dir)
    tokenizer = folder / "tokenizer.json"
    scorer = source.scorer
    return {
        "--input_file": source.signature(),
        "the weights": weights_hash(folder) if has_weights(folder) else "",
        "the tokenizer": file_hash(tokenizer) if tokenizer.exists() else "",
        "--onnx": file_hash(scorer.classifier.model.path) if model.onnx else "",
        "the exit keys": scorer.config.exit_keys(),
        "--dtype": model.dtype,
        "--long_texts": [model.long_texts, model.stop_score],
        "--text_column_names": list(scorer.text_columns),
        "--prefix": columns.prefix,
        "--all_scores": columns.all_scores,
        "--on_error": columns.on_error,
        "--rows_per_part": tables.rows_per_part,
    }


def report(bar: Progress, errors: ErrorLog, place: str) -> None:
    """Close the progress bar, and say what was written."""
    bar.bar.close()
    say(f"{place}: {bar.line()}")
    if errors.count:
        say(f"{errors.count} rows were left out")
