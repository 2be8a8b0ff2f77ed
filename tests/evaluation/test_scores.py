"""What an evaluation says of each class, against scikit-learn, and of suspect answers."""

import json

import numpy as np
import pytest
from sklearn.metrics import f1_score, precision_score, recall_score

from evaluation.figures import confusion_figure, has_glyphs, save_figure
from evaluation.scores import NO_EXITS, ScoreErrors, class_scores, remark_lines, remarks
from glue.tasks import TASKS, Task

THREE = Task("custom", "", "custom.tsv", labels=("bad", "good", "so so"))
LABELS = np.array([0, 0, 1, 1, 1, 2])
ANSWERS = np.array([0, 1, 1, 1, 0, 1])


@pytest.mark.parametrize(
    ("name", "score"), [("precision", precision_score), ("recall", recall_score), ("f1", f1_score)]
)
def test_each_class_has_scikit_learns_scores(name, score):
    scores = class_scores(THREE, ANSWERS, LABELS)
    ours = [getattr(scores.classes[label], name) for label in THREE.labels]
    assert ours == pytest.approx(score(LABELS, ANSWERS, average=None, zero_division=0))
    assert [scores.classes[label].examples for label in THREE.labels] == [2, 3, 1]
    assert scores.macro_f1 == pytest.approx(f1_score(LABELS, ANSWERS, average="macro"))


def test_the_confusion_has_a_row_a_label_and_is_a_picture(tmp_path):
    confusion = class_scores(THREE, ANSWERS, LABELS).confusion
    assert confusion == [[1, 1, 0], [1, 2, 0], [0, 1, 0]]
    save_figure(confusion_figure(confusion, THREE.labels), tmp_path / "confusion.png")
    assert (tmp_path / "confusion.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.filterwarnings("error")  # matplotlib warns of each character that it cannot draw
@pytest.mark.parametrize("names", [("好", "差", "中"), ("ja", "grün", "\U00013000")])
def test_a_picture_has_no_boxes_for_the_names_of_classes(names, tmp_path):
    figure = confusion_figure([[1, 0, 0]] * 3, names)
    save_figure(figure, tmp_path / "confusion.png")
    (panel,) = figure.axes
    shown = tuple(tick.get_text() for tick in panel.get_xticklabels())
    assert shown == (names if has_glyphs("".join(names)) else ("class 0", "class 1", "class 2"))
    assert has_glyphs("grün, да, ναι")


def test_regression_has_no_classes():
    scores = class_scores(TASKS["sts-b"], LABELS, LABELS)
    assert scores.as_json() == {}
    assert scores.lines() == []


def test_errors_of_scores_are_in_the_labels_units():
    """Of the labels 1000, 1200 and 1700, whose mean is 1300, each answer is 100 too low."""
    labels = np.array([1000.0, 1200.0, 1700.0])
    errors = ScoreErrors.of(labels - 100, labels)
    assert errors.rmse == pytest.approx(100)
    assert errors.mean == 1300
    assert errors.rmse_of_mean == pytest.approx((260000 / 3) ** 0.5)
    assert errors.r2 == pytest.approx(1 - 30000 / 260000)


def test_values_in_other_units_than_the_labels_are_suspect_whatever_the_correlation():
    labels = np.linspace(800.0, 1600.0, 100)
    assert remarks(TASKS["sts-b"], labels + 5, labels) == []
    (text,) = remarks(TASKS["sts-b"], labels / 1000, labels)
    assert text.startswith("RMSE ")
    assert "is no better than the mean's: always answering 1200 gets 233.2" in text


def test_a_class_may_be_called_as_a_row_of_a_report():
    """scikit-learn's report has rows `accuracy` and `macro avg` of its own."""
    task = Task("custom", "", "custom.tsv", labels=("accuracy", "macro avg", "price"))
    scores = class_scores(task, ANSWERS, LABELS)
    expected = recall_score(LABELS, ANSWERS, average=None, zero_division=0).tolist()
    written = json.loads(json.dumps(scores.as_json()))
    assert list(written["classes"]) == ["accuracy", "macro avg", "price"]
    for name, recall, line in zip(task.labels, expected, scores.lines()[:3], strict=True):
        assert written["classes"][name]["recall"] == pytest.approx(recall)
        assert line.startswith(f"{name}: ")
        assert f"recall {recall:.4f}" in line


@pytest.mark.parametrize(
    ("task", "answers", "labels", "exits", "expected"),
    [
        (THREE, [0, 1, 2, 1], [0, 1, 2, 0], [1, 2, 3, 3], []),
        (THREE, [0, 1, 2, 1], [0, 1, 2, 0], [3, 3, 3, 3], ["no example exits early"]),
        (THREE, [1, 1, 1, 1], [0, 1, 2, 1], None, ["all examples get the answer 'good'"]),
        (THREE, [0, 1, 1, 1, 0], [0, 1, 2, 1, 0], None, ["class 'so so' is never answered: 1"]),
        (THREE, [1, 0, 2, 1], [0, 1, 2, 1], None, ["acc 0.5000 is at chance: always answering"]),
        (TASKS["cola"], [0, 1, 0, 1], [0, 0, 1, 1], None, ["mcc 0.0000 is at chance"]),
        (TASKS["sts-b"], [2.0, 2.0], [1.0, 3.0], None, ["all examples get the answer 2"]),
    ],
)
def test_a_suspect_result_is_said(task, answers, labels, exits, expected):
    exit_layer = None if exits is None else np.array(exits)
    texts = remarks(task, np.array(answers), np.array(labels), exit_layer, layers=3)
    assert len(texts) == len(expected)
    for text, beginning in zip(texts, expected, strict=True):
        assert text.startswith(beginning)


def test_a_label_that_is_never_answered_is_said():
    task = Task("own", "", "own.tsv", labels=("a", "b"), metric="f1_micro", multi_label=True)
    answers = np.array([[True, False], [False, False]])
    labels = np.array([[1.0, 1.0], [0.0, 0.0]])
    assert remarks(task, answers, labels) == ["label 'b' is never answered"]


def test_where_nothing_exits_the_command_that_helps_is_named():
    first, second = remark_lines([NO_EXITS, "another"], "out/RTE")
    assert "sweep_exits.py --model_dir out/RTE --pick" in first
    assert second == "suspect: another"


@pytest.mark.parametrize(
    ("exits", "remark"),
    [
        ([2] * 100, "all examples exit after layer 2: a fixed-depth network of 2 layers would do"),
        (
            [1] * 99 + [3],
            "99.0% of the examples exit after layer 1: a fixed-depth network of 1 layer",
        ),
        ([2] * 98 + [3, 3], None),
        ([4] * 100, "no example exits early"),
        ([4] * 99 + [1], None),
    ],
)
def test_where_nearly_all_exit_at_one_layer_no_exits_are_needed(exits, remark):
    labels = np.arange(100) % 2
    texts = remarks(TASKS["rte"], labels, labels, np.array(exits), layers=4)
    assert len(texts) == (remark is not None)
    assert remark is None or texts[0].startswith(remark)
