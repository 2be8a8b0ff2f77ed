"""What is written can be read back: by this project, by csv, json and pandas."""

import csv
import io
import json
import math
from datetime import date, datetime, time, timedelta
from decimal import Decimal

import hypothesis
import numpy as np
import pandas
import pyarrow
import pytest
from hypothesis import strategies as st
from pyarrow import parquet

from elbert import UserError
from glue.submission import label_text
from glue.table_writing import (
    check_writable,
    file_schema,
    format_records,
    header_line,
    joint_schema,
    schema_of,
    write_records,
)
from glue.tables import read_records
from glue.tasks import Task

# Text of any characters but half surrogate pairs and NUL, which no table holds.
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
MOMENT = datetime(2024, 5, 17, 9, 30, 0, 250)


# What JSON lines may have, with the numbers that Python's json reads and JSON does not have.
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS
VALUES = st.recursive(
    LEAVES,
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(TEXTS, parts, max_size=3),
    max_leaves=6,
)
COLUMNS = ["text", "value", "score"]
ROWS = st.lists(st.tuples(TEXTS, VALUES, st.floats(allow_nan=False)), min_size=1, max_size=5)


def numbers_in(value) -> list[float]:
    """All numbers within a list or object."""
    if isinstance(value, list | dict):
        parts = value.values() if isinstance(value, dict) else value
        return [number for part in parts for number in numbers_in(part)]
    return [value] if isinstance(value, int | float) else []


def without_nulls(value):
    """A value that can be compared: NaN is its name, and keys without a value are left out."""
    if isinstance(value, dict):
        return {k: without_nulls(part) for k, part in value.items() if part is not None}
    if isinstance(value, list):
        return [without_nulls(part) for part in value]
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def is_writable(kind: str, records: list[dict]) -> bool:
    try:
        for record in records:
            check_writable(kind, "row 1", record)
    except UserError:
        return False
    return True


@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(rows=ROWS, kind=st.sampled_from([".csv", ".tsv", ".jsonl"]))
def test_any_row_is_refused_or_read_again_with_its_values(rows, kind, tmp_path_factory):
    records = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
    has_odd_numbers = any(
        isinstance(value, list | dict) and not all(map(math.isfinite, map(float_of, numbers)))
        for value, numbers in ((row[1], numbers_in(row[1])) for row in rows)
    )
    if kind == ".jsonl":
        has_odd_numbers |= any(isinstance(v, float) and math.isinf(v) for r in rows for v in r[1:])
    has_breaks = kind == ".tsv" and any(set("\t\n\r") & set(cell_of(v)) for r in rows for v in r)
    assert is_writable(kind, records) == (not has_odd_numbers and not has_breaks)
    if has_odd_numbers or has_breaks:
        return
    content = header_line(kind, COLUMNS) + format_records(kind, COLUMNS, records)
    path = tmp_path_factory.mktemp("tables") / f"table{kind}"
    path.write_bytes(content)
    _, by_project = read_records(path)
    read_rows = [tuple(record.values()) for _, record in by_project]
    if kind == ".jsonl":
        assert read_rows == [
            (text, None if value != value else value, n) for text, value, n in rows
        ]
        for line, row in zip(content.decode().split("\n")[:-1], read_rows, strict=True):
            by_json = json.loads(line, parse_constant=pytest.fail)  # of NaN and Infinity
            assert tuple(by_json.values()) == row
        return
    for (text, value, score), cells in zip(rows, read_rows, strict=True):
        assert (cells[0], float(cells[2])) == (text, score)
        is_missing = value is None or value != value
        if isinstance(value, str) or is_missing:
            assert cells[1] == ("" if is_missing else value)
        else:
            assert json.loads(cells[1]) == value
    text_of_table = content.decode()
    separator = "," if kind == ".csv" else "\t"
    by_csv = csv.reader(io.StringIO(text_of_table, newline=""), delimiter=separator, strict=True)
    assert [tuple(cells) for cells in by_csv][1:] == read_rows
    frame = pandas.read_csv(
        io.BytesIO(content), sep=separator, keep_default_na=False, dtype=str, skip_blank_lines=False
    )
    assert [tuple(cells) for cells in frame.itertuples(index=False)] == read_rows


def float_of(number: float) -> float:
    """A whole number is finite, however long."""
    return number if isinstance(number, float) else 0.0


def cell_of(value) -> str:
    """A cell of TSV: a tab or line break of a text within a list is escaped."""
    return value if isinstance(value, str) else ""


