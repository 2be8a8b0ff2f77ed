"""GLUE's files and the user's own: what is read, and bad ones, named with file and line."""

import csv
import gzip
import io
import json
import os
import re
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from evaluation.scored_tables import find_tables
from glue.custom import custom_task, task_type_of
from glue.splits import Example, Split, read_examples
from glue.survey import TextSurvey
from glue.table_writing import format_records, header_line
from glue.tables import LARGEST_CELL, as_csv, read_records, read_table, text_cells
from glue.tasks import ENTAILMENT, get_task
from modeling.errors import UserError
from tests.conftest import write
from training.teacher import unlabelled_examples


def read_rte(directory: Path, content: str | bytes, split: str = "dev") -> list[Example]:
    write(directory / f"{split}.tsv", content)
    return read_examples(get_task("rte"), directory, split)


RTE_HEADER = "index\tsentence1\tsentence2\tlabel\n"
# One file of each layout, with the expected example worked out by hand.
LAYOUTS = [
    ("cola", "train", "gj04\t1\t\tOne.\ngj04\t0\t*\tTwo.\n", [("0", "One.", None, 1)]),
    ("cola", "test", "index\tsentence\n0\tOne.\n", [("0", "One.", None, None)]),
    ("sst-2", "dev", "sentence\tlabel\nfine \t1\n", [("0", "fine ", None, 1)]),
    (
        "mrpc",
        "dev",
        '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n1\t8\t9\the "a\tb\r\n',
        [("0", 'he "a', "b", 1)],
    ),
    (
        "mrpc",
        "test",
        "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n5\t8\t9\ta\tb\n",
        [("5", "a", "b", None)],
    ),
    (
        "sts-b",
        "dev",
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
        "3\tg\tf\ty\to\ts\ts\ta\tb\t3.250\n",
        [("0", "a", "b", 3.25)],
    ),
    (
        "qqp",
        "dev",
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n133273\t1\t2\ta\tb\t0\n",
        [("0", "a", "b", 0)],
    ),
    ("qqp", "test", "id\tquestion1\tquestion2\n4\ta\tb\n", [("4", "a", "b", None)]),
    (
        "mnli",
        "train",
        "index\tsentence1\tsentence2\tlabel1\tgold_label\n0\ta\tb\tx\tneutral\n",
        [("0", "a", "b", 2)],
    ),
    (
        "mnli-mm",
        "dev",
        "index\tsentence1\tsentence2\tlabel1\tlabel2\tgold_label\n0\ta\tb\tx\ty\tcontradiction\n",
        [("0", "a", "b", 0)],
    ),
    (
        "qnli",
        "dev",
        "index\tquestion\tsentence\tlabel\n0\tq\ts\tnot_entailment\n",
        [("0", "q", "s", 1)],
    ),
    ("rte", "train", RTE_HEADER + "0\ta\tb\tentailment", [("0", "a", "b", 0)]),
    ("wnli", "dev", RTE_HEADER + "0\ta\tb\t1\n", [("0", "a", "b", 1)]),
    ("ax", "test", "index\tsentence1\tsentence2\n0\ta\tb\n", [("0", "a", "b", None)]),
]


@pytest.mark.parametrize(("name", "split", "content", "expected"), LAYOUTS)
def test_each_published_layout_is_read(tmp_path, name, split, content, expected):
    task = get_task(name)
    write(tmp_path / task.files[split], content)
    assert read_examples(task, tmp_path, split, limit=1) == expected


def test_texts_keep_quotes_stray_separators_and_may_be_empty(tmp_path):
    rows = '0\t"open\t\tentailment\n1\ta\u2028b\rc\t"d" \tnot_entailment\n\n'
    examples = read_rte(tmp_path, RTE_HEADER + rows)
    assert [pair[1:] for pair in examples] == [('"open', "", 0), ("a\u2028b\rc", '"d" ', 1)]


