"""Writing tables in the kinds that glue/tables.py reads: rows as bytes, and Parquet files.

A file is put together from parts, so that its rows need not be in memory together.
"""

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from elbert_base.errors import UserError
from glue.tables import Record

PARTS_IN_A_GROUP = 32  # parts of a Parquet file whose rows are one of its row groups


# Rows as bytes.


def header_line(kind: str, columns: Sequence[str]) -> bytes:
    """Return the line that a table begins with; of other kinds than CSV and TSV, nothing."""
    return _format_cells(kind, [columns]) if kind in (".csv", ".tsv") else b""


def format_records(kind: str, columns: Sequence[str], records: Iterable[Record]) -> bytes:
    """Format rows without a header.

    A row of JSON lines has the keys that it came with; NaN, which JSON does not have, is null. In
    CSV and TSV a missing value is an empty cell, and what is no text is written as in JSON.

    kind: ".csv", ".tsv" or ".jsonl".
    """
    if kind == ".jsonl":
        return "".join(f"{json_line(record)}\n" for record in records).encode()
    rows = ([cell_text(record.get(name)) for name in columns] for record in records)
    return _format_cells(kind, rows)


def json_line(record: Record) -> str:
    """Format a row as a JSON object."""
    values = {
        name: None if isinstance(value, float) and math.isnan(value) else value
        for name, value in record.items()
    }
    return json.dumps(values, ensure_ascii=False, default=str)


def cell_text(value: Any) -> str:
    """Return a value as the text of a cell."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _format_cells(kind: str, rows: Iterable[Sequence[str]]) -> bytes:
    """Format the cells of rows as CSV, or as TSV, with quotes where a reader needs them."""
    text = io.StringIO()
    if kind == ".csv":
        csv.writer(text, lineterminator="\n").writerows(rows)
    else:
        for cells in rows:
            text.write("\t".join(map(_tsv_cell, cells)) + "\n")
    return text.getvalue().encode()


def _tsv_cell(text: str) -> str:
    """Quote a text that begins with a quote, as pandas does: a reader would look for its end."""
    return '"' + text.replace('"', '""') + '"' if text.startswith('"') else text


def check_writable(kind: str, place: str, record: Mapping[str, Any]) -> None:
    """Raise UserError for a row that a table of this kind cannot hold.

    place: of the row, for the error.
    """
    if kind != ".tsv":
        return
    for name, value in record.items():
        if not {"\t", "\n", "\r"}.isdisjoint(cell_text(value)):
            raise UserError(
                f"{place}: a tab or line break in {name!r}, which a .tsv file cannot hold; write "
                ".csv, .jsonl or .parquet"
            )


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

    Raises UserError where a column has types that have none in common.
    """
    import pyarrow

    try:
        return pyarrow.unify_schemas(schemas, promote_options="permissive")
    except (ValueError, TypeError) as error:
        raise UserError(f"the rows do not fit into one Parquet file: {error}") from error


def write_records(schema: Any, records: Sequence[Record], file: BinaryIO) -> None:
    """Write rows as a Parquet file of their own."""
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(records, schema), file)


def join_parquet(file: BinaryIO, schema: Any, parts: Iterable[Path]) -> None:
    """Write the rows of several Parquet files, in their order, as one file."""
    import pyarrow
    from pyarrow import parquet

    remaining: Iterator[Path] = iter(parts)
    with parquet.ParquetWriter(file, schema) as writer:
        while group := list(islice(remaining, PARTS_IN_A_GROUP)):
            tables = [parquet.read_table(part, schema=schema, partitioning=None) for part in group]
            writer.write_table(pyarrow.concat_tables(tables).combine_chunks())
