"""Writing tables in the kinds that glue/tables.py reads: rows as bytes, and Parquet files.

A file is put together from parts, so that its rows need not be in memory together.
"""

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO
from uuid import UUID

from glue.tables import Record, microseconds_of
from modeling.errors import UserError

LARGEST_INTEGER = 63  # bits of a whole number, beside its sign, that pyarrow infers a type for
PARTS_IN_A_GROUP = 32  # parts of a Parquet file whose rows are one of its row groups


# Rows as bytes.


def header_line(kind: str, columns: Sequence[str]) -> bytes:
    """Return the line that a table begins with; of other kinds than CSV and TSV, nothing."""
    return format_cells(kind, [columns]) if kind in (".csv", ".tsv") else b""


def format_records(kind: str, columns: Sequence[str], records: Iterable[Record]) -> bytes:
    """Format rows without a header.

    A row of JSON lines has the keys that it came with; NaN, which JSON does not have, is null. In
    CSV and TSV a missing value or NaN is an empty cell, and what is no text is written as in JSON.
    Dates, times, durations and decimals are those of `plain_text`. Rows are those that
    `check_writable` takes.

    kind: ".csv", ".tsv" or ".jsonl".
    """
    if kind == ".jsonl":
        return "".join(f"{json_line(record)}\n" for record in records).encode()
    rows = ([cell_text(record.get(name)) for name in columns] for record in records)
    return format_cells(kind, rows)


def json_line(record: Record) -> str:
    """Format a row as a JSON object."""
    values = {name: None if is_nan(value) else value for name, value in record.items()}
    return json.dumps(values, ensure_ascii=False, default=plain_text)


def cell_text(value: Any) -> str:
    """Return a value as the text of a cell."""
    if value is None or is_nan(value):
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, int | float | list | dict):
        return json.dumps(value, ensure_ascii=False, default=plain_text)
    return plain_text(value)


def is_nan(value: Any) -> bool:
    """Tell whether a value is NaN, pandas' null."""
    return isinstance(value, float) and math.isnan(value)


def plain_text(value: Any) -> str:
    """Write a date, time or duration by ISO 8601, a decimal by its digits, and a UUID.

    pandas' to_datetime and to_timedelta, and Python's fromisoformat, Decimal and UUID, read it
    again; of nanoseconds, pandas alone.
    """
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, timedelta):
        fraction = f".{value.microseconds:06}" if value.microseconds else ""
        return duration_text(value, fraction)
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    # A pyarrow Scalar, with nanoseconds; see `table_rows`.
    rounded = microseconds_of(value).as_py()
    nanoseconds = f"{value.value % 1000:03}"
    if isinstance(rounded, timedelta):
        return duration_text(rounded, f".{rounded.microseconds:06}{nanoseconds}")
    text = rounded.isoformat(timespec="microseconds")
    end = text.index(".") + len(".123456")  # a zone may follow
    return text[:end] + nanoseconds + text[end:]


