"""The tasks' metrics, under the published names: of one set of answers; of many exit settings and
bootstrap draws at once; and which settings are best at their cost."""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import ArrayLike

from glue.tasks import ACC_F1, Task

CHUNK = 2**20  # numbers of a (settings, examples) or (draws, examples) block held at a time


def compute_metrics(task: Task, predictions: ArrayLike, labels: ArrayLike) -> dict[str, float]:
    """Compute the task's metrics from class ids, or from scores for regression; both (examples,).

    A correlation with constant predictions is 0.0.
    """
    answers = np.asarray(predictions, dtype=float)
    targets = np.asarray(labels, dtype=float)
    once = np.ones((1, len(targets)))
    metrics = METRICS[task.metric](answers[None], targets, once)
    return {name: values.item() for name, values in metrics.items()}


def chunks(count: int, width: int) -> Iterator[slice]:
    """Yield slices over `count` rows of `width` numbers, each of about CHUNK numbers."""
    step = max(1, CHUNK // max(1, width))
    for start in range(0, count, step):
        yield slice(start, start + step)


def at_exit(by_layer: np.ndarray, exit_layer: np.ndarray) -> np.ndarray:
    """Pick answers under each setting: (layers, examples) at (settings, examples) -> the latter.

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
    """Compute the metrics of each setting's answers, by name: (settings,), or (settings, draws).

    predictions: (layers, examples) class ids, or values for regression; labels: (examples,); of
    several labels an example, of 0 and 1, both have one more dimension, as everywhere here.
    exit_layer: (settings, examples), 1-based.
    weights: (draws, examples), how often each example counts; None: once.
    """
    single = weights is None
    weights = np.ones((1, len(labels))) if single else weights.astype(float)
    function = METRICS[task.metric]
    pieces = [
        function(at_exit(predictions, exit_layer[rows]), labels, weights)
        for rows in chunks(len(exit_layer), labels.size)
    ]
    joined = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    return {name: values[:, 0] for name, values in joined.items()} if single else joined


def bootstrap_weights(examples: int, draws: int, seed: int) -> np.ndarray:
    """Count each example in the sample, and in each resample: (1 + draws, examples)."""
    rng = np.random.default_rng(seed)
    resamples = rng.multinomial(examples, np.full(examples, 1 / examples), size=draws)
    return np.concatenate((np.ones((1, examples), dtype=int), resamples))


def interval(drawn: np.ndarray) -> np.ndarray:
    """The percentile bootstrap's 95% interval of a metric (…, 1 + draws): (2, …)."""
    return np.quantile(drawn[..., 1:], [0.025, 0.975], axis=-1)


def ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Their quotient, 0 where the denominator is 0: how the metrics define the undefined."""
    safe = np.where(denominator > 0, denominator, 1.0)
    return np.where(denominator > 0, numerator / safe, 0.0)


# Each (settings, examples) answers, (examples,) labels, (draws, examples) weights ->
# name -> (settings, draws).


def accuracy(answers: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> dict:
    return {"acc": counted(answers == labels, weights) / weights.sum(1)}


def counted(rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Number of examples of each draw in `rows`, (…, examples) bool: (…, draws)."""
    return rows.astype(float) @ weights.T


def accuracy_and_f1(answers: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> dict:
    """F1 of class 1 as 2·TP / (predicted + true)."""
    acc = accuracy(answers, labels, weights)["acc"]
    predicted, true = answers == 1, labels == 1
    both = counted(predicted & true, weights)
    f1 = ratio(2 * both, counted(predicted, weights) + counted(true, weights))
    return {"acc": acc, "f1": f1, "acc_and_f1": (acc + f1) / 2}


def f1_of_labels(answers: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> dict:
    """F1 over all labels together, and the mean F1 of a label; both have a dimension of labels."""
    count = labels.size // len(labels)
    predicted, true = (
        np.moveaxis(values.reshape(-1, len(labels), count) > 0, -1, 0)
        for values in (answers, labels)
    )
    both = counted(predicted & true, weights)  # (labels, settings, draws)
    either = counted(predicted, weights) + counted(true, weights)
    micro = ratio(2 * both.sum(0), either.sum(0))
    return {"f1_micro": micro, "f1_macro": ratio(2 * both, either).mean(0)}


def matthews(answers: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> dict:
    """Gorodkin's R_K, the many-class form of MCC, as scikit-learn has it."""
    total, right = weights.sum(1), counted(answers == labels, weights)
    classes = np.arange(max(answers.max(), labels.max()) + 1)
    predicted = counted(answers == classes[:, None, None], weights)  # (classes, settings, draws)
    true = counted(labels == classes[:, None, None], weights)
    covariance = right * total - (predicted * true).sum(0)
    spread = (total**2 - (predicted**2).sum(0)) * (total**2 - (true**2).sum(0))
    return {"mcc": ratio(covariance, np.sqrt(np.maximum(spread, 0)))}


def correlations(answers: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> dict:
    """Pearson's r of the values, and of their ranks (Spearman); 0 where a side is constant."""
    answers, labels = answers.astype(float), labels.astype(float)
    shape = (len(answers), len(weights))
    pearson, spearman = np.empty(shape), np.empty(shape)
    for draws in chunks(len(weights), len(labels)):
        some = weights[draws]
        label_ranks = ranks(labels, some)
        for i, values in enumerate(answers):
            pearson[i, draws] = correlation(values, labels, some)
            spearman[i, draws] = correlation(ranks(values, some), label_ranks, some)
    return {"pearson": pearson, "spearmanr": spearman, "corr": (pearson + spearman) / 2}


def correlation(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Weighted Pearson's r of (examples,) or (draws, examples) values -> (draws,)."""
    total = weights.sum(1)

    def mean(values: np.ndarray) -> np.ndarray:
        return np.einsum("de,de->d", weights, np.broadcast_to(values, weights.shape)) / total

    def spread(values: np.ndarray) -> np.ndarray:
        square = mean(values * values)
        variance = square - mean(values) ** 2
        # What rounding leaves of a constant side is nothing: r is 0 there, not noise.
        return np.where(variance > 1e-12 * square, variance, 0.0)

    x, y = x - x[..., :1], y - y[..., :1]
    return ratio(mean(x * y) - mean(x) * mean(y), np.sqrt(spread(x) * spread(y)))


def ranks(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Ranks of (examples,) values when each is there `weights` (draws, examples) times.

    Equal values share the mean of their ranks, as in scipy.stats.rankdata: (draws, examples).
    """
    _, run = np.unique(values, return_inverse=True)
    counts = np.stack([np.bincount(run, times) for times in weights])  # (draws, runs)
    return (counts.cumsum(1) - (counts - 1) / 2)[:, run]


METRICS: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], dict]] = {
    "acc": accuracy,
    "mcc": matthews,
    "f1_micro": f1_of_labels,
    ACC_F1: accuracy_and_f1,
    "corr": correlations,
}


def frontier(cost: np.ndarray, metric: np.ndarray) -> np.ndarray:
    """The settings that no other beats: none is as good on both cost and metric, better on one.

    (settings,), (settings,) -> their numbers in order of cost; of equal ones the first.
    """
    order = np.lexsort((np.arange(len(cost)), -metric, cost))
    best_before = np.maximum.accumulate(np.r_[-np.inf, metric[order][:-1]])
    return order[metric[order] > best_before]


def concave_hull(cost: np.ndarray, metric: np.ndarray) -> np.ndarray:
    """The settings of the frontier that no mixture of two others beats, by rising cost."""
    hull: list[int] = []
    for i in frontier(cost, metric):
        while len(hull) > 1:
            first, last = hull[-2:]
            rise, whole = metric[last] - metric[first], metric[i] - metric[first]
            if rise * (cost[i] - cost[first]) > whole * (cost[last] - cost[first]):
                break
            hull.pop()
        hull.append(int(i))
    return np.array(hull)
