"""Metrics against values worked out by hand."""

import math

import pytest

from glue.tasks import compute_metrics, get_task, primary_metric
from modeling.errors import UserError


def test_accuracy_f1_and_their_mean():
    # true positives 2, false positives 1, false negatives 1, true negatives 1
    metrics = compute_metrics(get_task("mrpc"), [1, 1, 1, 0, 0], [1, 1, 0, 1, 0])
    assert metrics == pytest.approx({"acc": 3 / 5, "f1": 2 / 3, "acc_and_f1": (3 / 5 + 2 / 3) / 2})
    assert compute_metrics(get_task("rte"), [0, 1, 1], [0, 0, 1]) == {"acc": 2 / 3}
    none = compute_metrics(get_task("mrpc"), [0, 0], [0, 0])  # F1 is 0/0, by convention 0
    assert none == {"acc": 1.0, "f1": 0.0, "acc_and_f1": 0.5}
    assert primary_metric(get_task("qqp")) == "acc"


@pytest.mark.filterwarnings("ignore:A single label")
def test_matthews_correlation():
    # the same table: (2·1 − 1·1) / √(3·3·2·2)
    metrics = compute_metrics(get_task("cola"), [1, 1, 1, 0, 0], [1, 1, 0, 1, 0])
    assert metrics == pytest.approx({"mcc": 1 / 6})
    assert compute_metrics(get_task("cola"), [1, 1, 1], [1, 0, 1]) == {"mcc": 0.0}
    assert compute_metrics(get_task("cola"), [1, 1], [1, 1]) == {"mcc": 0.0}


def test_correlations():
    # deviations (−2 −1 0 1 2) and (−1.6 −0.6 0.4 1.4 0.4); ranks of the labels 1 2 3.5 5 3.5
    metrics = compute_metrics(get_task("sts-b"), [1, 2, 3, 4, 5], [5, 6, 7, 8, 7])
    pearson, spearman = 6 / math.sqrt(10 * 5.2), 8 / math.sqrt(10 * 9.5)
    assert metrics == pytest.approx(
        {"pearson": pearson, "spearmanr": spearman, "corr": (pearson + spearman) / 2}
    )
    constant = compute_metrics(get_task("sts-b"), [2.5, 2.5, 2.5], [1.0, 2.0, 3.0])
    assert constant == {"pearson": 0.0, "spearmanr": 0.0, "corr": 0.0}


@pytest.mark.parametrize(
    ("predictions", "labels", "message"),
    [
        ([1.0], [1.0, 2.0], "1 predictions for 2 labels"),
        ([], [], "0 predictions for 0 labels"),
        ([1.0, math.nan], [1.0, 2.0], "prediction 1 is nan"),
        ([1.0, 2.0], [1.0, None], "label 1 is nan"),
    ],
)
def test_metrics_refuse_what_they_cannot_score(predictions, labels, message):
    with pytest.raises(UserError, match=message):
        compute_metrics(get_task("sts-b"), predictions, labels)
