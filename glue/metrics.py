"""The tasks' metrics, under their published names, and scorers of the user's choice.

Each is computed for many sets of answers and many weightings of the examples at once: sweeps have
thousands of exit settings, and bootstrap intervals thousands of draws.
"""

import os
import pkgutil
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.metrics import get_scorer, get_scorer_names

from glue.splits import parse_number
from glue.tasks import ACC_F1, Task
from modeling.errors import UserError
from modeling.keys import nearest_names
from modeling.labels import shown

CHUNK_NUMBERS = 2**20  # numbers of a (settings, examples) or (draws, examples) block held at a time


def compute_metrics(task: Task, predictions: ArrayLike, labels: ArrayLike) -> dict[str, float]:
    """Compute the task's metrics, by name: for MRPC acc, f1 and acc_and_f1.

    A correlation with constant predictions is 0.0.

    Args:
        predictions: class ids, or scores for regression, (examples,); for several labels 0 and 1,
            (examples, labels).
        labels: of the same shape.
    """
    answers = np.asarray(predictions, dtype=float)
    targets = np.asarray(labels, dtype=float)
    count_once = np.ones((1, len(targets)))
    metrics = weighted_metrics(task, answers[None], targets, count_once)
    return {name: values.item() for name, values in metrics.items()}


def weighted_metrics(
    task: Task, answers: np.ndarray, labels: np.ndarray, weights: np.ndarray
) -> dict[str, np.ndarray]:
    """Compute the task's metrics, and its scorer, for many sets of answers and many weightings.

    Args:
        answers: (settings, examples), or (settings, examples, labels).
        labels: (examples,), or (examples, labels).
        weights: (draws, examples) float, how often each example counts.

    Returns:
        (settings, draws) each.
    """
    metrics = METRICS[task.metric](answers, labels, weights)
    if task.scorer and task.scorer not in metrics:
        metrics[task.scorer] = scores(task, answers, labels, weights)
    return metrics


def metric_names(task: Task) -> list[str]:
    """List the names of the task's metrics, and of its scorer."""
    toy = np.zeros((1, 1))
    names = list(METRICS[task.metric](toy, toy[0], toy + 1))
    if task.scorer and task.scorer not in names:
        names.append(task.scorer)
    return names


