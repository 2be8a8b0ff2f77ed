"""The tasks' metrics against scikit-learn and scipy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import f1_score, matthews_corrcoef

from glue.metrics import METRICS, compute_metrics
from glue.tasks import TASKS


def expected_metrics(task: str, answers: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    if task == "sts-b":
        is_defined = np.ptp(answers) > 0 and np.ptp(labels) > 0
        pearson = pearsonr(answers, labels)[0] if is_defined else 0.0
        spearman = spearmanr(answers, labels)[0] if is_defined else 0.0
        return {"pearson": pearson, "spearmanr": spearman, "corr": (pearson + spearman) / 2}
    if task == "cola":
        return {"mcc": matthews_corrcoef(labels, answers)}
    acc = (answers == labels).mean()
    if task == "mrpc":
        f1 = f1_score(labels == 1, answers == 1, zero_division=0)
        return {"acc": acc, "f1": f1, "acc_and_f1": (acc + f1) / 2}
    return {"acc": acc}


def random_answers(
    task: str, settings: int, examples: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Answers (settings, examples) and labels (examples,)."""
    rng = np.random.default_rng(seed)
    if TASKS[task].is_regression:
        labels = rng.integers(0, 11, examples) / 2
        errors = rng.normal(0, 2, (settings, examples))
        return (labels + errors).round(1), labels  # with ties
    labels = rng.integers(0, TASKS[task].num_labels, examples)
    return rng.integers(0, TASKS[task].num_labels, (settings, examples)), labels


@pytest.mark.filterwarnings("ignore:A single label was found")
@pytest.mark.parametrize("task", ["rte", "mrpc", "cola", "mnli", "sts-b"])
@given(seed=st.integers(0, 10**6), examples=st.integers(2, 40))
def test_metrics_are_those_of_scikit_learn_and_scipy(task, seed, examples):
    settings, labels = random_answers(task, 3, examples, seed)
    for answers in settings:
        expected = expected_metrics(task, answers, labels)
        assert compute_metrics(TASKS[task], answers, labels) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("task", ["rte", "mrpc", "cola", "sts-b"])
def test_a_weight_counts_an_example_so_often(task):
    """Metrics of a bootstrap draw are those of the examples drawn, written out."""
    settings, labels = random_answers(task, 3, 30, 1)
    weights = np.random.default_rng(2).multinomial(30, np.full(30, 1 / 30), size=5)
    weighted = METRICS[TASKS[task].metric](settings, labels, weights.astype(float))
    for setting, answers in enumerate(settings):
        for draw, counts in enumerate(weights):
            rows = np.repeat(np.arange(30), counts)
            expected = compute_metrics(TASKS[task], answers[rows], labels[rows])
            for name, value in expected.items():
                assert weighted[name][setting, draw] == pytest.approx(value, abs=1e-9)


@pytest.mark.parametrize("constant", ["prediction", "label"])
def test_a_correlation_with_a_constant_is_zero(constant):
    values = np.linspace(0, 5, 9)
    same = np.full(9, 0.1 + 0.2)
    predictions, labels = (same, values) if constant == "prediction" else (values, same)
    metrics = compute_metrics(TASKS["sts-b"], predictions, labels)
    assert metrics == {"pearson": 0, "spearmanr": 0, "corr": 0}
