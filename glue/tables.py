"""Strict reading of text tables: whatever is wrong is a UserError with the file and the line."""

import csv
import gzip
import io
import json
import logging
import os
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from modeling.errors import UserError
from modeling.files import check_file

logger = logging.getLogger(__name__)

SUFFIXES = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
# A cell may hold a book, but a small .gz may hold what fills the memory.
LARGEST_CELL = 10_000_000  # characters
LARGEST_LINE = 2**30  # bytes: a line of JSON may hold a whole table
TOO_LONG = f"has more than the {LARGEST_CELL} characters that are allowed: split the text"
LONGEST_CELL_LINES = 200  # lines behind a quote among which the closing one is looked for
OPEN_QUOTE = (
    "a quote opens a cell and does not close on this line, and a row of a .tsv file ends with its "
    "line: save the table as .csv, whose cells can have line breaks"
)
csv.field_size_limit(LARGEST_CELL)

# Cells by column name. In a row with more cells than columns, the first surplus one is under None.
Row = Mapping[str | None, str]
NumberedRows = Iterator[tuple[int, Row]]  # with the 1-based line
# Values by column name, as the file has them: texts of CSV and TSV, any of JSON lines and Parquet.
Record = dict[str, Any]
NumberedRecords = Iterator[tuple[int, Record]]

NO_LISTS: Mapping[str, str] = {}
STDIN = Path("/dev/stdin")  # the one path that may be a pipe


def stop_at(error: UserError) -> None:
    """Raise the error of a row that cannot be read; a reader may be given another `on_error`."""
    raise error


OnError = Callable[[UserError], None]


def kind_of(path: Path) -> str:
    """Return the suffix of a table's name, without .gz: ".csv" for reviews.CSV.gz."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def read_table(
    path: Path,
    headerless: Sequence[str] = (),
    keeps_quotes: bool = False,
    list_separators: Mapping[str, str] = NO_LISTS,
) -> tuple[list[str], NumberedRows]:
    """Read the columns and rows of a table.

    It is a .csv file with quoting, a TSV, or .jsonl or .json, each also as .gz; or a Parquet file.
    JSON has an object on each line, an array of objects, or a layout of pandas' to_json. Its
    columns are those of all rows.

    A row with fewer cells than columns lacks its last columns. One with more has the first surplus
    cell under None. Blank lines are not rows, but in a file with one column they are an empty text.
    An empty file has no columns.

    Args:
        headerless: the columns of a CSV or TSV file without a header.
        keeps_quotes: whether quotes in a TSV are part of the text, as in GLUE's files. In others, a
            cell that is quoted as pandas does it is the text within.
        list_separators: what joins the texts of a list, by column; "" where a list is an error.
            In other columns, lists are no cells.

    Raises:
        UserError: a file that cannot be read, then or while the rows are.
    """
    suffix = kind_of(path)
    if suffix == ".parquet":
        columns, records = _parquet_records(path)
        return columns, _text_rows(path, records, list_separators)
    if suffix in (".jsonl", ".json"):
        columns = _json_columns(path)
        return columns, _text_rows(path, _json_objects(path), list_separators)
    rows = _csv_cells(path) if suffix == ".csv" else _tsv_cells(path)
    if suffix == ".tsv" and not keeps_quotes:
        rows = _unquoted_rows(path, rows)
    columns = list(headerless)
    if not columns:
        _, columns = next(rows, (0, []))
    return columns, _name_cells(columns, rows)


def read_records(
    path: Path, kind: str = "", on_error: OnError = stop_at, keeps_quotes: bool = False
) -> tuple[list[str], NumberedRecords]:
    """Read the columns and rows of a table as `read_table` does, with values as the file has them.

    The columns of JSON lines are those of the first object; later ones may have others.

    Args:
        path: the table; STDIN reads standard input.
        kind: its suffix, such as ".csv"; default: as `kind_of` tells.
        on_error: called with the error of a row that cannot be read, which is then left out; by
            default it is raised.
        keeps_quotes: as in `read_table`.

    Raises:
        UserError: a file that cannot be read, then or while the rows are.
    """
    kind = kind or kind_of(path)
    if kind == ".parquet":
        return _parquet_records(path)
    if kind in (".jsonl", ".json"):
        objects = _json_objects(path, on_error)
        first = next(objects, None)
        if first is None:
            return [], objects
        return list(first[1]), chain([first], objects)
    columns: list[str] = []

    def handle(error: UserError) -> None:
        """Raise an error of the header, without which no row has a meaning."""
        if not columns:
            raise error
        on_error(error)

    rows = _csv_cells(path, handle) if kind == ".csv" else _tsv_cells(path, handle)
    if kind == ".tsv" and not keeps_quotes:
        rows = _unquoted_rows(path, rows, handle)
    columns += next(rows, (0, []))[1]
    return columns, _checked_records(path, columns, rows, on_error)


def _checked_records(
    path: Path, columns: list[str], rows: Iterator[tuple[int, list[str]]], on_error: OnError
) -> NumberedRecords:
    """Put each cell under its column's name; a row with more cells than columns is an error."""
    for number, row in _name_cells(columns, rows):
        record: Record = {name: cell for name, cell in row.items() if name is not None}
        if None in row:
            on_error(
                UserError(f"{path}, line {number}: more cells than the {len(columns)} columns")
            )
        else:
            yield number, record


