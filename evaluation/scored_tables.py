"""Tables of texts, and beside each row the answer of a trained model.

Rows are read, answered and written in parts, so that memory does not grow with the table, and a run
that was killed goes on. Files are first read once from end to end: rows are counted, and one that
cannot be read, answered or written is found before hours of work.
"""

import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from filelock import Timeout

from elbert.classifier import Text
from elbert.onnx_file import find_onnx_file
from glue.table_writing import (
    as_table,
    check_writable,
    file_schema,
    format_records,
    header_line,
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
    check_no_pipe,
    check_not_gzipped,
    kind_of,
    read_records,
)
from modeling.errors import UserError
from modeling.files import check_file
from runs.console import counted, progress, say
from runs.files import locked
from runs.used_files import TablesRead, UsedFiles, changed_message

from .scorer import Scorer
from .table_parts import UnfinishedOutput, written_kind
from .table_settings import STREAM, TEXT_KINDS, ColumnSettings, ModelSettings, TableSettings

SURVEY_ROWS = 4096  # that are looked at together
SECONDS_BETWEEN_LINES = 60  # of a log without a terminal
ERRORS_SHOWN = 10


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
    check_not_gzipped(output)
    if kind_of(output) == ".parquet" and find_spec("pyarrow") is None:
        raise UserError(f"--output_file {output}: pip install pyarrow to write it")
    for name in tables.input_file:
        if is_among(output, Path(name)):
            raise UserError(f"--output_file {output} is among the tables to read")
    unfinished = UnfinishedOutput(output)
    for path in (output, unfinished.skipped_file):
        if path.exists() and not tables.overwrite:
            raise UserError(
                f"--output_file {output}: {path} exists: choose another name, or add --overwrite"
            )
    unfinished.check_folder()
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
        output_kind: suffix of the table that the rows must fit into; "" where none is written.
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
            self.content = TablesRead([])
            columns, rows = self.records(STDIN, on_error, f".{settings.input_format}")
            scorer.choose_columns(STDIN, columns)
            self.columns = columns
            self.stream = rows
            return
        self.paths = list(find_tables(settings.input_file))
        self.content = TablesRead(self.paths)
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
            yield from self.rows_of(path, on_error)

    def rows_of(self, path: Path, on_error: OnError) -> Iterator[Row]:
        """Yield the rows of one table that can be answered and written."""
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
        is_parquet = kind_of(path) == ".parquet"
        unit = "row" if is_parquet else "line"
        for number, record in records:
            place = f"{path}, {unit} {number}"
            try:
                text = self.scorer.text_of(place, record)
                if self.output_kind:
                    check_writable(self.output_kind, place, record, has_types=is_parquet)
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
        for path in self.paths:
            infers_types = self.output_kind == ".parquet" and kind_of(path) != ".parquet"
            for batch in batches(self.rows_of(path, on_error), SURVEY_ROWS):
                row_count += len(batch)
                for row in batch:
                    columns.update(dict.fromkeys(row.record))
                    empty_count += row.text in ("", ("", ""))
                if infers_types:
                    schemas.append(batch_schema(list(columns), batch))
            if self.output_kind == ".parquet" and not infers_types:
                schemas.append(file_schema(path))
        self.scorer.choose_columns(self.paths[0], list(columns))  # of later JSON objects, too
        files = counted(len(self.paths), "file")
        say(f"{counted(row_count, 'row')} to answer, in {files}")
        if empty_count:
            say(f"rows with an empty text, which is answered as well: {empty_count}")
        survey = Survey(list(columns), row_count)
        if self.output_kind == ".parquet":
            survey.schema = self.common_schema(schemas)
        return survey

    def common_schema(self, schemas: Sequence[Any]) -> Any:
        """Return a pyarrow Schema of all rows and the added columns.

        Raises UserError where a column has several types, and a value does not fit the common one.
        """
        schema = joint_schema(schemas)
        if any(other != schemas[0] for other in schemas):
            for batch in batches(self.rows(ignore), SURVEY_ROWS):
                check_fit(schema, batch)
        return joint_schema([schema, self.scorer.schema()])


def find_tables(names: Sequence[str]) -> Iterator[Path]:
    """Yield the tables that names stand for; a folder stands for all tables in it."""
    for name in names:
        path = Path(name)
        check_file(path)
        check_no_pipe(path, f", or give --input_file - --input_format csv < {path}")
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
        raise UserError(unfit_message(batch, error)) from error