# Bad files. The line is that of the fault.


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"dev\.tsv is empty"),
        ("\ufeff", r"dev\.tsv, line 1: no column 'sentence1'"),
        (RTE_HEADER, r"dev\.tsv has no examples"),
        ("index\tsentence1\tlabel\n", "line 1: no column 'sentence2'.* index, sentence1, label"),
        ("label\t" + RTE_HEADER, "line 1: two columns 'label'"),
        (RTE_HEADER + "0\ta\tb\tentailment\n1\ta\n", "line 3: no 'sentence2'.*2 of 4 columns"),
        (RTE_HEADER + "0\ta\tb\tmaybe\n", "line 2: label 'maybe'.*: entailment, not_entailment"),
        (RTE_HEADER.encode() + b"0\ta\tb\xff\tentailment\n", r"line 2: byte 6 \(0xff\) is not UTF"),
        (RTE_HEADER.encode("utf-16"), "line 1: byte 1 .* is not UTF-8"),
    ],
)
def test_a_bad_file_is_refused_with_file_and_line(tmp_path, content, message):
    with pytest.raises(UserError, match=message) as caught:
        read_rte(tmp_path, content)
    assert str(tmp_path) in str(caught.value)


def test_a_file_that_is_not_there_is_named_with_what_to_do(tmp_path):
    (tmp_path / "RTE").mkdir()
    with pytest.raises(UserError, match=rf"--data_dir {tmp_path} --tasks RTE"):
        read_examples(get_task("rte"), tmp_path / "RTE", "dev")
    write(tmp_path / "RTE" / "dev.tsv", RTE_HEADER)
    assert Split(get_task("rte"), tmp_path, "dev").path == tmp_path / "RTE/dev.tsv"
    with pytest.raises(UserError, match="ax has no dev file, only: test"):
        read_examples(get_task("ax"), tmp_path, "dev")
    (tmp_path / "dev.tsv").mkdir()
    with pytest.raises(UserError, match=r"dev\.tsv is no regular file"):
        read_examples(get_task("rte"), tmp_path, "dev")


def test_short_rows_are_skipped_in_qqp_train_alone_and_counted_once(tmp_path, caplog):
    rows = "1\t2\t3\tq\tr\t1\n2\t3\t4\tcut\nin two\t0\n3\t4\t5\ts\tt\t0\n"
    for name in ("train.tsv", "dev.tsv"):
        write(tmp_path / name, "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n" + rows)
    assert [e.label for e in read_examples(get_task("qqp"), tmp_path, "train")] == [1, 0]
    (record,) = caplog.records
    assert "skipped 2 short rows, the first at line 3" in record.getMessage()
    with pytest.raises(UserError, match="line 3: no 'question2'"):
        read_examples(get_task("qqp"), tmp_path, "dev")


TEXTS = ["good, he said", 'a "quoted"\nline']
ROWS = [{"sentence1": TEXTS[0], "label": "b"}, {"sentence1": TEXTS[1], "label": "a"}]
SAME_ROWS = {
    ".csv": 'sentence1,label\n"good, he said",b\n"a ""quoted""\nline",a\n',
    ".tsv": 'sentence1\tlabel\ngood, he said\tb\na "quoted"\\nline\ta\n',
    ".jsonl": "".join(json.dumps(row) + "\n\n" for row in ROWS),
}


@pytest.mark.parametrize("suffix", [*SAME_ROWS, ".csv.gz", ".parquet"])
def test_tables_of_every_kind_hold_the_same_examples(tmp_path, suffix):
    path = tmp_path / f"mine{suffix}"
    if suffix == ".parquet":
        table = pytest.importorskip("pyarrow").Table.from_pylist(ROWS)
        pytest.importorskip("pyarrow.parquet").write_table(table, path)
    else:
        content = SAME_ROWS[suffix.removesuffix(".gz")].encode()
        write(path, gzip.compress(content) if suffix.endswith(".gz") else content)
    task = custom_task({"train": path})
    assert task.labels == ("a", "b")
    examples = read_examples(task, "ignored", "train")
    # A TSV has no quoting and no escapes, so it cannot say a line break.
    texts = [text.replace("\n", "\\n") if suffix == ".tsv" else text for text in TEXTS]
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
    task = custom_task({"train": path})
    assert task.labels == expected
    assert task.is_regression == (not expected)
    assert task.primary_metric == ("acc" if expected else "corr")


