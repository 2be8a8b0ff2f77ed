"""Claims on glue/tasks.py, custom.py, and tables.py, which reads their files."""

import json
import math
import os
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from glue.custom import custom_task
from glue.tables import MAX_LINE_BYTES
from glue.tasks import (
    TASKS,
    Example,
    compute_metrics,
    evaluation_tasks,
    get_task,
    label_text,
    prediction_tasks,
    primary_metric,
    read_examples,
    write_submission,
)
from modeling.errors import UserError

GLUE = Path(os.environ.get("GLUE_DATA") or Path(__file__).parents[3] / "shared" / "glue_data")
needs_glue = pytest.mark.skipif(not GLUE.is_dir(), reason="no GLUE data")


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    return path


def read_rte(directory: Path, content: str | bytes, split: str = "dev") -> list[Example]:
    write(directory / f"{split}.tsv", content)
    return read_examples(get_task("rte"), directory, split)


RTE_HEADER = "index\tsentence1\tsentence2\tlabel\n"


# Names.


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("CoLA", "cola"),
        ("SST2", "sst-2"),
        ("sst_2", "sst-2"),
        ("SST", "sst-2"),
        ("STSB", "sts-b"),
        ("stsb", "sts-b"),
        ("MNLI", "mnli"),
        ("mnli-m", "mnli"),
        ("mnli_mm", "mnli-mm"),
        ("MNLI_mismatched", "mnli-mm"),
        ("AX", "ax"),
        ("diagnostic", "ax"),
    ],
)
def test_a_task_goes_by_every_usual_spelling(spelling: str, name: str) -> None:
    assert get_task(spelling).name == name


def test_an_unknown_task_is_answered_with_the_nearest_and_all() -> None:
    with pytest.raises(UserError, match=r"'qnil'; did you mean qnli\?.*cola, sst-2.*wnli, ax"):
        get_task("qnil")
    with pytest.raises(UserError, match="unknown task ''; the tasks are"):
        get_task("")


# The table, against what the transformers 2.7 processors and gluebenchmark.com publish.


def test_labels_are_in_the_published_order() -> None:
    nli, entailment = (
        ["contradiction", "entailment", "neutral"],
        ["entailment", "not_entailment"],
    )
    published = {"mnli": nli, "mnli-mm": nli, "ax": nli, "qnli": entailment, "rte": entailment}
    for name, task in TASKS.items():
        expected = [] if name == "sts-b" else published.get(name, ["0", "1"])
        assert list(task.labels) == expected
        assert task.num_labels == max(1, len(expected))
        assert task.is_regression == (name == "sts-b")


# Lines of each file, header included, as the GLUE server asks for them.
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


def test_the_official_files_have_their_names_and_line_counts() -> None:
    assert {task.submission: task.test_lines for task in TASKS.values()} == OFFICIAL_LINES


def test_mnli_is_evaluated_on_both_halves_and_the_others_once() -> None:
    pairs = [(task.name, suffix) for task, suffix in evaluation_tasks(get_task("mnli"))]
    assert pairs == [("mnli", ""), ("mnli-mm", "-MM")]
    assert evaluation_tasks(get_task("rte")) == [(get_task("rte"), "")]


def test_mnli_predicts_the_diagnostic_where_its_file_is(tmp_path: Path) -> None:
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
def test_each_published_layout_is_read(
    tmp_path: Path, name: str, split: str, content: str, expected: list
) -> None:
    task = get_task(name)
    write(tmp_path / task.files[split], content)
    assert read_examples(task, tmp_path, split, limit=1) == expected


def test_texts_keep_quotes_stray_separators_and_may_be_empty(tmp_path: Path) -> None:
    rows = '0\t"open\t\tentailment\n1\ta\u2028b\rc\t"d" \tnot_entailment\n\n'
    examples = read_rte(tmp_path, RTE_HEADER + rows)
    assert [pair[1:] for pair in examples] == [('"open', "", 0), ("a\u2028b\rc", '"d" ', 1)]


