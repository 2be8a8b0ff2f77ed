"""What an evaluation says of each class, against scikit-learn, and of suspect answers."""

import numpy as np
import pytest
from sklearn.metrics import f1_score, precision_score, recall_score

from answers.figures import plot_confusion
from answers.scores import class_scores, remarks
from glue.custom import Task
from glue.tasks import TASKS

THREE = Task("custom", "", "custom.tsv", labels=("bad", "good", "so so"))


def test_each_class_has_its_scores_and_a_picture(tmp_path):
    labels, answers = np.array([0, 0, 1, 1, 1, 2]), np.array([0, 1, 1, 1, 0, 1])
    found = class_scores(THREE, answers, labels)
    how = {"average": None, "zero_division": 0}
    for name, score in (("precision", precision_score), ("recall", recall_score), ("f1", f1_score)):
        ours = [getattr(found.classes[label], name) for label in THREE.labels]
        assert ours == pytest.approx(score(labels, answers, **how))
    assert found.macro_f1 == pytest.approx(f1_score(labels, answers, average="macro"))
    assert found.confusion == [[1, 1, 0], [1, 2, 0], [0, 1, 0]]
    plot_confusion(tmp_path / "confusion.png", found.confusion, THREE.labels)
    assert (tmp_path / "confusion.png").read_bytes().startswith(b"\x89PNG")
    assert class_scores(TASKS["sts-b"], labels, labels).as_json() == {}


def test_a_class_may_be_called_as_a_row_of_a_report():
    """scikit-learn's report has rows `accuracy` and `macro avg` of its own."""
    names = ("accuracy", "macro avg", "price")
    task = Task("custom", "", "custom.tsv", labels=names)
    labels, answers = np.array([0, 0, 1, 1, 1, 2]), np.array([0, 1, 1, 1, 0, 1])
    found = class_scores(task, answers, labels)
    assert [*found.classes] == [*names]
    expected = recall_score(labels, answers, average=None, zero_division=0)
    assert [score.recall for score in found.classes.values()] == pytest.approx([*expected])


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
    exits = None if exits is None else np.array(exits)
    found = remarks(task, np.array(answers), np.array(labels), exits, 3)
    assert len(found) == len(expected)
    assert all(one.startswith(wanted) for one, wanted in zip(found, expected, strict=True))