def test_labels_come_from_the_training_file_and_bind_the_others(tmp_path):
    header = "sentence1\tsentence2\tlabel\n"
    train = write(tmp_path / "t.tsv", header + "a\tb\tyes\nc\td\tno\n")
    dev = write(tmp_path / "d.tsv", header + "e\tf\tperhaps\n")
    with pytest.raises(UserError, match="alone does not tell the labels"):
        custom_task({"test": dev})
    with pytest.raises(UserError, match=r"labels yes, no; .*d\.tsv has perhaps: they have no name"):
        custom_task({"test": dev}, labels=["yes", "no"])
    task = custom_task({"train": train, "dev": dev})
    assert read_examples(task, "", "train")[0] == ("0", "a", "b", 1)
    with pytest.raises(UserError, match=r"d\.tsv, line 2: label 'perhaps' is not one of: no, yes"):
        read_examples(task, "", "dev")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.txt", "", r"must end in one of: \.csv"),
        ("t.csv", "", "is empty"),
        ("t.csv", "sentence1,label\n", "has no examples"),
        ("t.csv", "review,label\na,b\n", "no column 'sentence1'; the columns are: review, label"),
        ("t.csv", "sentence1,label\na,x\nb,x\n", "the only label is 'x'"),
        ("t.csv", "sentence1,label\na,x\nb,\n", "line 3: no label"),
        ("t.csv", "sentence1,label\na,x\nb,1\nc,1.0\n", "are the same number"),
        ("t.csv", 'sentence1,label\n"a\nb",x\n"c,y\nd\n', "line 4: not valid CSV"),
        ("t.tsv", "sentence1\tlabel\na\t0\nb\tnan\n", "nan.*finite"),
        ("t.tsv", "sentence1\tlabel\na\t0\nb\t1\tc\n", "line 3.* 2 columns"),
        ("t.jsonl", '{"sentence1": "a", "label": 1}\n{"sent', "line 2: not valid JSON"),
        ("t.jsonl", '{"sentence1": "\\ud800", "label": 1}', "line 1: not valid JSON"),
        (
            "t.jsonl",
            '{"sentence1": "a", "label": 1, "note": {"x": 1, "x": 2}}',
            "line 1: not valid JSON: the key 'x' stands twice",
        ),
        (
            "t.json",
            '{"sentence1": ["a", "b"], "label": [0, 1], "label": [1, 0]}',
            "not valid JSON: the key 'label' stands twice",
        ),
        ("t.json", '[{"sentence1": "a"}]', "no column 'label'; the columns are: sentence1"),
        ("t.json", '[["a", "x"]]', 'row 1: expected an object.*orient="records"'),
        ("t.json", '{"0": {"0": "a", "1": "b"}, "1": {"0": "x"}}', "numbers for names.*records"),
        ("t.jsonl", '{"sentence1": "a", "label": null}', "line 1: no 'label'.*--drop_incomplete"),
        ("t.jsonl", '{"sentence1": "a", "label": NaN}', "line 1: no 'label'"),
        ("t.jsonl", '{"sentence1": NaN, "label": 1}', "line 1: no 'sentence1'"),
        (
            "t.jsonl",
            '{"sentence1": "a", "sentence2": null, "label": 1}\n'
            '{"sentence1": "a", "sentence2": "b", "label": 0}\n',
            "line 1: no 'sentence2'",
        ),
        (
            "t.jsonl",
            '{"sentence1": "a", "label": 1}\n{"sentence1": "a", "sentence2": "b", "label": 0}\n',
            "line 1: no 'sentence2'",
        ),
    ],
)
def test_a_bad_file_of_the_users_is_refused(tmp_path, name, content, message):
    path = write(tmp_path / name, content)
    with pytest.raises(UserError, match=message):
        read_examples(custom_task({"train": path}), "", "train")


TEXT_CHARACTERS = st.characters(exclude_categories=["Cs"])
PANDAS_ROWS = [{"sentence1": 'a "b"\n', "label": "x"}, {"sentence1": "c\td", "label": "y"}]
JSON_LAYOUTS = {
    "array": json.dumps(PANDAS_ROWS),
    "array over lines": json.dumps(PANDAS_ROWS, indent=1),
    "lists": json.dumps({name: [row[name] for row in PANDAS_ROWS] for name in PANDAS_ROWS[0]}),
}


@pytest.mark.parametrize("layout", [*JSON_LAYOUTS, "columns", "index", "split", "table", "records"])
def test_every_layout_that_pandas_writes_is_read(tmp_path, layout):
    content = JSON_LAYOUTS.get(layout)
    if content is None:
        content = pytest.importorskip("pandas").DataFrame(PANDAS_ROWS).to_json(orient=layout)
    task = custom_task({"train": write(tmp_path / "t.json", content)})
    texts = [(row[1], row[3]) for row in read_examples(task, "", "train")]
    assert texts == [('a "b"\n', 0), ("c\td", 1)]