def test_limit_stops_before_it_reads_on(tmp_path: Path) -> None:
    write(tmp_path / "dev.tsv", RTE_HEADER + "0\ta\tb\tentailment\nbroken\n")
    assert len(read_examples(get_task("rte"), tmp_path, "dev", limit=1)) == 1


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
        (RTE_HEADER + "0\ta\tb\t\n", "line 2: label ''"),
        (RTE_HEADER.encode() + b"0\ta\tb\xff\tentailment\n", r"line 2: byte 6 \(0xff\) is not UTF"),
        (RTE_HEADER.encode("utf-16"), "line 1: byte 1 .* is not UTF-8"),
    ],
)
def test_a_bad_file_is_refused_with_file_and_line(
    tmp_path: Path, content: str | bytes, message: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        read_rte(tmp_path, content)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("score", ["high", "nan", "-inf", ""])
def test_a_score_must_be_a_finite_number(tmp_path: Path, score: str) -> None:
    write(tmp_path / "dev.tsv", f"sentence1\tsentence2\tscore\na\tb\t1\na\tb\t{score}\n")
    with pytest.raises(UserError, match=f"line 3: score '{score}' is not a finite number"):
        read_examples(get_task("sts-b"), tmp_path, "dev")


def test_a_missing_file_names_the_command_that_fetches_it(tmp_path: Path) -> None:
    here = tmp_path / "SST-2"
    command = rf"--data_dir {tmp_path} --tasks SST-2"
    with pytest.raises(
        UserError, match=rf"no dev\.tsv in {here}; .*download_glue_data.py {command}"
    ):
        read_examples(get_task("sst2"), here, "dev")


def test_a_data_dir_one_level_too_high_is_pointed_out(tmp_path: Path) -> None:
    (tmp_path / "RTE").mkdir()
    write(tmp_path / "RTE" / "dev.tsv", RTE_HEADER)
    with pytest.raises(UserError, match=f"pass --data_dir {tmp_path / 'RTE'}"):
        read_examples(get_task("rte"), tmp_path, "dev")


def test_a_split_that_the_task_lacks_and_a_folder_in_its_place_are_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="ax has no dev file, only: test"):
        read_examples(get_task("ax"), tmp_path, "dev")
    (tmp_path / "dev.tsv").mkdir()
    with pytest.raises(UserError, match=r"cannot read .*dev\.tsv: Is a directory"):
        read_examples(get_task("rte"), tmp_path, "dev")


def test_a_line_of_100_megabytes_is_refused_without_being_read(tmp_path: Path) -> None:
    path = write(tmp_path / "dev.tsv", RTE_HEADER)
    with open(path, "r+b") as file:
        file.truncate(100_000_000)
    tracemalloc.start()
    try:
        message = r"line 2: longer than 1048576 bytes; .* one example or sentence a line"
        with pytest.raises(UserError, match=message):
            read_examples(get_task("rte"), tmp_path, "dev")
        assert tracemalloc.get_traced_memory()[1] < 10 * MAX_LINE_BYTES
    finally:
        tracemalloc.stop()


def test_short_rows_are_skipped_in_qqp_train_alone_and_counted_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = "1\t2\t3\tq\tr\t1\n2\t3\t4\tcut\nin two\t0\n3\t4\t5\ts\tt\t0\n"
    for name in ("train.tsv", "dev.tsv"):
        write(tmp_path / name, "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n" + rows)
    assert [e.label for e in read_examples(get_task("qqp"), tmp_path, "train")] == [1, 0]
    (record,) = caplog.records
    assert "skipped 2 short rows, the first at line 3" in record.getMessage()
    with pytest.raises(UserError, match="line 3: no 'question2'"):
        read_examples(get_task("qqp"), tmp_path, "dev")


FUZZ = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
ANY_FILE = st.one_of(
    st.binary(max_size=300),
    st.text(alphabet='\t\n\r"{}[]:,01.na\x00\ufeff\ud7ffé', max_size=300).map(str.encode),
)


@FUZZ
@given(content=ANY_FILE, name=st.sampled_from(list(TASKS)), split=st.sampled_from(["dev", "test"]))
@example(content=b"\xef\xbb\xbf\n\n", name="cola", split="dev")
def test_any_bytes_as_tsv_give_examples_or_a_user_error(
    tmp_path: Path, content: bytes, name: str, split: str
) -> None:
    task = get_task(name)
    columns = [*task.text_columns, task.label_column]
    header = b"" if task.headerless and split == "dev" else "\t".join(columns).encode() + b"\n"
    for text in (content, header + content):
        write(tmp_path / task.files.get(split, "none"), text)
        try:
            examples = read_examples(task, tmp_path, split)
        except UserError:
            continue
        assert examples
        assert all(isinstance(e.text_a, str) for e in examples)


