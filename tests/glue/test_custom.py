"""The user's own task: its files, its labels, and what is refused."""

import json

import pytest

from glue.custom import Columns, custom_task
from glue.tasks import primary_metric, read_examples
from modeling.errors import UserError
from tests.conftest import write

ROWS = [("good, he said", "b"), ('a "quoted"\nline', "a")]
SAME_ROWS = {
    ".csv": 'sentence1,label\n"good, he said",b\n"a ""quoted""\nline",a\n',
    ".tsv": 'sentence1\tlabel\ngood, he said\tb\na "quoted"\\nline\ta\n',
    ".jsonl": "".join(json.dumps({"sentence1": s, "label": c}) + "\n\n" for s, c in ROWS),
}


@pytest.mark.parametrize("suffix", SAME_ROWS)
def test_csv_tsv_and_json_lines_hold_the_same_examples(tmp_path, suffix):
    task = custom_task(train_file=write(tmp_path / f"mine{suffix}", SAME_ROWS[suffix]))
    assert task.labels == ("a", "b")
    examples = read_examples(task, "ignored", "train")
    # A TSV has no quoting and no escapes, so it cannot say a line break.
    texts = [text.replace("\n", "\\n") if suffix == ".tsv" else text for text, _ in ROWS]
    assert examples == [("0", texts[0], None, 1), ("1", texts[1], None, 0)]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["no", "yes", "no"], ("no", "yes")),
        (["10", "9", "10"], ("9", "10")),
        (["1.0", "0.0"], ("0.0", "1.0")),
        (["1", "2.5"], ()),
        (["x", "2.5"], ("2.5", "x")),
    ],
)
def test_labels_are_discovered_and_a_fraction_makes_it_regression(tmp_path, labels, expected):
    rows = "".join(f"text,{label}\n" for label in labels)
    path = write(tmp_path / "train.csv", "sentence1,label\n" + rows)
    task = custom_task(train_file=path)
    assert task.labels == expected
    assert task.is_regression == (not expected)
    assert primary_metric(task) == ("acc" if expected else "corr")


def test_labels_come_from_the_training_file_and_bind_the_others(tmp_path):
    header = "sentence1\tsentence2\tlabel\n"
    train = write(tmp_path / "t.tsv", header + "a\tb\tyes\nc\td\tno\n")
    dev = write(tmp_path / "d.tsv", header + "e\tf\tperhaps\n")
    with pytest.raises(UserError, match="alone does not tell the labels"):
        custom_task(test_file=dev)
    assert custom_task(test_file=dev, labels=["yes", "no"]).labels == ("yes", "no")
    task = custom_task(train, dev)
    assert read_examples(task, "", "train")[0] == ("0", "a", "b", 1)
    with pytest.raises(UserError, match=r"d\.tsv, line 2: label 'perhaps' is not one of: no, yes"):
        read_examples(task, "", "dev")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.txt", "", r"must end in one of: \.csv"),
        ("t.csv", "", "is empty"),
        ("t.csv", "sentence1,label\n", "has no examples"),
        ("t.csv", "text,label\na,b\n", "no column 'sentence1'; the columns are: text, label"),
        ("t.csv", "sentence1,label\na,x\nb,x\n", "the only label is 'x'"),
        ("t.csv", "sentence1,label\na,x\nb,\n", "line 3: no label"),
        ("t.csv", 'sentence1,label\n"a\nb",x\n"c,y\nd\n', "line 4: not valid CSV"),
        ("t.jsonl", '{"sentence1": "a", "label": 1}\n{"sent', "line 2: not valid JSON"),
        ("t.jsonl", '{"sentence1": "\\ud800", "label": 1}', "line 1: not valid JSON"),
        ("t.json", '[{"sentence1": "a"}]', "line 1: expected one JSON object a line"),
        ("t.jsonl", '{"sentence1": "a", "label": null}', "no column 'label'"),
    ],
)
def test_a_bad_file_of_the_users_is_refused(tmp_path, name, content, message):
    path = write(tmp_path / name, content)
    with pytest.raises(UserError, match=message):
        read_examples(custom_task(train_file=path), "", "train")


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_columns_may_have_other_names(tmp_path, suffix):
    rows = [{"question": "why", "context": "because", "answer": x} for x in ("no", "yes")]
    lines = [json.dumps(row) for row in rows]
    if suffix == ".csv":
        lines = [",".join(row) for row in (rows[0], *(row.values() for row in rows))]
    path = write(tmp_path / f"mine{suffix}", "\n".join(lines) + "\n")
    task = custom_task(train_file=path, named=Columns.named("question, context", "answer"))
    assert task.labels == ("no", "yes")
    assert read_examples(task, "", "train")[0][1:] == ("why", "because", 0)
    single = custom_task(train_file=path, named=Columns.named("context", "answer"))
    assert read_examples(single, "", "train")[1][1:] == ("because", None, 1)
    with pytest.raises(UserError, match="--text_column_names a,b,c"):
        Columns.named("a,b,c", None)
