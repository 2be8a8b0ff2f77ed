"""Metrics of many settings against scikit-learn and scipy, and of bootstrap draws."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import f1_score, matthews_corrcoef

from glue.metrics import bootstrap_weights, compute_metrics, metrics_at
from glue.tasks import TASKS


def expected_metrics(task: str, answers: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    if task == "sts-b":
        defined = np.ptp(answers) > 0 and np.ptp(labels) > 0
        both = [f(answers, labels)[0] if defined else 0.0 for f in (pearsonr, spearmanr)]
        return {"pearson": both[0], "spearmanr": both[1], "corr": sum(both) / 2}
    if task == "cola":
        return {"mcc": matthews_corrcoef(labels, answers)}
    acc = (answers == labels).mean()
    f1 = f1_score(labels == 1, answers == 1, zero_division=0)
    return {"acc": acc, "f1": f1, "acc_and_f1": (acc + f1) / 2} if task == "mrpc" else {"acc": acc}


def random_answers(task: str, layers: int, examples: int, seed: int):
    rng = np.random.default_rng(seed)
    if TASKS[task].is_regression:
        labels = rng.integers(0, 11, examples) / 2
        predictions = (labels + rng.normal(0, 2, (layers, examples))).round(1)  # with ties
    else:
        labels = rng.integers(0, TASKS[task].num_labels, examples)
        predictions = rng.integers(0, TASKS[task].num_labels, (layers, examples))
    exits = rng.integers(1, layers + 1, (3, examples)).astype(np.uint8)
    return predictions, labels, exits


@pytest.mark.filterwarnings("ignore:A single label was found")
@pytest.mark.parametrize("task", ["rte", "mrpc", "cola", "mnli", "sts-b"])
@given(seed=st.integers(0, 10**6), examples=st.integers(2, 40))
def test_metrics_are_those_of_scikit_learn_and_scipy(task, seed, examples):
    predictions, labels, exits = random_answers(task, 4, examples, seed)
    found = metrics_at(TASKS[task], predictions, labels, exits)
    for i, layers in enumerate(exits):
        answers = predictions[layers.astype(int) - 1, np.arange(examples)]
        expected = expected_metrics(task, answers, labels)
        assert {name: v[i] for name, v in found.items()} == pytest.approx(expected, abs=1e-9)
        assert compute_metrics(TASKS[task], answers, labels) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("task", ["rte", "mrpc", "cola", "sts-b"])
def test_a_weight_counts_an_example_so_often(task):
    """Metrics of a bootstrap draw are those of the examples drawn, written out."""
    predictions, labels, exits = random_answers(task, 3, 30, 1)
    weights = bootstrap_weights(30, 5, seed=2)
    found = metrics_at(TASKS[task], predictions, labels, exits, weights)
    for draw, counts in enumerate(weights):
        rows = np.repeat(np.arange(30), counts)
        expected = metrics_at(TASKS[task], predictions[:, rows], labels[rows], exits[:, rows])
        for name, values in expected.items():
            assert found[name][:, draw] == pytest.approx(values, abs=1e-9)


@pytest.mark.parametrize("constant", ["prediction", "label"])
def test_a_correlation_with_a_constant_is_zero(constant):
    values, same = np.linspace(0, 5, 9), np.full(9, 0.1 + 0.2)
    predictions, labels = (same, values) if constant == "prediction" else (values, same)
    found = metrics_at(TASKS["sts-b"], predictions[None], labels, np.ones((1, 9), np.uint8))
    assert [v[0] for v in found.values()] == [0, 0, 0]