def chunks(count: int, width: int) -> Iterator[slice]:
    """Yield slices over `count` rows of `width` numbers, each of about CHUNK_NUMBERS numbers."""
    step = max(1, CHUNK_NUMBERS // max(1, width))
    for start in range(0, count, step):
        yield slice(start, start + step)


# The metrics. Each takes
#   answers  (settings, examples)
#   labels   (examples,)
#   weights  (draws, examples) float, how often each example counts
# and returns (settings, draws) values by name. Of several labels an example, answers and labels
# have a last dimension more.


def accuracy(answers: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> dict[str, np.ndarray]:
    """Compute the share of right answers."""
    return {"acc": weighted_count(answers == labels, weights) / weights.sum(1)}


def accuracy_and_f1(
    answers: np.ndarray, labels: np.ndarray, weights: np.ndarray
) -> dict[str, np.ndarray]:
    """Compute accuracy, F1 of class 1 as 2·TP / (predicted + true), and the mean of both."""
    acc = accuracy(answers, labels, weights)["acc"]
    is_predicted = answers == 1
    is_true = labels == 1
    true_positives = weighted_count(is_predicted & is_true, weights)
    predicted = weighted_count(is_predicted, weights)
    true = weighted_count(is_true, weights)
    f1 = ratio(2 * true_positives, predicted + true)
    return {"acc": acc, "f1": f1, "acc_and_f1": (acc + f1) / 2}


def f1_of_labels(
    answers: np.ndarray, labels: np.ndarray, weights: np.ndarray
) -> dict[str, np.ndarray]:
    """Compute F1 over all labels together (micro), and the mean F1 of a label (macro)."""
    examples = len(labels)
    num_labels = labels.size // examples
    # Labels first: (labels, settings, examples) and (labels, 1, examples).
    is_predicted = np.moveaxis(answers.reshape(-1, examples, num_labels) > 0, -1, 0)
    is_true = np.moveaxis(labels.reshape(-1, examples, num_labels) > 0, -1, 0)
    true_positives = weighted_count(is_predicted & is_true, weights)  # (labels, settings, draws)
    predicted = weighted_count(is_predicted, weights)
    true = weighted_count(is_true, weights)
    micro = ratio(2 * true_positives.sum(0), (predicted + true).sum(0))
    macro = ratio(2 * true_positives, predicted + true).mean(0)
    return {"f1_micro": micro, "f1_macro": macro}


def matthews(answers: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> dict[str, np.ndarray]:
    """Compute Gorodkin's R_K, the many-class form of MCC, as scikit-learn has it."""
    total = weights.sum(1)
    right = weighted_count(answers == labels, weights)
    num_classes = max(answers.max(), labels.max()) + 1
    classes = np.arange(num_classes)[:, None, None]
    predicted = weighted_count(answers == classes, weights)  # (classes, settings, draws)
    true = weighted_count(labels == classes, weights)  # (classes, 1, draws)
    covariance = right * total - (predicted * true).sum(0)
    predicted_variance = total**2 - (predicted**2).sum(0)
    true_variance = total**2 - (true**2).sum(0)
    # Rounding may leave a variance slightly below 0.
    variances = np.maximum(predicted_variance * true_variance, 0)
    return {"mcc": ratio(covariance, np.sqrt(variances))}


def correlations(
    answers: np.ndarray, labels: np.ndarray, weights: np.ndarray
) -> dict[str, np.ndarray]:
    """Compute Pearson's r, Spearman's, which is Pearson's of the ranks, and the mean of both.

    They are 0 where answers or labels are constant.
    """
    answers = answers.astype(float)
    labels = labels.astype(float)
    pearson = np.empty((len(answers), len(weights)))
    spearman = np.empty((len(answers), len(weights)))
    for draws in chunks(len(weights), len(labels)):
        draw_weights = weights[draws]
        label_ranks = ranks(labels, draw_weights)
        for setting, values in enumerate(answers):
            value_ranks = ranks(values, draw_weights)
            pearson[setting, draws] = correlation(values, labels, draw_weights)
            spearman[setting, draws] = correlation(value_ranks, label_ranks, draw_weights)
    return {"pearson": pearson, "spearmanr": spearman, "corr": (pearson + spearman) / 2}


def class_averages(
    answers: np.ndarray, labels: np.ndarray, weights: np.ndarray
) -> dict[str, np.ndarray]:
    """Compute F1 averaged over the classes, also by their counts, and the mean recall.

    As in scikit-learn, a class counts where an answer or a label has it; for the mean recall, where
    a label has it.
    """
    num_classes = int(max(answers.max(), labels.max())) + 1
    zeros = np.zeros((len(answers), len(weights)))
    f1_sum, f1_by_count, recall_sum = zeros.copy(), zeros.copy(), zeros.copy()
    occurring, labelled = zeros.copy(), zeros.copy()  # number of classes
    for number in range(num_classes):
        is_predicted = answers == number
        is_true = labels == number
        true_positives = weighted_count(is_predicted & is_true, weights)
        predicted = weighted_count(is_predicted, weights)
        true = np.broadcast_to(weighted_count(is_true, weights), predicted.shape)
        f1 = ratio(2 * true_positives, predicted + true)
        f1_sum += f1
        f1_by_count += f1 * true
        recall_sum += ratio(true_positives, true)
        occurring += predicted + true > 0
        labelled += true > 0
    return {
        "f1_macro": f1_sum / occurring,
        "f1_weighted": f1_by_count / weights.sum(1),
        "balanced_accuracy": recall_sum / labelled,
    }


METRICS: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], dict[str, np.ndarray]]] = {
    "acc": accuracy,
    "mcc": matthews,
    "f1_micro": f1_of_labels,
    ACC_F1: accuracy_and_f1,
    "corr": correlations,
}


