"""Metrics of many exit settings at once, and how sure they are by the bootstrap."""

import numpy as np

from glue.metrics import chunks, weighted_metrics
from glue.tasks import Task


def at_exit(by_layer: np.ndarray, exit_layer: np.ndarray) -> np.ndarray:
    """Pick each example's value at its exit layer under each setting.

    by_layer: (layers, examples), or (layers, examples, labels). exit_layer: (settings, examples),
    1-based; of one setting also (examples,). Returns the shape of `exit_layer`, and labels.
    """
    examples = np.arange(by_layer.shape[1])
    return by_layer[exit_layer.astype(np.intp) - 1, examples]


def metrics_at(
    task: Task,
    predictions: np.ndarray,
    labels: np.ndarray,
    exit_layer: np.ndarray,
    weights: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Compute the task's metrics of each setting's answers, by name.

    Args:
        predictions: (layers, examples) class ids, or values for regression; of several labels
            (layers, examples, labels) of 0 and 1.
        labels: (examples,), or (examples, labels).
        exit_layer: (settings, examples), 1-based.
        weights: (draws, examples), how often each example counts in each draw; None: once.

    Returns:
        (settings,) each; with weights (settings, draws).
    """
    counts = np.ones((1, len(labels))) if weights is None else weights.astype(float)
    pieces = [
        weighted_metrics(task, at_exit(predictions, exit_layer[settings]), labels, counts)
        for settings in chunks(len(exit_layer), labels.size)
    ]
    metrics = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    if weights is None:
        return {name: values[:, 0] for name, values in metrics.items()}
    return metrics


def bootstrap_weights(examples: int, draws: int, seed: int) -> np.ndarray:
    """Count how often the sample, and each resample of it, has each example: (1 + draws, examples).

    The first row is the sample itself, with each example once.
    """
    rng = np.random.default_rng(seed)
    resamples = rng.multinomial(examples, np.full(examples, 1 / examples), size=draws)
    return np.concatenate((np.ones((1, examples), dtype=int), resamples))


def interval(metric: np.ndarray) -> np.ndarray:
    """Compute the percentile bootstrap's 95% interval of a metric: (2, …), its low and high ends.

    metric: (…, 1 + draws), of the sample and of each resample; see `bootstrap_weights`.
    """
    return np.quantile(metric[..., 1:], [0.025, 0.975], axis=-1)