def check_fit(schema: Any, batch: Sequence[Row]) -> None:
    """Raise UserError where a value of some rows does not fit a pyarrow Schema."""
    try:
        as_table(schema, [row.record for row in batch])
    except (ValueError, TypeError, OverflowError) as error:
        raise UserError(unfit_message(batch, error)) from error


def unfit_message(batch: Sequence[Row], error: Exception) -> str:
    """Say that some rows cannot be written together, and why."""
    return (
        f"{batch[0].place}, or one of the next {len(batch)} rows, does not fit into Parquet: "
        f"{error}; write .jsonl"
    )


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
    if sys.__stdout__ is None:
        raise UserError("--output_file -: standard output is closed: name a file")
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
    report(bar, errors, "standard output", scorer)


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
    scorer, model_files = load_scorer(model, columns)
    source = InputTables(tables, scorer, kind, errors)
    say(f"{model.model_dir}: {scorer.rule}")
    run = None if source.is_stream else signature(source, model_files, model, columns, tables)
    unfinished.open(run, tables.overwrite)
    with unfinished.listing(errors):
        survey = source.survey(errors)
        names = [*survey.columns, *scorer.added]
        done = unfinished.rows
        if done:
            say(f"rows answered before: {done}; going on behind them")
        bar = Progress(survey.rows, done)
        rows = source.rows(errors if source.is_stream else ignore)
        for batch in batches(islice(rows, done, None), tables.rows_per_part):
            check_columns(kind, names, batch)
            records = answered(scorer, batch)
            source.content.check_times()
            if kind == ".parquet":
                unfinished.add(len(batch), partial(write_records, survey.schema, records))
            else:
                content = format_records(kind, names, records)
                unfinished.add(len(batch), partial(write_bytes, content))
            bar.update(len(batch))
    check_same_rows(source, survey, unfinished)
    unfinished.finish(header_line(kind, names), survey.schema)
    report(bar, errors, str(output), scorer)
    if errors.count:
        say(f"they are listed in {unfinished.skipped_file}")


def load_scorer(model: ModelSettings, columns: ColumnSettings) -> tuple[Scorer, dict[str, str]]:
    """Load the model, and hash all files that it is loaded from: by name, before and behind.

    The model is in memory then: what becomes of its files afterwards changes no answer.
    """
    folder = Path(model.model_dir)
    files = [find_onnx_file(folder, model.onnx)] if model.onnx else []
    used = UsedFiles(folder, *files, needs_weights=not model.onnx)
    scorer = Scorer(model, columns)
    used.check()
    return scorer, {os.path.relpath(path, folder): sha256 for path, sha256 in used.hashes.items()}


def check_same_rows(source: InputTables, survey: Survey, unfinished: UnfinishedOutput) -> None:
    """Raise UserError where other rows were answered than are in the tables.

    Parts of other rows are removed.
    """
    if source.is_stream:
        return
    source.content.check_times()
    changed_file = source.content.changed_file()
    if changed_file or unfinished.rows != survey.rows:
        shutil.rmtree(unfinished.folder)
        raise UserError(changed_message(changed_file or source.paths[0]))


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
    source: InputTables,
    model_files: dict[str, str],
    model: ModelSettings,
    columns: ColumnSettings,
    tables: TableSettings,
) -> dict[str, Any]:
    """Return all that the answers are made from, by name, as JSON holds it: files by content."""
    scorer = source.scorer
    table_files = {str(path.resolve()): sha for path, sha in source.content.hashes.items()}
    return {
        **model_files,
        **table_files,
        "--input_file": list(table_files),  # in this order
        "the exit keys": scorer.config.exit_keys(),
        "--onnx": bool(model.onnx),
        "--dtype": model.dtype,
        "--torch_compile": model.torch_compile,
        "--long_texts": [model.long_texts, model.stop_score],
        "--text_column_names": list(scorer.text_columns),
        "quotes in a TSV (the training's task)": scorer.keeps_quotes,
        "--prefix": columns.prefix,
        "--all_scores": columns.all_scores,
        "--abstain_below": scorer.abstain_below,
        "--on_error": columns.on_error,
        "--rows_per_part": tables.rows_per_part,
    }


def report(bar: Progress, errors: ErrorLog, place: str, scorer: Scorer) -> None:
    """Close the progress bar, and say what was written."""
    bar.bar.close()
    say(f"{place}: {bar.line()}")
    if scorer.abstain_below is not None:
        say(
            f"{scorer.abstained} rows of this run have no label: their score is below "
            f"{scorer.abstain_below:.4f}"
        )
    if errors.count:
        say(f"rows left out: {errors.count}")
