"""The tasks' metrics for many exit settings, and many bootstrap draws, at once."""

import numpy as np

from glue.metrics import METRICS, chunks
from glue.tasks import Task


def at_exit(by_layer: np.ndarray, exit_layer: np.ndarray) -> np.ndarray:
    """What each setting answers: (layers, examples) at (settings, examples) -> the latter.

    One setting's exits may be (examples,).
    """
    return by_layer[exit_layer.astype(np.intp) - 1, np.arange(by_layer.shape[1])]


def metrics_at(
    task: Task,
    predictions: np.ndarray,
    labels: np.ndarray,
    exit_layer: np.ndarray,
    weights: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """The task's metrics of each setting's answers by name: (settings,), or (settings, draws).

    predictions: (layers, examples) class ids, or values for regression; labels: (examples,);
    exit_layer: (settings, examples), 1-based.
    weights: (draws, examples), how often each example counts; None: once.
    """
    single = weights is None
    weights = np.ones((1, len(labels))) if single else weights.astype(float)
    function = METRICS[task.metric]
    pieces = [
        function(at_exit(predictions, exit_layer[rows]), labels, weights)
        for rows in chunks(len(exit_layer), len(labels))
    ]
    joined = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    return {name: values[:, 0] for name, values in joined.items()} if single else joined


def bootstrap_weights(examples: int, draws: int, seed: int) -> np.ndarray:
    """How often each example is in the sample, and in each resample: (1 + draws, examples)."""
    rng = np.random.default_rng(seed)
    resamples = rng.multinomial(examples, np.full(examples, 1 / examples), size=draws)
    return np.concatenate((np.ones((1, examples), dtype=int), resamples))


def interval(drawn: np.ndarray) -> np.ndarray:
    """The percentile bootstrap's 95% interval of a metric (…, 1 + draws): (2, …)."""
    return np.quantile(drawn[..., 1:], [0.025, 0.975], axis=-1)