def test_cells_that_pandas_quotes_in_a_tsv_are_the_texts_within(tmp_path):
    texts = ['says ""no"" twice', '"all" of it', '"', "plain", 'an "inner" one', '"half']
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"sentence1": texts, "label": [*"xyxyxy"]})
    path = tmp_path / "t.tsv"
    frame.to_csv(path, sep="\t", index=False)
    task = custom_task({"train": path})
    assert [example.text_a for example in read_examples(task, "", "train")] == texts
    # classify.py reads the same texts, and pandas those that it writes.
    columns, records = read_records(path)
    rows = [record for _, record in records]
    assert [row["sentence1"] for row in rows] == texts
    written = header_line(".tsv", columns) + format_records(".tsv", columns, rows)
    again = pandas.read_csv(io.BytesIO(written), sep="\t", keep_default_na=False)
    assert again["sentence1"].tolist() == texts
    as_in_glue = [record["sentence1"] for _, record in read_records(path, keeps_quotes=True)[1]]
    assert as_in_glue[0] == '"says """"no"""" twice"'
    plain = write(path, 'sentence1\tlabel\n"a" or "b"\tx\n"half\ty\n')
    examples = read_examples(custom_task({"train": plain}), "", "train")
    assert [example.text_a for example in examples] == ['"a" or "b"', '"half']


@pytest.mark.parametrize("columns", [["text", "label"], ["label", "text"], ["id", "text", "label"]])
def test_a_quoted_cell_of_a_tsv_that_goes_on_over_lines_is_no_row_on_each(tmp_path, columns):
    pandas = pytest.importorskip("pandas")
    texts = ["good", 'has "a word" and\n\nthree\nlines', "bad"]
    frame = pandas.DataFrame({"id": [1, 2, 3], "text": texts, "label": ["x", "y", "x"]})
    frame[columns].to_csv(tmp_path / "t.tsv", sep="\t", index=False)
    with pytest.raises(UserError, match=r"t.tsv, line 3: a quote opens .*\.csv"):
        list(read_records(tmp_path / "t.tsv")[1])
    errors = []
    _, records = read_records(tmp_path / "t.tsv", on_error=errors.append)
    assert [record["text"] for _, record in records] == ["good", "bad"]
    assert len(errors) == 4
    # Tabs within may make a line as wide as the table.
    frame = pandas.DataFrame({"text": ["one\ntwo\tthree\nfour", "ok"], "note": ["a\nb", "x"]})
    frame.to_csv(tmp_path / "t.tsv", sep="\t", index=False)
    _, records = read_records(tmp_path / "t.tsv", on_error=errors.append)
    assert [record["text"] for _, record in records] == ["ok"]
    # Lines of a dialogue, each of which is a row.
    dialogue = ['"I do not know."', '"I do', "not", 'know."', '"Nor do I.']
    lines = [f"{number}\t{text}\n" for number, text in enumerate(dialogue)]
    write(tmp_path / "t.tsv", "id\ttext\n" + "".join(lines))
    rows = [record for _, record in read_records(tmp_path / "t.tsv")[1]]
    assert [row["text"] for row in rows] == ["I do not know.", *dialogue[1:]]
    # A text may begin with a quote and lack what is behind it.
    write(tmp_path / "t.tsv", 'id\ttext\tlabel\n1\t"Hello there\n2\tfine\tx\n3\t"so\n')
    rows = [record for _, record in read_records(tmp_path / "t.tsv")[1]]
    assert [row["text"] for row in rows] == ['"Hello there', "fine", '"so']


def test_lines_that_one_column_of_a_tsv_has_quoted_together_are_rows_with_a_warning(
    tmp_path, caplog
):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"text": ["good", "one\ntwo\nthree", "bad"]})
    frame.to_csv(tmp_path / "t.tsv", sep="\t", index=False)
    assert len(list(read_records(tmp_path / "t.tsv")[1])) == 5
    assert "line 3: a quote opens" in caplog.text


@given(st.lists(st.tuples(st.text(TEXT_CHARACTERS), st.text(TEXT_CHARACTERS)), min_size=1))
def test_any_text_that_is_read_can_be_written_and_read_again(tmp_path_factory, texts):
    rows = [{"a": first, "b": second} for first, second in texts]
    path = tmp_path_factory.getbasetemp() / "round_trip.csv"
    path.write_bytes(as_csv(rows).encode())
    assert [dict(row) for _, row in read_table(path)[1]] == rows