@FUZZ
@given(content=ANY_FILE, suffix=st.sampled_from([".csv", ".tsv", ".jsonl"]))
@example(content=b"[" * 100_000, suffix=".jsonl")
@example(content=b'{"sentence1": "\\ud800", "label": 1}', suffix=".jsonl")
@example(content=b"\x00,\x00", suffix=".csv")
def test_any_bytes_as_the_users_own_file_give_examples_or_a_user_error(
    tmp_path: Path, content: bytes, suffix: str
) -> None:
    header = {".csv": b"sentence1,label\n", ".tsv": b"sentence1\tlabel\n", ".jsonl": b""}[suffix]
    for text in (content, header + content):
        path = write(tmp_path / f"train{suffix}", text)
        try:
            examples = read_examples(custom_task(train_file=path), "", "train")
        except UserError:
            continue
        assert examples


# The user's own task.

ROWS = [("good, he said", "b"), ('a "quoted"\nline', "a")]
SAME_ROWS = {
    ".csv": 'sentence1,label\n"good, he said",b\n"a ""quoted""\nline",a\n',
    ".tsv": 'sentence1\tlabel\ngood, he said\tb\na "quoted"\\nline\ta\n',
    ".jsonl": "".join(json.dumps({"sentence1": s, "label": c}) + "\n\n" for s, c in ROWS),
}


@pytest.mark.parametrize("suffix", SAME_ROWS)
def test_csv_tsv_and_json_lines_hold_the_same_examples(tmp_path: Path, suffix: str) -> None:
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
def test_labels_are_discovered_and_a_fraction_makes_it_regression(
    tmp_path: Path, labels: list[str], expected: tuple[str, ...]
) -> None:
    rows = "".join(f"text,{label}\n" for label in labels)
    path = write(tmp_path / "train.csv", "sentence1,label\n" + rows)
    task = custom_task(train_file=path)
    assert task.labels == expected
    assert task.is_regression == (not expected)
    assert primary_metric(task) == ("acc" if expected else "corr")


def test_labels_come_from_the_training_file_and_bind_the_others(tmp_path: Path) -> None:
    header = "sentence1\tsentence2\tlabel\n"
    train = write(tmp_path / "t.tsv", header + "a\tb\tyes\nc\td\tno\n")
    dev = write(tmp_path / "d.tsv", header + "e\tf\tperhaps\n")
    task = custom_task(train, dev)
    assert read_examples(task, "", "train")[0] == ("0", "a", "b", 1)
    with pytest.raises(UserError, match=r"d\.tsv, line 2: label 'perhaps' is not one of: no, yes"):
        read_examples(task, "", "dev")


def test_saved_labels_restore_the_task_from_a_test_file_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "test.jsonl", '{"id": 12, "sentence1": "a"}\n')
    with pytest.raises(UserError, match="alone does not tell the labels"):
        custom_task(test_file=path)
    task = custom_task(test_file=path, labels=["yes", "no"])
    assert task.labels == ("yes", "no")
    assert read_examples(task, "", "test") == [("12", "a", None, None)]
    assert custom_task(test_file=path, labels=[]).is_regression


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
def test_a_bad_file_of_the_users_is_refused(
    tmp_path: Path, name: str, content: str, message: str
) -> None:
    path = write(tmp_path / name, content)
    with pytest.raises(UserError, match=message):
        read_examples(custom_task(train_file=path), "", "train")


def test_files_that_are_not_there_are_named() -> None:
    with pytest.raises(UserError, match=r"nowhere\.csv does not exist"):
        custom_task(train_file="nowhere.csv")
    with pytest.raises(UserError, match="give at least one of --train_file"):
        custom_task()


# Metrics, against values worked out by hand.


def test_accuracy_f1_and_their_mean() -> None:
    # true positives 2, false positives 1, false negatives 1, true negatives 1
    metrics = compute_metrics(get_task("mrpc"), [1, 1, 1, 0, 0], [1, 1, 0, 1, 0])
    assert metrics == pytest.approx({"acc": 3 / 5, "f1": 2 / 3, "acc_and_f1": (3 / 5 + 2 / 3) / 2})
    assert compute_metrics(get_task("rte"), [0, 1, 1], [0, 0, 1]) == {"acc": 2 / 3}
    none = compute_metrics(get_task("mrpc"), [0, 0], [0, 0])  # F1 is 0/0, by convention 0
    assert none == {"acc": 1.0, "f1": 0.0, "acc_and_f1": 0.5}
    assert primary_metric(get_task("qqp")) == "acc"


