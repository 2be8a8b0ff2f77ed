"""The tasks: names, labels, metrics, and official files."""

import json
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pandas
import pyarrow
import pytest
from pyarrow import parquet

from elbert import UserError
from glue.custom import custom_task, join_column_names, split_column_names
from glue.splits import Example, read_examples
from glue.submission import submission_text
from glue.tasks import TASKS, get_task, prediction_tasks
from tests.conftest import write

GLUE = Path(os.environ.get("GLUE_DATA") or Path(__file__).parents[3] / "shared" / "glue_data")
needs_glue = pytest.mark.skipif(not GLUE.is_dir(), reason="no GLUE data")


def test_a_task_goes_by_every_usual_spelling():
    for name, spellings in {
        "cola": ["CoLA"],
        "sst-2": ["SST2", "sst_2", "SST"],
        "sts-b": ["STSB", "stsb"],
        "mnli": ["MNLI", "mnli-m"],
        "mnli-mm": ["mnli_mm", "MNLI_mismatched"],
        "ax": ["AX", "diagnostic"],
    }.items():
        assert {get_task(spelling).name for spelling in spellings} == {name}
    with pytest.raises(UserError, match=r"'qnil'; did you mean qnli\?.*cola, sst-2.*wnli, ax"):
        get_task("qnil")


# The table, against what the transformers 2.7 processors and gluebenchmark.com publish.


def test_labels_are_in_the_published_order():
    nli = ["contradiction", "entailment", "neutral"]
    entailment = ["entailment", "not_entailment"]
    published = {"mnli": nli, "mnli-mm": nli, "ax": nli, "qnli": entailment, "rte": entailment}
    for name, task in TASKS.items():
        expected = [] if name == "sts-b" else published.get(name, ["0", "1"])
        assert list(task.labels) == expected
        assert task.num_labels == max(1, len(expected))
        assert task.is_regression == (name == "sts-b")


def test_mnli_predicts_the_diagnostic_where_its_file_is(tmp_path):
    mnli = tmp_path / "MNLI"
    mnli.mkdir()
    names = [task.name for task in prediction_tasks(get_task("mnli"), mnli)]
    assert names == ["mnli", "mnli-mm"]
    (tmp_path / "diagnostic").mkdir()
    write(tmp_path / "diagnostic/diagnostic.tsv", "index\tsentence1\tsentence2\n7\ta\tb\n")
    *_, ax = prediction_tasks(get_task("mnli"), mnli)
    assert ax.name == "ax"
    assert read_examples(ax, mnli, "test") == [("7", "a", "b", None)]
    assert prediction_tasks(get_task("rte"), mnli) == [get_task("rte")]


def examples_of(count: int) -> list[Example]:
    return [Example(str(10 + i), "a", "b", None) for i in range(count)]


@pytest.mark.parametrize(
    ("name", "predictions", "lines"),
    [
        ("mnli", [0, 1, 2], ["contradiction", "entailment", "neutral"]),
        ("ax", [2], ["neutral"]),
        ("rte", np.array([1, 0]), ["not_entailment", "entailment"]),
        ("qqp", [0, 1], ["0", "1"]),
        ("sts-b", np.array([-0.4, -0.0, 3.14159, 5.2], "f4"), ["0.000", "0.000", "3.142", "5.000"]),
    ],
)
def test_a_submission_is_the_official_file(name, predictions, lines):
    text = submission_text(get_task(name), examples_of(len(lines)), predictions)
    rows = [f"{10 + i}\t{label}\n" for i, label in enumerate(lines)]
    assert text == "index\tprediction\n" + "".join(rows)


# Each file, and its lines, header included, as the GLUE server asks for them.
OFFICIAL_LINES = {
    "AX.tsv": 1105,
    "CoLA.tsv": 1064,
    "MNLI-m.tsv": 9797,
    "MNLI-mm.tsv": 9848,
    "MRPC.tsv": 1726,
    "QNLI.tsv": 5464,
    "QQP.tsv": 390966,
    "RTE.tsv": 3001,
    "SST-2.tsv": 1822,
    "STS-B.tsv": 1380,
    "WNLI.tsv": 147,
}


def test_the_official_files_have_their_names():
    assert {task.submission for task in TASKS.values()} == OFFICIAL_LINES.keys()


# The real files: every line but the header is an example; dev label counts as published.