@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(rows=ROWS)
def test_any_row_is_refused_or_has_its_values_in_parquet(rows, tmp_path_factory):
    records = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
    has_long_numbers = any(
        isinstance(number, int) and not -(2**63) < number < 2**63
        for row in rows
        for number in numbers_in(row[1])
    )
    assert is_writable(".parquet", records) == (not has_long_numbers)
    if has_long_numbers:
        return
    try:
        schema = joint_schema([schema_of(COLUMNS, records)])
    except (ValueError, TypeError, UserError):  # a mixture of types, or objects that are all empty
        return
    path = tmp_path_factory.mktemp("tables") / "table.parquet"
    with path.open("wb") as file:
        write_records(schema, records, file)
    expected = without_nulls(records)
    assert without_nulls(parquet.read_table(path).to_pylist()) == expected
    assert without_nulls([record for _, record in read_records(path)[1]]) == expected
    assert pandas.read_parquet(path)["text"].tolist() == [row[0] for row in rows]


# Parquet's own types, made of whole numbers; and how pandas reads their texts as such numbers.
COUNTS = st.integers(-9 * 10**18, 9 * 10**18)
OF_A_DAY = st.integers(0, 86_400 * 10**9 - 1)


def nanoseconds_of_time(text: str) -> int:
    hours, minutes, seconds = text.split(":")
    return (int(hours) * 60 + int(minutes)) * 60 * 10**9 + int(Decimal(seconds) * 10**9)


TYPES = {
    "timestamp": (pyarrow.timestamp("ns"), COUNTS, lambda text: pandas.to_datetime(text).value),
    "in a zone": (
        pyarrow.timestamp("ns", "Europe/Berlin"),
        COUNTS,
        lambda text: pandas.to_datetime(text).value,
    ),
    "duration": (pyarrow.duration("ns"), COUNTS, lambda text: pandas.to_timedelta(text).value),
    "time": (pyarrow.time64("ns"), OF_A_DAY, nanoseconds_of_time),
    "uint64": (pyarrow.uint64(), st.integers(0, 2**64 - 1), int),
}


@hypothesis.settings(max_examples=30, deadline=None)
@hypothesis.given(data=st.data(), name=st.sampled_from([*TYPES]))
def test_any_value_of_parquet_is_read_again_to_the_nanosecond(data, name, tmp_path_factory):
    kind, counts, read = TYPES[name]
    values = data.draw(st.lists(st.none() | counts, min_size=1, max_size=4))
    columns = {
        "one": pyarrow.array(values, kind),
        "list": pyarrow.array([values] * len(values), pyarrow.list_(kind)),
        "object": pyarrow.array([{"at": value} for value in values], pyarrow.struct({"at": kind})),
    }
    folder = tmp_path_factory.mktemp("tables")
    table = pyarrow.table(columns)
    parquet.write_table(table, folder / "new.parquet")
    records = [record for _, record in read_records(folder / "new.parquet")[1]]
    for record in records:
        check_writable(".csv", "row 1", record)
        check_writable(".parquet", "row 1", record, has_types=True)
    with (folder / "again.parquet").open("wb") as file:
        write_records(file_schema(folder / "new.parquet"), records, file)
    assert parquet.read_table(folder / "again.parquet").equals(table)
    content = format_records(".csv", [*columns], records).decode()
    lines = format_records(".jsonl", [*columns], records).decode().splitlines()
    cells_of_rows = csv.reader(io.StringIO(content), strict=True)
    for value, cells, line in zip(values, cells_of_rows, lines, strict=True):
        written = json.loads(line)
        items = [None if item is None else read(str(item)) for item in written["list"]]
        assert items == values
        assert json.loads(cells[1]) == written["list"]
        assert json.loads(cells[2]) == written["object"]
        if value is None:
            assert (cells[0], written["one"], written["object"]) == ("", None, {"at": None})
        else:
            assert (read(cells[0]), read(str(written["one"]))) == (value, value)
            assert read(str(written["object"]["at"])) == value


def test_a_date_beyond_pythons_years_is_an_error_of_its_file(tmp_path):
    path = tmp_path / "new.parquet"
    parquet.write_table(
        pyarrow.table({"at": pyarrow.array([10**12], pyarrow.timestamp("s"))}), path
    )
    with pytest.raises(UserError, match=r"cannot read .*new\.parquet"):
        list(read_records(path)[1])