@settings(max_examples=20)
@given(texts=st.lists(st.text(TEXT_CHARACTERS), min_size=2), ends=st.sampled_from(["", '"']))
@pytest.mark.parametrize("kind", [".csv", ".tsv", ".jsonl", ".parquet", "GLUE"])
def test_every_door_reads_the_same_texts(tmp_path_factory, kind, texts, ends):
    """Of a training's file, of its unlabelled texts, and of what classify.py answers."""
    pandas = pytest.importorskip("pandas")
    if kind in (".tsv", "GLUE"):
        texts = [re.sub(r"[\t\r\n]", " ", text) for text in texts]
    texts = [ends + text + ends for text in texts]
    labels = [ENTAILMENT[number % 2] for number in range(len(texts))]
    frame = pandas.DataFrame({"sentence1": texts, "sentence2": texts, "label": labels})
    path = tmp_path_factory.getbasetemp() / f"doors{'.tsv' if kind == 'GLUE' else kind}"
    if kind == "GLUE":
        lines = ["\t".join(row) for row in [list(frame), *frame.to_numpy().tolist()]]
        path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    elif kind == ".parquet":
        frame.to_parquet(path)
    elif kind == ".jsonl":
        frame.to_json(path, orient="records", lines=True)
    else:
        # pandas quotes a lone carriage return only where it is told to.
        quoting = csv.QUOTE_ALL if "\r" in "".join(texts) else csv.QUOTE_MINIMAL
        separator = "\t" if kind == ".tsv" else ","
        frame.to_csv(path, sep=separator, index=False, quoting=quoting, lineterminator="\n")
    if kind == "GLUE":
        task = replace(get_task("rte"), files={"train": str(path)})
    else:
        task = custom_task({"train": path})
    pairs = [(text, text) for text in texts]
    trained = read_examples(task, "", "train")
    unlabelled = unlabelled_examples(task, str(path))
    _, records = read_records(path, keeps_quotes=kind == "GLUE")
    scored = [text_cells(record) for _, record in records]
    assert [(example.text_a, example.text_b) for example in trained] == pairs
    assert [(example.text_a, example.text_b) for example in unlabelled] == pairs
    assert [(cells["sentence1"], cells["sentence2"]) for cells in scored] == pairs


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([Decimal("1.50"), Decimal("2.00")], ()),
        ([True, False], ("false", "true")),
        ([2**60, 3], ("3", str(2**60))),
        ([1.0, float("nan")], "line 2: no 'label'"),
        ([1.0, float("inf")], r"t\.parquet, line 2: label 'Infinity' is not a finite number"),
        ([["x"], ["x", "y"]], "--task_type multi_label"),
        ([date(2020, 1, 1), date(2021, 1, 1)], "line 1: no 'label'"),
        ([b"x", b"y"], "line 1: no 'label'"),
    ],
)
def test_labels_of_every_type_that_parquet_has_are_read_or_refused(tmp_path, labels, expected):
    arrow = pytest.importorskip("pyarrow")
    path = tmp_path / "t.parquet"
    texts = arrow.array(["a", "b"]).dictionary_encode()  # as pandas writes a categorical column
    table = arrow.table({"sentence1": texts, "label": arrow.array(labels)})
    pytest.importorskip("pyarrow.parquet").write_table(table, path)
    if isinstance(expected, str):
        with pytest.raises(UserError, match=expected):
            custom_task({"train": path})
    else:
        task = custom_task({"train": path})
        assert task.labels == expected
        assert [example.text_a for example in read_examples(task, "", "train")] == ["a", "b"]


@pytest.mark.parametrize(
    ("task_type", "values", "expected"),
    [
        ("classification", [1, 2.5, 1], ("1", "2.5")),
        ("regression", [1, 2, 3], ()),
        ("multi_label", [["b", "a"], [], ["c"]], ("a", "b", "c")),
        (None, [1, 2, 3], ("1", "2", "3")),
    ],
)
def test_a_flag_says_what_the_label_column_means(tmp_path, task_type, values, expected):
    lines = [json.dumps({"sentence1": "a", "label": value}) for value in values]
    path = write(tmp_path / "t.jsonl", "\n".join(lines))
    task = custom_task({"train": path}, task_type=task_type)
    assert task.labels == expected
    assert task_type in (None, task_type_of(task))
    labels = [example.label for example in read_examples(task, "", "train")]
    assert labels == (
        [tuple(float(name in value) for name in expected) for value in values]
        if task.multi_label
        else [expected.index(str(value)) if expected else value for value in values]
    )