def require_columns(path: Path, columns: Sequence[str], required: Iterable[str]) -> None:
    """Raise UserError unless a table has each of the required columns once."""
    if not columns:
        raise UserError(f"{path} is empty")
    for name in required:
        if columns.count(name) != 1:
            fault = "two columns" if name in columns else "no column"
            listed = ", ".join(columns[:20])[:300]
            raise UserError(
                f"{path}, line 1: {fault} {name!r}; the columns are: {listed}; for your own files, "
                "--text_column_names and --label_column_name name those to read"
            )


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Format rows, dicts with the same keys, as CSV with a header.

    `read_table` reads what is written, whatever the texts hold.
    """
    text = io.StringIO()
    # csv leaves a carriage return unquoted, and then refuses to read it.
    has_returns = any("\r" in str(value) for row in rows for value in (*row, *row.values()))
    quoting = csv.QUOTE_ALL if has_returns else csv.QUOTE_MINIMAL
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n", quoting=quoting)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


# Lines.


def check_no_pipe(path: Path, advice: str = "") -> None:
    """Raise UserError for a pipe, which can be read once only; advice: beside saving it as a file.

    A shell's <(…) is one, too.
    """
    if path.is_fifo():
        raise UserError(
            f"{path} is a pipe, which can be read once only, and this file is read several times: "
            f"save it as a file first{advice}"
        )


def read_lines(path: Path, on_error: OnError = stop_at) -> Iterator[tuple[int, str]]:
    """Yield the lines of a UTF-8 file with their numbers from 1, and with their line ends.

    A byte order mark is left out. Only "\\n" ends a line, so a stray "\\r" or U+2028 within a text
    stays in it. Raises UserError for a file that cannot be read; `on_error` gets the error of a
    line that is not UTF-8.
    """
    if path != STDIN:
        check_file(path)
    if path != STDIN:
        check_no_pipe(path)
    if path != STDIN and os.path.exists(path) and not os.path.isfile(path):
        # A device may have no end.
        raise UserError(f"{path} is no regular file")
    is_gzip = path.suffix.lower() == ".gz"
    try:
        with gzip.open(path, "rb") if is_gzip else open(path, "rb") as file:
            lines = iter(partial(file.readline, LARGEST_LINE + 1), b"")
            for number, line in enumerate(lines, start=1):
                if len(line) > LARGEST_LINE:
                    raise UserError(f"{path}, line {number}: more than {LARGEST_LINE} bytes")
                try:
                    text = _decode_line(path, number, line)
                except UserError as error:
                    on_error(error)
                    continue
                yield number, text
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot read {path}: {reason}") from error


def _decode_line(path: Path, number: int, line: bytes) -> str:
    """Decode a line of UTF-8; raises UserError, naming the first byte that is not UTF-8."""
    encoding = "utf-8-sig" if number == 1 else "utf-8"  # a byte order mark begins the first line
    try:
        return line.decode(encoding)
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}, line {number}: byte {error.start + 1} (0x{line[error.start]:02x}) "
            "is not UTF-8; save the file as UTF-8"
        ) from error


# CSV and TSV: the cells of each row, with the line on which the row begins.


def _csv_cells(path: Path, on_error: OnError = stop_at) -> Iterator[tuple[int, list[str]]]:
    """Yield the cells of each row, in which commas and line breaks may be quoted."""
    taken: list[int] = []  # numbers of the lines of the row at hand: a quoted cell may span lines

    def lines() -> Iterator[str]:
        for number, line in read_lines(path, on_error):
            taken.append(number)
            yield line

    reader = csv.reader(lines(), strict=True)
    while True:
        taken.clear()
        try:
            cells = next(reader, None)
        except csv.Error as error:
            is_long = "field limit" in str(error)
            fault = f"a cell {TOO_LONG}" if is_long else f"not valid CSV: {error}"
            on_error(UserError(f"{path}, line {taken[0]}: {fault}"))
            continue
        if cells is None:
            return
        yield taken[0], cells or [""]


def _tsv_cells(path: Path, on_error: OnError = stop_at) -> Iterator[tuple[int, list[str]]]:
    """Yield the cells of each row; in GLUE's files quotes are part of the text."""
    for number, line in read_lines(path, on_error):
        cells = line.rstrip("\r\n").split("\t")
        if max(map(len, cells)) > LARGEST_CELL:
            on_error(UserError(f"{path}, line {number}: a cell {TOO_LONG}"))
            continue
        yield number, cells