def duration_text(duration: timedelta, fraction: str) -> str:
    """Write a duration by ISO 8601; fraction: of its seconds, with the point."""
    minutes, seconds = divmod(duration.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"P{duration.days}DT{hours}H{minutes}M{seconds}{fraction}S"


def format_cells(kind: str, rows: Iterable[Sequence[str]]) -> bytes:
    """Format the cells of rows as CSV, or as TSV, with quotes where a reader needs them."""
    text = io.StringIO()
    if kind == ".csv":
        writer = csv.writer(text, lineterminator="\n")
        # csv leaves a carriage return unquoted, and no reader takes it for a part of the cell.
        quoting_writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
        for cells in rows:
            has_return = any("\r" in cell for cell in cells)
            (quoting_writer if has_return else writer).writerow(cells)
    else:
        for cells in rows:
            text.write("\t".join(map(_tsv_cell, cells)) + "\n")
    return text.getvalue().encode()


def _tsv_cell(text: str) -> str:
    """Quote a text that begins with a quote, as pandas does: a reader would look for its end."""
    return '"' + text.replace('"', '""') + '"' if text.startswith('"') else text


def check_writable(
    kind: str, place: str, record: Mapping[str, Any], has_types: bool = False
) -> None:
    """Raise UserError for a row that a table of this kind cannot hold.

    Args:
        place: of the row, for the error.
        has_types: whether the row comes from a Parquet file, whose types another one has as well.
    """
    for name, value in record.items():
        fault = "" if has_types and kind == ".parquet" else fault_of(kind, value)
        if fault:
            raise UserError(f"{place}: {name!r} has {fault}")
    if kind != ".tsv":
        return
    for name, value in record.items():
        if not {"\t", "\n", "\r"}.isdisjoint(name + cell_text(value)):
            raise UserError(
                f"{place}: a tab or line break in {name!r}, which a .tsv file cannot hold; write "
                ".csv, .jsonl or .parquet"
            )


def fault_of(kind: str, value: Any, is_part: bool = False) -> str:
    """Say what of a value a table of this kind cannot hold, and which can; "" where it can.

    is_part: whether the value is within a list or an object, which CSV and TSV have as JSON.
    """
    if isinstance(value, list | tuple | dict):
        parts = value.values() if isinstance(value, dict) else value
        faults = (fault_of(kind, part, is_part=True) for part in parts)
        return next(filter(None, faults), "")
    if kind == ".parquet":
        if isinstance(value, int) and value.bit_length() > LARGEST_INTEGER:
            return (
                "a whole number of more than 64 bits, which a .parquet file cannot hold; write "
                ".csv or .jsonl"
            )
        return ""
    if isinstance(value, bytes):
        return f"bytes, which a {kind} file cannot hold; write .parquet"
    if isinstance(value, float) and not math.isfinite(value):
        if is_part:
            return (
                "NaN or an infinite number in a list or object, which JSON does not have; write "
                ".parquet"
            )
        if kind == ".jsonl" and math.isinf(value):
            return "an infinite number, which JSON does not have; write .csv or .parquet"
    return ""


# Parquet. pyarrow is imported where a table needs it.


def file_schema(path: Path) -> Any:
    """Return the columns and types of a Parquet file, a pyarrow Schema."""
    from pyarrow import parquet

    return parquet.read_schema(path)


def schema_of(columns: Sequence[str], records: Sequence[Record]) -> Any:
    """Infer the types of rows, a pyarrow Schema; raises ValueError or TypeError for a mixture."""
    import pyarrow

    values = {name: [record.get(name) for record in records] for name in columns}
    return pyarrow.table(values).schema


def joint_schema(schemas: Sequence[Any]) -> Any:
    """Return the schema that the rows of several tables fit into.

    Raises UserError where a column has types that have none in common, or one that Parquet does not
    have.
    """
    import pyarrow
    from pyarrow import parquet

    try:
        schema = pyarrow.unify_schemas(schemas, promote_options="permissive")
    except (ValueError, TypeError) as error:
        raise UserError(f"the rows do not fit into one Parquet file: {error}") from error
    for field in schema:
        try:
            parquet.write_table(pyarrow.schema([field]).empty_table(), io.BytesIO())
        except NotImplementedError as error:  # of objects that are all empty
            raise UserError(
                f"the column {field.name!r} does not fit into Parquet: {error}; write .jsonl"
            ) from error
    return schema


def write_records(schema: Any, records: Sequence[Record], file: BinaryIO) -> None:
    """Write rows as a Parquet file of their own."""
    from pyarrow import parquet

    parquet.write_table(as_table(schema, records), file)


def as_table(schema: Any, records: Sequence[Record]) -> Any:
    """Make a pyarrow Table of rows; raises ValueError or OverflowError where they do not fit."""
    import pyarrow

    return pyarrow.Table.from_pylist(records, schema)


def join_parquet(file: BinaryIO, schema: Any, parts: Iterable[Path]) -> None:
    """Write the rows of several Parquet files, in their order, as one file."""
    import pyarrow
    from pyarrow import parquet

    remaining: Iterator[Path] = iter(parts)
    with parquet.ParquetWriter(file, schema) as writer:
        while group := list(islice(remaining, PARTS_IN_A_GROUP)):
            tables = [parquet.read_table(part, schema=schema, partitioning=None) for part in group]
            writer.write_table(pyarrow.concat_tables(tables).combine_chunks())
