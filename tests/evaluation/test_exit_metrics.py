"""Metrics of many exit settings and bootstrap draws, against those of one set of answers."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from evaluation.exit_metrics import bootstrap_weights, metrics_at
from glue.metrics import compute_metrics
from glue.tasks import TASKS


def random_answers(task: str, examples: int, seed: int) -> tuple[np.ndarray, ...]:
    """Predictions (3 layers, examples), labels (examples,) and exits (3 settings, examples)."""
    rng = np.random.default_rng(seed)
    if TASKS[task].is_regression:
        labels = rng.integers(0, 11, examples) / 2
        predictions = (labels + rng.normal(0, 2, (3, examples))).round(1)  # with ties
    else:
        labels = rng.integers(0, TASKS[task].num_labels, examples)
        predictions = rng.integers(0, TASKS[task].num_labels, (3, examples))
    exits = rng.integers(1, 4, (3, examples)).astype(np.uint8)
    return predictions, labels, exits


@pytest.mark.parametrize("task", ["rte", "mrpc", "cola", "mnli", "sts-b"])
@given(seed=st.integers(0, 10**6), examples=st.integers(2, 40))
def test_each_setting_has_the_metrics_of_its_answers(task, seed, examples):
    predictions, labels, exits = random_answers(task, examples, seed)
    metrics = metrics_at(TASKS[task], predictions, labels, exits)
    for setting, layers in enumerate(exits):
        answers = predictions[layers.astype(int) - 1, np.arange(examples)]
        expected = compute_metrics(TASKS[task], answers, labels)
        by_name = {name: values[setting] for name, values in metrics.items()}
        assert by_name == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("task", ["rte", "mrpc", "cola", "sts-b"])
def test_a_bootstrap_draw_has_the_metrics_of_the_examples_drawn(task):
    predictions, labels, exits = random_answers(task, 30, 1)
    weights = bootstrap_weights(30, 5, seed=2)
    metrics = metrics_at(TASKS[task], predictions, labels, exits, weights)
    for draw, counts in enumerate(weights):
        rows = np.repeat(np.arange(30), counts)
        expected = metrics_at(TASKS[task], predictions[:, rows], labels[rows], exits[:, rows])
        for name, values in expected.items():
            assert metrics[name][:, draw] == pytest.approx(values, abs=1e-9)