def _check_lengths(place: str, record: Record) -> None:
    """Raise UserError for a text that is too long for a cell; place: of the row, for the error."""
    for name, value in record.items():
        if isinstance(value, str) and len(value) > LARGEST_CELL:
            raise UserError(f"{place}: column {name!r} {TOO_LONG}")


def _name_cells(columns: list[str], rows: Iterator[tuple[int, list[str]]]) -> NumberedRows:
    """Put each cell under its column's name, and leave out blank lines; see `read_table`."""
    names = [*columns, None]
    for number, cells in rows:
        is_blank = cells == [""]
        if len(columns) == 1 or not is_blank:
            yield number, dict(zip(names, cells, strict=False))


def _unquoted_rows(
    path: Path, rows: Iterator[tuple[int, list[str]]], on_error: OnError = stop_at
) -> Iterator[tuple[int, list[str]]]:
    """Take the quotes off cells that pandas and spreadsheets have quoted; one line counts them."""
    count = 0
    for number, cells in _whole_rows(path, rows, on_error):
        texts = [_unquoted(cell) for cell in cells]
        count += texts != cells
        yield number, texts
    if count:
        logger.info("%s: quotes around cells were taken off in %d rows", path, count)


def _whole_rows(
    path: Path, rows: Iterator[tuple[int, list[str]]], on_error: OnError
) -> Iterator[tuple[int, list[str]]]:
    """Leave out the lines of a quoted cell that goes on over several lines; each is an error.

    In a table of one column, lines are rows in any case: there it is a warning.
    """
    columns = 0
    joined = 0  # the first line of a table of one column that is quoted together with the next
    ahead: deque[tuple[int, list[str]]] = deque()
    while True:
        row = ahead.popleft() if ahead else next(rows, None)
        if row is None:
            break
        number, cells = row
        columns = columns or len(cells)
        count = _count_quoted_lines(cells, ahead, rows, columns)
        if count and columns > 1:
            on_error(UserError(f"{path}, line {number}: {OPEN_QUOTE}"))
            for _ in range(count):
                later, _ = ahead.popleft()
                on_error(UserError(f"{path}, line {later}: goes on with the cell of line {number}"))
            continue
        joined = joined or (number if count else 0)
        yield number, cells
    if joined:
        logger.warning("%s: each line is a row; line %d: %s", path, joined, OPEN_QUOTE)