def test_a_type_that_is_not_the_models_is_refused(tmp_path):
    path = write(tmp_path / "t.csv", "sentence1,label\na,1\nb,2\n")
    with pytest.raises(UserError, match="--task_type regression: the model has 1, 2"):
        custom_task({"dev": path}, labels=["1", "2"], task_type="regression")
    with pytest.raises(UserError, match="--task_type classification: the model has scores"):
        custom_task({"dev": path}, labels=[], task_type="classification")


def test_incomplete_rows_are_left_out_on_request_and_counted(tmp_path, caplog):
    rows = [("a", "x"), (None, "y"), ("b", "y"), (" ", "x"), ("c", None), (float("nan"), "x")]
    lines = [json.dumps({"sentence1": text, "label": label}) for text, label in rows]
    path = write(tmp_path / "t.jsonl", "\n".join(lines))
    with pytest.raises(UserError, match=r"line 2: no 'sentence1'.*--drop_incomplete_rows"):
        custom_task({"train": path})
    task = custom_task({"train": path, "test": path}, drop_incomplete=True)
    caplog.clear()
    assert [row.text_a for row in read_examples(task, "", "train")] == ["a", "b"]
    assert "skipped 4 incomplete rows, the first at line 2" in caplog.text
    with pytest.raises(UserError, match="line 2"):  # each row of a test file has an answer
        read_examples(task, "", "test")


def test_what_rows_say_about_each_other_is_told(tmp_path):
    train = write(tmp_path / "t.csv", "sentence1,label\na,x\nb,y;z\n a,y;z\nb,y;z\nc,x\n")
    dev = write(tmp_path / "d.csv", "sentence1,label\na ,x\nd,x\n")
    task = custom_task({"train": train, "dev": dev})
    survey = TextSurvey()
    survey.dev(read_examples(task, "", "dev"))
    list(survey.train(read_examples(task, "", "train")))
    starts = ["1 of 2 dev rows", "2 training rows", "1 training texts", "1 labels have a semicolon"]
    for remark, start in zip(survey.remarks(task), starts, strict=True):
        assert remark.startswith(start)


@pytest.mark.parametrize(
    ("labels", "remark"),
    [
        (["Pos", "neg", "pos"], "'Pos', 'pos' differ in case"),
        (["caf\u00e9", "cafe\u0301", "x"], r"'cafe\u0301', 'caf\xe9' differ in case"),
        (["neg", "neg\u200b"], r"'neg', 'neg\u200b' differ in case"),
        (["1.0", "2.5", "N/A"], "2 labels are numbers, some with a fraction, but 'N/A' is not"),
        (["1", "2", "x"], None),
        (["yes", "no"], None),
    ],
)
def test_labels_that_look_like_a_slip_are_told_before_a_training(labels, remark, tmp_path):
    rows = "".join(f"{number},{label}\n" for number, label in enumerate(labels))
    task = custom_task({"train": write(tmp_path / "t.csv", "sentence1,label\n" + rows)})
    remarks = TextSurvey().remarks(task)
    assert len(remarks) == (remark is not None)
    for line in remarks:
        assert remark in line


def test_empty_texts_are_counted_once(tmp_path, caplog):
    path = write(tmp_path / "own.csv", "sentence1,label\na,x\n,y\nb,x\n ,y\n")
    assert len(read_examples(custom_task({"train": path}), "", "train")) == 4
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: 2 examples have an empty text, first at line 3"
    ]


@pytest.mark.parametrize(
    ("labels", "expected", "in_order"),
    [
        (["entailment", "not_entailment"], ("entailment", "not_entailment"), False),
        (["entailment", "entailment"], ("entailment", "not_entailment"), False),
        (["1", "0"], ("0", "1"), True),
        (["yes", "no"], ("no", "yes"), True),
    ],
)
def test_own_labels_are_the_models_or_stand_for_them_in_order(tmp_path, labels, expected, in_order):
    path = write(tmp_path / "dev.csv", "sentence1,label\na,{}\nb,{}\n".format(*labels))
    model_labels = get_task("rte").labels
    if in_order:
        with pytest.raises(UserError, match=r"entailment, not_entailment.* --labels_in_order"):
            custom_task({"dev": path}, labels=model_labels)
    task = custom_task({"dev": path}, labels=model_labels, labels_in_order=in_order)
    assert task.labels == expected
    assert [example.label for example in read_examples(task, "", "dev")] == [
        expected.index(label) for label in labels
    ]