@needs_glue
@pytest.mark.realdata
@pytest.mark.parametrize(
    ("folder", "task", "dev_counts"),
    [
        ("CoLA", "cola", {0: 322, 1: 721}),
        ("SST-2", "sst-2", {0: 428, 1: 444}),
        ("MRPC", "mrpc", {0: 129, 1: 279}),
        ("RTE", "rte", {0: 146, 1: 131}),
        ("STS-B", "sts-b", None),
        ("MNLI-from-SICK", "mnli", None),
        ("MNLI-from-SICK", "mnli-mm", None),
    ],
)
def test_the_real_files_are_read_whole(folder, task, dev_counts):
    glue_task = get_task(task)
    for split, name in glue_task.files.items():
        if not (GLUE / folder / name).exists():
            continue
        examples = read_examples(glue_task, GLUE / folder, split)
        lines = (GLUE / folder / name).read_bytes().rstrip(b"\n").count(b"\n") + 1
        header = task != "cola" or split == "test"
        assert len(examples) == lines - header
        if split == "dev" and dev_counts:
            assert Counter(e.label for e in examples) == dev_counts
        if split == "test":
            assert len(examples) + 1 == OFFICIAL_LINES[glue_task.submission]
            assert [e.index for e in examples] == [str(i) for i in range(len(examples))]


# Labels as lists.


@pytest.mark.parametrize(
    "rows", [[[1, 0, 1], [0, 0, 1]], [[1.0, 0.0], [0.0, 1.0]], [[True, False], [False, True]]]
)
@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_marks_of_labels_are_no_names(rows, suffix, tmp_path):
    path = tmp_path / f"train{suffix}"
    records = [{"sentence1": "a text", "label": row} for row in rows]
    if suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(records), path)
    else:
        path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    with pytest.raises(UserError, match=f"a list of {len(rows[0])} zeros and ones"):
        custom_task({"train": path}, task_type="multi_label")


def test_lists_of_class_numbers_are_names(tmp_path):
    """Their lengths differ, or a number is neither 0 nor 1."""
    for rows in ([[0], [1], [0, 1]], [[0, 2], [1, 0]]):
        path = tmp_path / "train.jsonl"
        lines = [json.dumps({"sentence1": "a", "label": row}) for row in rows]
        path.write_text("\n".join(lines))
        task = custom_task({"train": path}, task_type="multi_label")
        assert task.labels == tuple(sorted({str(number) for row in rows for number in row}))


@pytest.mark.parametrize("cell", ["[1, 0, 1]", "['neg', 'odd']", "[1. 0.]", "['a b']", "[]"])
@pytest.mark.parametrize("flags", [{}, {"separator": ","}, {"task_type": "multi_label"}])
def test_a_list_that_pandas_wrote_as_text_is_no_label(cell, flags, tmp_path):
    path = tmp_path / "train.csv"
    pandas.DataFrame({"sentence1": ["a", "b"], "label": ["pos", cell]}).to_csv(path, index=False)
    with pytest.raises(UserError, match=r"line 3: label .* is a list that was written as text"):
        custom_task({"train": path}, **flags)


def test_a_label_in_brackets_is_a_label(tmp_path):
    path = tmp_path / "train.csv"
    path.write_text("sentence1,label\na,[INST]\nb,[sic!]\n")
    assert custom_task({"train": path}).labels == ("[INST]", "[sic!]")


def test_figures_and_tables_call_a_table_of_ones_own_by_its_file(tmp_path):
    path = tmp_path / "train.csv"
    path.write_text("sentence1,label\na,x\nb,y\n")
    assert custom_task({"train": path}).shown_name == "train.csv"


def test_a_column_called_text_needs_no_flag(tmp_path):
    for header, columns in (("text", ("text",)), ("sentence1", ("sentence1",))):
        path = tmp_path / f"{header}.csv"
        path.write_text(f"{header},label\na,x\nb,y\n")
        assert custom_task({"train": path}).text_columns == columns
    path.write_text("text,sentence1,label\na,b,x\nb,c,y\n")
    assert custom_task({"train": path}).text_columns == ("sentence1",)


@pytest.mark.parametrize("names", [("a",), ("a", "b"), ("What, in short?",), ('say "x"', "b, c")])
def test_a_column_of_any_name_can_be_named(names, tmp_path):
    assert split_column_names(join_column_names(names)) == names
    path = tmp_path / "train.csv"
    pandas.DataFrame({name: ["x", "y"] for name in (*names, "label")}).to_csv(path, index=False)
    task = custom_task({"train": path}, text_columns=join_column_names(names))
    assert [example.text_a for example in read_examples(task, "", "train")] == ["x", "y"]


def test_three_names_of_columns_are_refused_with_how_a_comma_is_quoted(tmp_path):
    path = tmp_path / "train.csv"
    path.write_text("a,label\nx,y\n")
    with pytest.raises(UserError, match="a name with a comma stands in double quotes"):
        custom_task({"train": path}, text_columns="What happened, in short, here?")