# Scorers of the user's choice.

# Those of scikit-learn's for one label an example that are computed for all draws at once, each
# with the name that its function gives it. Others are computed draw by draw: milliseconds each.
FAST_SCORERS = {
    "accuracy": (accuracy, "acc"),
    "f1": (accuracy_and_f1, "f1"),
    "matthews_corrcoef": (matthews, "mcc"),
    "f1_macro": (class_averages, "f1_macro"),
    "f1_weighted": (class_averages, "f1_weighted"),
    "balanced_accuracy": (class_averages, "balanced_accuracy"),
}


# Scorers that are of one class of two, the positive one.
ONE_CLASS_SCORERS = ("f1", "precision", "recall", "jaccard")


class GivenAnswers(BaseEstimator):
    """An estimator that answers with what it is given, for scikit-learn's scorers."""

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return X."""
        return X


def with_scorer(task: Task, name: str | None, positive_label: str | None = None) -> Task:
    """Return the task with another main metric: what curves, thresholds and checkpoints go by.

    Args:
        name: one of the task's metrics; a scorer of scikit-learn's, such as f1_macro; or
            module.function, whose function(labels, answers) returns a number: the higher, the
            better. Modules in the current folder are found. Classes are numbers, in the order of
            `task.labels`. None: the task as it is.
        positive_label: of two classes, the one that f1, precision, recall and jaccard are of.
            GLUE's own tasks, and classes that are numbers, have one: the second.

    Raises:
        UserError: an unknown name; one that has no value for such labels; a positive label that is
            none of two classes, or is missing.
    """
    task = with_positive_label(task, name, positive_label)
    if name is None or name in metric_names(task):
        return replace(task, scorer=name or "")
    if "." not in name and name not in get_scorer_names():
        known_names = [*metric_names(task), *get_scorer_names()]
        raise UserError(
            f"--metric_name {name}: {nearest_names(name, known_names)}; or module.function, of "
            "your own"
        )
    # Now, not after hours: each class is there, and answers are right and wrong.
    labels = np.arange(2 * task.num_labels) % task.num_labels
    if task.multi_label:
        labels = np.eye(task.num_labels)[labels]
    elif task.is_regression:
        labels = np.linspace(1, 2, 4)
    answers = np.concatenate((labels[:-1], labels[:1]))
    score(task, name, answers, labels)
    return replace(task, scorer=name)


def check_any_answer(task: Task) -> None:
    """Raise UserError for a scorer of values that has none for answers below 0.

    A network that is being trained may give such answers, whatever its labels are.
    """
    if not (task.is_regression and task.scorer):
        return
    labels = np.linspace(1, 2, 4)
    try:
        score(task, task.scorer, labels[::-1] - 3, labels)
    except UserError as error:
        raise UserError(
            f"{error}; a model may answer below 0, whatever the labels are: give module.function, "
            "of your own, which clips the answers"
        ) from error


def with_positive_label(task: Task, name: str | None, positive_label: str | None) -> Task:
    """Return the task with its positive class; see `with_scorer`."""
    choices = " or ".join(f"--positive_label {label}" for label in task.labels)
    if positive_label is not None:
        number = task.label_number(positive_label)
        if number is None or len(task.labels) != 2:
            labels = shown(task.labels) or "scores"
            raise UserError(f"--positive_label {positive_label}: allowed is one of two: {labels}")
        return replace(task, positive=number)
    are_names = any(parse_number(label) is None for label in task.labels)
    is_own = not task.folder and len(task.labels) == 2 and not task.multi_label
    if name in ONE_CLASS_SCORERS and is_own and are_names:
        raise UserError(f"--metric_name {name}: of which class? Give {choices}")
    return task


def positive_class(task: Task) -> str:
    """Return the name of the class that the task's scorer is of; "" where it is of all classes."""
    is_of_one = task.scorer in ONE_CLASS_SCORERS and len(task.labels) == 2
    return task.labels[task.positive] if is_of_one and not task.multi_label else ""