# Labels of a test file, the model's, and the numbers that are read, or words of the error.
@pytest.mark.parametrize(
    ("cells", "model_labels", "expected"),
    [
        (["yes", "no"], ["no", "yes"], [1, 0]),
        (["YES", "No"], ["no", "yes"], [1, 0]),
        (["1", "0"], ["LABEL_0", "LABEL_1"], [1, 0]),
        (["", "", ""], ["no", "yes"], [None] * 3),
        (["-1", "-1"], ["no", "yes"], [None] * 2),  # as the hub's data sets hide them
        (["-1", "1"], ["-1", "0", "1"], [0, 2]),
        (["yes", "purple"], ["no", "yes"], "purple has no counterpart"),
        (["1", "0"], ["no", "yes"], "no name in common.*--labels_in_order"),
        (["1.5", ""], [], [1.5, None]),
        (["1.5", "nan"], [], r"test\.csv, line 3: label 'nan' is not a finite number"),
        (["1.5", "inf"], [], r"test\.csv, line 3: label 'inf' is not a finite number"),
        (["1.5", "good"], [], r"test\.csv, line 3: label 'good' is not a finite number"),
    ],
)
def test_labels_of_a_test_file_go_by_name_or_are_refused(tmp_path, cells, model_labels, expected):
    rows = "".join(f"a,{cell}\n" for cell in cells)
    path = write(tmp_path / "test.csv", f"sentence1,label\n{rows}")

    def labels() -> list:
        task = custom_task({"test": path}, labels=model_labels)
        return [example.label for example in read_examples(task, "", "test")]

    if isinstance(expected, list):
        assert labels() == expected
        return
    with pytest.raises(UserError, match=expected):
        labels()