@pytest.mark.filterwarnings("ignore:A single label")
def test_matthews_correlation() -> None:
    # the same table: (2·1 − 1·1) / √(3·3·2·2)
    metrics = compute_metrics(get_task("cola"), [1, 1, 1, 0, 0], [1, 1, 0, 1, 0])
    assert metrics == pytest.approx({"mcc": 1 / 6})
    assert compute_metrics(get_task("cola"), [1, 1, 1], [1, 0, 1]) == {"mcc": 0.0}
    assert compute_metrics(get_task("cola"), [1, 1], [1, 1]) == {"mcc": 0.0}


def test_correlations() -> None:
    # deviations (−2 −1 0 1 2) and (−1.6 −0.6 0.4 1.4 0.4); ranks of the labels 1 2 3.5 5 3.5
    metrics = compute_metrics(get_task("sts-b"), [1, 2, 3, 4, 5], [5, 6, 7, 8, 7])
    pearson, spearman = 6 / math.sqrt(10 * 5.2), 8 / math.sqrt(10 * 9.5)
    assert metrics == pytest.approx(
        {"pearson": pearson, "spearmanr": spearman, "corr": (pearson + spearman) / 2}
    )


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("predictions", "labels"), [([2.5, 2.5, 2.5], [1.0, 2.0, 3.0]), ([1.0], [2.0])]
)
def test_a_correlation_that_is_not_defined_is_zero(predictions: list, labels: list) -> None:
    metrics = compute_metrics(get_task("sts-b"), predictions, labels)
    assert metrics == {"pearson": 0.0, "spearmanr": 0.0, "corr": 0.0}


@pytest.mark.filterwarnings("ignore")
@settings(deadline=None)
@given(
    st.integers(2, 6).flatmap(
        lambda n: st.tuples(*[st.lists(st.floats(-1e9, 1e9), min_size=n, max_size=n)] * 2)
    )
)
def test_correlations_of_any_scores_are_within_one(scores: tuple[list, list]) -> None:
    for value in compute_metrics(get_task("sts-b"), *scores).values():
        assert abs(value) <= 1 + 1e-12


def test_metrics_take_arrays_and_give_plain_numbers() -> None:
    metrics = compute_metrics(get_task("rte"), np.array([0, 1]), np.array([0, 1]))
    assert json.dumps(metrics) == '{"acc": 1.0}'


@pytest.mark.parametrize(
    ("predictions", "labels", "message"),
    [
        ([1.0], [1.0, 2.0], "1 predictions for 2 labels"),
        ([], [], "0 predictions for 0 labels"),
        ([1.0, math.nan], [1.0, 2.0], "prediction 1 is nan"),
        ([1.0, 2.0], [1.0, None], "label 1 is nan"),
    ],
)
def test_metrics_refuse_what_they_cannot_score(
    predictions: list, labels: list, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        compute_metrics(get_task("sts-b"), predictions, labels)


# Submission files.


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
def test_a_submission_is_the_official_file(
    tmp_path: Path, name: str, predictions: list, lines: list[str]
) -> None:
    task = get_task(name)
    path = write_submission(task, examples_of(len(lines)), predictions, tmp_path / "out")
    assert path == tmp_path / "out" / task.submission
    rows = [f"{10 + i}\t{label}\n" for i, label in enumerate(lines)]
    assert path.read_bytes().decode() == "index\tprediction\n" + "".join(rows)


@pytest.mark.parametrize(
    ("predictions", "message"),
    [([0], "1 predictions for 2 examples; RTE.tsv not written"), ([0, 2], "2 is not in 0…1")],
)
def test_a_bad_submission_leaves_the_old_file(
    tmp_path: Path, predictions: list, message: str
) -> None:
    write(tmp_path / "RTE.tsv", "old")
    with pytest.raises(UserError, match=message):
        write_submission(get_task("rte"), examples_of(2), predictions, tmp_path)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("RTE.tsv", "old")]


def test_a_score_of_the_users_task_is_not_clipped(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "sentence1,label\na,1.5\n")
    assert label_text(custom_task(train_file=path), -12.25) == "-12.25"
    with pytest.raises(UserError, match="score is nan"):
        label_text(get_task("sts-b"), math.nan)


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
def test_the_real_files_are_read_whole(
    folder: str, task: str, dev_counts: dict[int, int] | None
) -> None:
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
            assert len(examples) + 1 == glue_task.test_lines
            assert [e.index for e in examples] == [str(i) for i in range(len(examples))]