def _count_quoted_lines(
    cells: list[str],
    ahead: deque[tuple[int, list[str]]],
    rows: Iterator[tuple[int, list[str]]],
    columns: int,
) -> int:
    """Count the lines behind a line that a quoted cell of it goes on over; 0 where it is whole.

    With these lines, it is one row of quoted cells. Without them, one of the lines has not as many
    cells as the table has columns: texts that begin or end with a quote are no such lines.

    Args:
        cells: of the line.
        ahead: lines that were read before; what is read now is added.
        rows: further lines.
        columns: of the table.
    """
    if not any(cell.startswith('"') and _has_lone_quote(cell) for cell in cells):
        return 0
    parts = [cells]

    def lines() -> Iterator[str]:
        yield "\t".join(cells) + "\n"
        for position in range(LONGEST_CELL_LINES):
            if position == len(ahead):
                row = next(rows, None)
                if row is None:
                    return
                ahead.append(row)
            parts.append(ahead[position][1])
            yield "\t".join(parts[-1]) + "\n"

    try:
        record = next(csv.reader(lines(), delimiter="\t", strict=True))
    except csv.Error:  # no quote closes as it should
        return 0
    has_other_width = any(len(part) != columns and part != [""] for part in parts)
    is_row = len(record) == columns and (has_other_width or columns == 1)
    return len(parts) - 1 if is_row else 0


def _has_lone_quote(cell: str) -> bool:
    """Tell whether a cell has an odd number of quotes, as half of a quoted cell has."""
    return cell.count('"') % 2 == 1


def _unquoted(cell: str) -> str:
    """Return the text of a cell in quotes, in which quotes are doubled; other cells as they are."""
    if len(cell) < 2 or not cell.startswith('"') or not cell.endswith('"'):
        return cell
    inner = cell[1:-1]
    has_lone_quote = '"' in inner.replace('""', "")
    return cell if has_lone_quote else inner.replace('""', '"')


# JSON.


def _json_columns(path: Path) -> list[str]:
    """List the columns that any object of a file has, in the order in which they come."""
    columns: dict[str, None] = {}
    for _, record in _json_objects(path):
        columns.update(dict.fromkeys(record))
    return list(columns)


def _json_objects(path: Path, on_error: OnError = stop_at) -> NumberedRecords:
    """Yield the objects of a file with their lines; those of a whole document with their numbers.

    A document begins with "[", or with "{" alone on a line, or is one object of columns.
    """
    lines = ((number, line) for number, line in read_lines(path, on_error) if line.strip())
    first = next(lines, None)
    if first is None:
        return
    _, first_line = first
    opening = first_line.strip()
    if opening == "{" or opening.startswith("["):
        text = "".join(line for _, line in chain([first], lines))
        yield from _document_objects(path, _parse_json(text, str(path)))
        return
    all_lines = chain([first], lines)
    content = _try_json(first_line)
    if _is_of_columns(content):
        second = next(lines, None)
        if second is None:
            yield from _document_objects(path, _parse_json(first_line, str(path)))
            return
        all_lines = chain([first, second], lines)
    for number, line in all_lines:
        try:
            record = _parse_json(line, f"{path}, line {number}")
            if not isinstance(record, dict):
                raise UserError(f"{path}, line {number}: expected one JSON object per line")
            _check_lengths(f"{path}, line {number}", record)
        except UserError as error:
            on_error(error)
            continue
        yield number, record


