"""Strict reading of text tables: whatever is wrong is a UserError with the file and the line."""

import csv
import gzip
import io
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from elbert_base.errors import UserError

SUFFIXES = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
csv.field_size_limit(2**31 - 1)  # a cell may hold a document

# (1-based line, cells by column name); None has the first cell of a row that is too long.
NumberedRows = Iterator[tuple[int, dict[str | None, str]]]


def kind_of(path: Path) -> str:
    """Return what a table's name ends in, without .gz."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of a UTF-8 file with their ends, without a byte order mark.

    Only "\\n" ends a line, so a stray "\\r" or U+2028 within a text stays in it.
    """
    if os.path.exists(path) and not os.path.isfile(path):  # a pipe, a device: without an end
        raise UserError(f"{path} is no regular file")
    is_packed = path.suffix.lower() == ".gz"
    try:
        with gzip.open(path, "rb") if is_packed else open(path, "rb") as file:
            for number, raw in enumerate(file, start=1):
                yield number, decode_line(path, number, raw)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot read {path}: {reason}") from error


def decode_line(path: Path, number: int, raw: bytes) -> str:
    """Decode a line of UTF-8; raises UserError naming the byte that is none."""
    try:
        return raw.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}, line {number}: byte {error.start + 1} (0x{raw[error.start]:02x}) "
            "is not UTF-8; save the file as UTF-8"
        ) from error


def _csv_cells(path: Path) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader((line for _, line in read_lines(path)), strict=True)
    while True:
        start = reader.line_num + 1  # a quoted field may span lines
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise UserError(f"{path}, line {start}: not valid CSV: {error}") from error
        if cells is None:
            return
        yield start, cells or [""]


def _json_rows(path: Path) -> NumberedRows:
    for number, line in read_lines(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            # Escapes can spell half a surrogate pair, which no tokenizer takes.
            json.dumps(row, ensure_ascii=False).encode("utf-8")
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}, line {number}: not valid JSON: {error}") from error
        if not isinstance(row, dict):
            raise UserError(f"{path}, line {number}: expected one JSON object a line")
        yield number, _texts(row)


def _texts(row: dict[str, Any]) -> dict[str | None, str]:
    """Return a row's cells as text.

    A null, list or object is no cell: it is reported as missing where it is needed.
    """
    cells: dict[str | None, str] = {}
    for name, value in row.items():
        if isinstance(value, str):
            cells[name] = value
        elif isinstance(value, int | float):
            cells[name] = json.dumps(value)
    return cells


def _arrow_table(path: Path) -> tuple[list[str], NumberedRows]:
    """Read a Parquet file's columns and rows."""
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise UserError(f"{path}: pip install pyarrow to read it") from error
    with _arrow_errors(path):
        file = parquet.ParquetFile(path)

    def rows() -> Iterator[dict[str, Any]]:
        with _arrow_errors(path):  # of a damaged page
            for batch in file.iter_batches():
                yield from batch.to_pylist()

    numbered = ((number, _texts(row)) for number, row in enumerate(rows(), 1))
    return file.schema_arrow.names, numbered


@contextmanager
def _arrow_errors(path: Path) -> Iterator[None]:
    """Turn what a damaged file raises, of pyarrow mostly a ValueError, into a UserError."""
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise UserError(f"cannot read {path}: {str(error)[:300]}") from error


def read_table(path: Path, headerless: Sequence[str] = ()) -> tuple[list[str], NumberedRows]:
    """Read the columns and rows of a table.

    It is a .csv (quoted), .jsonl or .json file, a TSV (no quoting), each also as .gz, or a Parquet
    file.

    `headerless` are the columns of a file without a header. A row shorter than the header lacks
    its last columns; of a longer one, None has a cell more. Blank lines are no rows; in a file of
    one column they are an empty text. No columns at all means that the file is empty.
    """
    suffix = kind_of(path)
    if suffix == ".parquet":
        return _arrow_table(path)
    if suffix in (".jsonl", ".json"):
        rows = _json_rows(path)
        first = next(rows, None)
        if first is None:
            return [], rows
        return [name for name in first[1] if name is not None], chain([first], rows)
    if suffix == ".csv":
        cells = _csv_cells(path)
    else:
        cells = ((number, line.rstrip("\r\n").split("\t")) for number, line in read_lines(path))
    columns = list(headerless) or next(cells, (0, []))[1]
    names = [*columns, None]
    rows = (
        (number, dict(zip(names, row, strict=False)))
        for number, row in cells
        if row != [""] or len(columns) == 1
    )
    return columns, rows


def require_columns(path: Path, columns: Sequence[str], needed: Iterable[str]) -> None:
    """Raise UserError unless a table has each of the columns that are needed, once."""
    if not columns:
        raise UserError(f"{path} is empty")
    for name in needed:
        if columns.count(name) != 1:
            fault = "two columns" if name in columns else "no column"
            listed = ", ".join(columns[:20])[:300]
            raise UserError(
                f"{path}, line 1: {fault} {name!r}; the columns are: {listed}; of your own files, "
                "--text_column_names and --label_column_name say which to read"
            )


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Format rows, dicts with the same keys, as CSV with a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