@pytest.mark.parametrize("split", ["dev", "test"])
@pytest.mark.parametrize("label", [["yes"], ["no", "yes"], {"name": "yes"}])
def test_a_list_or_an_object_is_no_single_label(tmp_path, split, label):
    rows = [{"sentence1": "a", "label": "no"}, {"sentence1": "b", "label": label}]
    path = write(tmp_path / f"{split}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))

    def read() -> None:
        read_examples(custom_task({split: path}, labels=("no", "yes")), "", split)

    with pytest.raises(UserError, match=rf"{split}\.jsonl, line 2: label .* --task_type multi"):
        read()


def test_a_label_of_a_test_file_that_is_not_the_trainings_is_named_by_its_row(tmp_path, caplog):
    train = write(tmp_path / "train.csv", "sentence1,label\na,no\nb,yes\n")
    test = write(tmp_path / "test.csv", "sentence1,label\na,no\nb,\nc,Yes\n")
    task = custom_task({"train": train, "test": test})
    assert [example.label for example in read_examples(task, "", "test")] == [0, None, 1]
    (record,) = caplog.records
    assert "1 of 3 examples have no label, first at line 3" in record.getMessage()
    write(test, "sentence1,label\na,no\nb,purple\n")
    with pytest.raises(
        UserError, match=r"test\.csv, line 3: label 'purple' is not one of: no, yes"
    ):
        read_examples(task, "", "test")


def test_marks_that_a_row_of_a_test_file_lacks_are_named(tmp_path):
    train = write(tmp_path / "train.csv", "sentence1,odd,even\na,1,0\nb,0,1\n")
    test = write(tmp_path / "test.csv", "sentence1,odd,even\na,,\nb,1,0\n")
    task = custom_task({"train": train, "test": test}, label_column="odd,even")
    assert [example.label for example in read_examples(task, "", "test")] == [None, (1.0, 0.0)]
    write(test, "sentence1,odd,even\na,1,\n")
    with pytest.raises(UserError, match=r"test\.csv, line 2: even '' is neither 0 nor 1"):
        read_examples(task, "", "test")


@pytest.mark.parametrize("number", ["nan", "inf", "-Infinity"])
def test_a_number_that_is_none_is_named_by_its_row(tmp_path, number):
    path = write(tmp_path / "train.csv", f"sentence1,label\na,0.5\nb,2\nc,{number}\n")
    words = rf"train\.csv, line 4: label '{number}' is not a finite number"
    with pytest.raises(UserError, match=words):
        custom_task({"train": path})
    task = custom_task({"train": path}, task_type="regression")
    with pytest.raises(UserError, match=words):
        read_examples(task, "", "train")


def test_a_pipe_is_named_with_what_to_do(tmp_path):
    os.mkfifo(tmp_path / "new.csv")
    with pytest.raises(UserError, match=r"new\.csv is a pipe, .*save it as a file first"):
        custom_task({"train": tmp_path / "new.csv"})
    with pytest.raises(UserError, match=r"new\.csv is a pipe"):
        read_table(tmp_path / "new.csv")
    with pytest.raises(UserError, match=r"--input_file - --input_format csv < .*new\.csv"):
        list(find_tables([str(tmp_path / "new.csv")]))


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_columns_may_have_other_names(tmp_path, suffix):
    rows = [{"question": "why", "context": "because", "answer": x} for x in ("no", "yes")]
    lines = [json.dumps(row) for row in rows]
    if suffix == ".csv":
        lines = [",".join(row) for row in (rows[0], *(row.values() for row in rows))]
    path = write(tmp_path / f"mine{suffix}", "\n".join(lines) + "\n")
    task = custom_task({"train": path}, text_columns="question, context", label_column="answer")
    assert task.labels == ("no", "yes")
    assert read_examples(task, "", "train")[0][1:] == ("why", "because", 0)
    single = custom_task({"train": path}, text_columns="context", label_column="answer")
    assert read_examples(single, "", "train")[1][1:] == ("because", None, 1)
    with pytest.raises(UserError, match="--text_column_names a,b,c"):
        custom_task({"train": path}, text_columns="a,b,c")


BROKEN_TABLES = {
    ".csv": b'id,text\n1,"a, b"\n2,c,d\n3,\xff\n4,"e"f\n5,"g\nh"\n',
    ".tsv": b"id\ttext\n1\ta, b\n2\tc\td\n3\t\xff\n4\te\tf\n5\tg\\nh\n",
    ".jsonl": b'{"id": 1, "text": "a, b"}\n[1]\n\xff\n{"id": 4\n'
    b'{"id": 5, "text": null, "x": [1]}\n',
}


@pytest.mark.parametrize("suffix", BROKEN_TABLES)
def test_rows_that_cannot_be_read_are_left_out_with_their_lines_or_end_the_reading(
    suffix, tmp_path
):
    path = write(tmp_path / f"table{suffix}", BROKEN_TABLES[suffix])
    errors: list[UserError] = []
    columns, records = read_records(path, on_error=errors.append)
    rows = dict(records)
    assert columns == ["id", "text"]
    assert [str(row["id"]) for row in rows.values()] == ["1", "5"]
    lines = (3, 4, 5) if suffix != ".jsonl" else (2, 3, 4)
    assert [str(error).split(":")[0].split()[-1] for error in errors] == list(map(str, lines))
    if suffix == ".jsonl":  # values stay as they are
        assert rows[5] == {"id": 5, "text": None, "x": [1]}
    with pytest.raises(UserError, match=f"line {lines[0]}"):
        dict(read_records(path)[1])


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".json", ".parquet"])
def test_a_cell_that_would_fill_the_memory_is_an_error_with_its_row(suffix, tmp_path):
    """A gzip of 10 kB holds ten million letters."""
    rows = [{"id": "1", "text": "a"}, {"id": "2", "text": "a" * (LARGEST_CELL + 1)}]
    path = tmp_path / f"table{suffix}.gz"
    place = "row 2"
    if suffix == ".parquet":
        path = tmp_path / "table.parquet"
        table = pytest.importorskip("pyarrow").Table.from_pylist(rows)
        pytest.importorskip("pyarrow.parquet").write_table(table, path)
    elif suffix == ".json":
        path.write_bytes(gzip.compress(json.dumps(rows).encode(), 1))
    elif suffix == ".jsonl":
        place = "line 2"
        path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode(), 1))
    else:
        place = "line 3"
        separator = "," if suffix == ".csv" else "\t"
        cells = [rows[0].keys(), rows[0].values(), rows[1].values()]
        path.write_bytes(gzip.compress("\n".join(map(separator.join, cells)).encode(), 1))
    for read in (read_records, read_table):
        with pytest.raises(UserError, match=f"{place}: .* has more than the 10000000 characters"):
            list(read(path)[1])


def test_a_header_that_cannot_be_read_is_an_error_whatever_becomes_of_rows(tmp_path):
    path = write(tmp_path / "table.csv", b"id,\xff\n1,a\n")
    with pytest.raises(UserError, match="line 1"):
        read_records(path, on_error=[].append)
