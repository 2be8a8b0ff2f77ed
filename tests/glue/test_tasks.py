"""The tasks: names, labels, metrics, and official files."""

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from elbert import UserError
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