def test_objects_that_are_all_empty_are_refused_by_their_column():
    with pytest.raises(UserError, match=r"column 'meta' does not fit into Parquet.*write \.jsonl"):
        joint_schema([schema_of(["meta"], [{"meta": {}}])])
    rows = [{"meta": {}}, {"meta": {"a": 1}}]
    schema = joint_schema([schema_of(["meta"], [row]) for row in rows])
    assert schema.field("meta").type == pyarrow.struct({"a": pyarrow.int64()})


@pytest.mark.parametrize("kind", [".csv", ".tsv", ".jsonl"])
def test_dates_decimals_and_durations_of_parquet_are_read_again(kind, tmp_path):
    values = {
        "day": MOMENT.date(),
        "seen": MOMENT,
        "at": time(9, 30),
        "price": Decimal("12.50"),
        "took": timedelta(days=1, seconds=5),
        "days": [date(2024, 5, 17)],
    }
    path = tmp_path / "new.parquet"
    parquet.write_table(pyarrow.Table.from_pylist([values]), path)
    ((_, record),) = read_records(path)[1]
    check_writable(kind, "row 1", record)
    content = format_records(kind, list(values), [record]).decode()
    if kind == ".jsonl":
        written = json.loads(content)
        assert written.pop("days") == ["2024-05-17"]
    else:
        delimiter = "," if kind == ".csv" else "\t"
        reader = csv.reader(io.StringIO(content), delimiter=delimiter)
        (cells,) = reader if kind == ".csv" else [content.rstrip("\n").split("\t")]
        written = dict(zip(values, cells, strict=True))
        assert json.loads(written.pop("days")) == ["2024-05-17"]
    assert date.fromisoformat(written["day"]) == values["day"]
    assert pandas.to_datetime(written["seen"]) == MOMENT
    assert time.fromisoformat(written["at"]) == values["at"]
    assert Decimal(written["price"]) == values["price"]
    assert pandas.to_timedelta(written["took"]) == values["took"]


@hypothesis.given(st.timedeltas(timedelta(days=-9000), timedelta(days=9000)))
def test_any_duration_is_read_again(duration):
    text = format_records(".csv", ["took"], [{"took": duration}]).decode().strip()
    assert pandas.to_timedelta(text).to_pytimedelta() == duration


def test_what_a_kind_cannot_hold_is_refused_by_its_row():
    with pytest.raises(UserError, match="a tab or line break in"):
        check_writable(".tsv", "row 3", {"no\tte": "x"})
    for value in (b"\xff", [b"\xff"], {"key": b"\xff"}):
        with pytest.raises(UserError, match=r"row 3: .key. has bytes.*write .parquet"):
            check_writable(".csv", "row 3", {"key": value})
        check_writable(".parquet", "row 3", {"key": value})
    with pytest.raises(UserError, match=r"'count' has a whole number of more than 64 bits"):
        check_writable(".parquet", "row 3", {"count": 2**70})
    with pytest.raises(UserError, match=r"'count' has a whole number of more than 64 bits"):
        check_writable(".parquet", "row 3", {"count": [{"of": [2**63]}]})
    check_writable(".jsonl", "row 3", {"count": 2**70})
    with pytest.raises(UserError, match="'share' has an infinite number"):
        check_writable(".jsonl", "row 3", {"share": math.inf})
    for value in ([-math.inf], {"key": math.nan}, [[{"key": [math.nan]}]]):
        for kind in (".jsonl", ".csv", ".tsv"):
            with pytest.raises(UserError, match="'share' has NaN or an infinite number in a list"):
                check_writable(kind, "row 3", {"share": value})
        check_writable(".parquet", "row 3", {"share": value})
    check_writable(".jsonl", "row 3", {"share": math.nan})  # pandas' null


def test_a_gzipped_parquet_is_named(tmp_path):
    with pytest.raises(UserError, match=r"gunzip it, or name it \.parquet"):
        read_records(tmp_path / "new.parquet.gz")


@pytest.mark.parametrize("score", [1234567.891, 16777217.0, 0.1, -3.25, 1e-7])
def test_a_value_keeps_its_digits(score):
    """A label is a float64, a model's answer a float32: the text spells each exactly."""
    task = Task("custom", "", "", labels=(), metric="corr")
    assert float(label_text(task, score)) == score
    assert np.float32(label_text(task, np.float32(score))) == np.float32(score)