def positive_lines(task: Task) -> list[str]:
    """Say which class the task's scorer is of: a line, or none where it is of all classes."""
    name = positive_class(task)
    return [f"{task.scorer} is of the class {name!r}"] if name else []


def scores(task: Task, answers: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Compute the task's scorer: (settings, draws); see `weighted_metrics`."""
    if positive_class(task) and task.positive == 0:  # scikit-learn's are of class 1
        answers = 1 - answers
        labels = 1 - labels
    if task.scorer in FAST_SCORERS and not (task.is_regression or task.multi_label):
        compute, name = FAST_SCORERS[task.scorer]
        return compute(answers, labels, weights)[name]
    values = np.empty((len(answers), len(weights)))
    for draw, counts in enumerate(weights):
        rows = np.repeat(np.arange(len(labels)), counts.astype(int))
        for setting, setting_answers in enumerate(answers):
            values[setting, draw] = score(task, task.scorer, setting_answers[rows], labels[rows])
    return values


def score(task: Task, name: str, answers: np.ndarray, labels: np.ndarray) -> float:
    """Compute a scorer by its name; raises UserError where it has no finite value.

    answers, labels: (examples,), or (examples, labels).
    """
    if not task.is_regression:
        answers, labels = answers.astype(int), labels.astype(int)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a class that an answer or a draw lacks
            if name in get_scorer_names():
                value = float(get_scorer(name)(GivenAnswers(), answers, labels))
            else:
                value = float(own_function(name)(labels, answers))
    except Exception as error:  # what a user's function, or scikit-learn's, may raise
        raise UserError(f"--metric_name {name}: {type(error).__name__}: {error}") from error
    if not np.isfinite(value):
        raise UserError(f"--metric_name {name}: {value} of {len(labels)} examples is no number")
    return value


@cache
def own_function(name: str) -> Callable[[np.ndarray, np.ndarray], float]:
    """Import module.function; modules in the current folder are found."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    return pkgutil.resolve_name(name)


# What they are computed from.


def weighted_count(rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Count the examples of each draw that are in `rows`, (…, examples) bool: (…, draws)."""
    return rows.astype(float) @ weights.T


def ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Divide, with 0 where the denominator is 0: that is how the metrics define the undefined."""
    safe_denominator = np.where(denominator > 0, denominator, 1.0)
    return np.where(denominator > 0, numerator / safe_denominator, 0.0)


def correlation(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Compute weighted Pearson's r of (examples,) or (draws, examples) values: (draws,).

    It is 0 where a side is constant.
    """
    # Less rounding where values are far from 0; r does not change.
    x = x - x[..., :1]
    y = y - y[..., :1]
    mean_x = weighted_mean(x, weights)
    mean_y = weighted_mean(y, weights)
    covariance = weighted_mean(x * y, weights) - mean_x * mean_y
    variances = weighted_variance(x, weights) * weighted_variance(y, weights)
    return ratio(covariance, np.sqrt(variances))


def weighted_mean(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Compute the mean of (examples,) or (draws, examples) values in each draw: (draws,)."""
    by_draw = np.broadcast_to(values, weights.shape)
    return np.einsum("de,de->d", weights, by_draw) / weights.sum(1)


def weighted_variance(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Compute the variance in each draw: (draws,); exactly 0 where all values are equal."""
    mean_square = weighted_mean(values * values, weights)
    variance = mean_square - weighted_mean(values, weights) ** 2
    # What rounding leaves of a constant side would make r noise.
    return np.where(variance > 1e-12 * mean_square, variance, 0.0)


def ranks(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Rank (examples,) values, each of which counts `weights` (draws, examples) times.

    Equal values share the mean of their ranks, as in scipy.stats.rankdata. Returns (draws,
    examples).
    """
    _, distinct = np.unique(values, return_inverse=True)  # which distinct value each example has
    counts = np.stack([np.bincount(distinct, times) for times in weights])  # (draws, distinct)
    mean_ranks = counts.cumsum(1) - (counts - 1) / 2
    return mean_ranks[:, distinct]