def _try_json(text: str) -> Any:
    """Parse JSON; None where it is not valid."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _parse_json(text: str, place: str) -> Any:
    """Parse JSON; raises UserError, with the place, where it is not valid."""
    try:
        content = json.loads(text, object_pairs_hook=_unrepeated)
        # Escapes can spell half a surrogate pair, which no tokenizer takes.
        json.dumps(content, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place}: not valid JSON: {error}") from error
    return content


def _unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs of a JSON object; ValueError where a key repeats: a value would be lost."""
    content = dict(pairs)
    if len(content) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {repeated!r} stands twice in one object")
    return content


def _is_of_columns(content: Any) -> bool:
    """Tell whether a document has one of pandas' layouts with columns or with rows in an object."""
    if not isinstance(content, dict) or not content:
        return False
    is_split = {"columns", "data"} <= content.keys() or {"schema", "data"} <= content.keys()
    values = content.values()
    if all(isinstance(value, list) for value in values):
        return len({len(value) for value in values}) == 1
    return is_split or all(isinstance(value, dict) for value in values)


def _document_objects(path: Path, content: Any) -> NumberedRecords:
    """Yield the objects of a whole JSON document, numbered from 1.

    It is a list of objects, or what pandas' to_json writes: by its default an object of columns,
    {"text": {"0": …}}; with orient="split", "table" or "index"; or to_dict("list"), {"text": […]}.
    """
    if isinstance(content, dict) and "schema" in content and "data" in content:
        content = content["data"]
    elif isinstance(content, dict) and "columns" in content and "data" in content:
        columns = content["columns"]
        content = [dict(zip(columns, row, strict=False)) for row in content["data"]]
    elif isinstance(content, dict) and _is_of_columns(content):
        content = _rows_of_columns(path, content)
    elif isinstance(content, dict):
        content = [content]
    for number, record in enumerate(content, start=1):
        if not isinstance(record, dict):
            raise UserError(
                f"{path}, row {number}: expected an object with columns; in pandas, write "
                'to_json(..., orient="records", lines=True)'
            )
        _check_lengths(f"{path}, row {number}", record)
        yield number, record


def _rows_of_columns(path: Path, content: dict[str, Any]) -> list[Record]:
    """Return the rows of {"column": {"row": value}}, {"row": {"column": value}}, or lists.

    pandas numbers rows from 0, so outer keys that are all numbers are rows. Raises UserError where
    inner keys are all numbers as well.
    """
    if all(isinstance(cells, list) for cells in content.values()):
        columns = list(content)
        return [dict(zip(columns, row, strict=True)) for row in zip(*content.values(), strict=True)]
    if all(name.isdecimal() for name in content):
        inner_names = {name for cells in content.values() for name in cells}
        if all(name.isdecimal() for name in inner_names):
            raise UserError(
                f"{path}: rows and columns both have numbers for names, so they cannot be told "
                'apart; in pandas, write to_json(..., orient="records", lines=True)'
            )
        return list(content.values())
    rows: dict[str, Record] = {}
    for column, cells in content.items():
        for row, value in cells.items():
            rows.setdefault(row, {})[column] = value
    return list(rows.values())


def _text_rows(
    path: Path, records: NumberedRecords, list_separators: Mapping[str, str]
) -> NumberedRows:
    """Yield records as rows of texts; lists of the columns with a separator are joined by it.

    Raises UserError for a list in a column with an empty separator, and for an object.
    """
    for number, record in records:
        for name, separator in list_separators.items():
            value = record.get(name)
            if isinstance(value, dict) or (isinstance(value, list) and not separator):
                raise UserError(
                    f"{path}, line {number}: {name} {str(value)[:80]} is neither a text nor a "
                    "number; --task_type multi_label reads lists of labels"
                )
            if isinstance(value, list):
                items = [str(item) for item in value]
                if any(separator in item for item in items):
                    raise UserError(
                        f"{path}, line {number}: {name} {value!r} has the separator {separator!r} "
                        "in a label"
                    )
                record = {**record, name: separator.join(items)}
        yield number, text_cells(record)


def text_cells(row: Mapping[str, Any]) -> Row:
    """Return a row's cells as texts.

    A null, NaN, list or object is left out, so that it is reported as missing where it is needed.
    """
    cells: dict[str | None, str] = {}
    for name, value in row.items():
        if isinstance(value, str):
            cells[name] = value
        elif isinstance(value, Decimal):
            cells[name] = str(value)
        elif isinstance(value, int | float) and value == value:  # NaN is pandas' null
            cells[name] = json.dumps(value)
    return cells


# Parquet.


def check_not_gzipped(path: Path) -> None:
    """Raise UserError for a Parquet file's name that ends in .gz: its own pages are compressed."""
    if path.name.lower().endswith(".parquet.gz"):
        raise UserError(f"{path}: Parquet is compressed within; gunzip it, or name it .parquet")


def _parquet_records(path: Path) -> tuple[list[str], NumberedRecords]:
    """Read the columns and rows of a Parquet file, whose lines are its rows."""
    check_not_gzipped(path)
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise UserError(f"{path}: pip install pyarrow to read it") from error
    with _arrow_errors(path):
        file = parquet.ParquetFile(path)

    def rows() -> NumberedRecords:
        number = 0
        with _arrow_errors(path):  # a page may be damaged
            for batch in file.iter_batches():
                for record in table_rows(batch):
                    number += 1
                    _check_lengths(f"{path}, row {number}", record)
                    yield number, record

    return file.schema_arrow.names, rows()


def table_rows(batch: Any) -> list[Record]:
    """Return the rows of a pyarrow Table or RecordBatch.

    Values are Python's, but for a time, timestamp or duration with nanoseconds, which Python's
    types cannot hold: that is a pyarrow Scalar.
    """
    columns = [_exact_values(column) for column in batch.columns]
    names = batch.schema.names
    return [dict(zip(names, cells, strict=True)) for cells in zip(*columns, strict=True)]


def _exact_values(column: Any) -> list[Any]:
    """Return the values of a pyarrow array; see `table_rows`."""
    if _may_have_nanoseconds(column.type):
        return [_exact_value(scalar) for scalar in column]
    return column.to_pylist()


def _may_have_nanoseconds(kind: Any) -> bool:
    """Tell whether values of a pyarrow type, or values within, are counts of nanoseconds."""
    return "[ns" in str(kind)


def _exact_value(scalar: Any) -> Any:
    """Return the Python value of a pyarrow Scalar, which stays one where Python has no value."""
    from pyarrow import types

    kind = scalar.type
    if not scalar.is_valid or not _may_have_nanoseconds(kind):
        return scalar.as_py()
    if types.is_struct(kind):
        return {field.name: _exact_value(scalar[field.name]) for field in kind}
    if types.is_map(kind):
        entries = [(entry["key"], entry["value"]) for entry in scalar.values]
        return [(_exact_value(key), _exact_value(value)) for key, value in entries]
    if types.is_dictionary(kind):
        return _exact_value(scalar.value)
    if types.is_nested(kind):
        return [_exact_value(item) for item in scalar.values]
    if scalar.value % 1000:
        return scalar
    return microseconds_of(scalar).as_py()


def microseconds_of(scalar: Any) -> Any:
    """Return a time, timestamp or duration of nanoseconds, cut to whole microseconds."""
    import pyarrow
    from pyarrow import types

    if types.is_timestamp(scalar.type):
        kind = pyarrow.timestamp("us", scalar.type.tz)
    elif types.is_duration(scalar.type):
        kind = pyarrow.duration("us")
    else:
        kind = pyarrow.time64("us")
    return pyarrow.scalar(scalar.value // 1000, kind)


@contextmanager
def _arrow_errors(path: Path) -> Iterator[None]:
    """Turn what pyarrow raises for a damaged file, mostly a ValueError, into a UserError."""
    try:
        yield
    # Python's dates end with the year 9999, where a file's do not.
    except (
        OSError,
        ValueError,
        LookupError,
        TypeError,
        RecursionError,
        OverflowError,
    ) as error:
        raise UserError(f"cannot read {path}: {str(error)[:300]}") from error
