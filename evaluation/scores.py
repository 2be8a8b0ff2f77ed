"""What a data set's answers say of each class or score, and what is suspect about them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import (
    confusion_matrix,
    precision_recall_fscore_support,
    r2_score,
    root_mean_squared_error,
)

from glue.metrics import compute_metrics
from glue.submission import label_text
from glue.tasks import Task

NO_EXITS = "no example exits early"
NEARLY_ALL = 0.99  # share of the examples that exit after one layer, from which exits do nothing


@dataclass(frozen=True)
class ClassScore:
    """Precision, recall and F1 of a class, and how many examples have it."""

    precision: float
    recall: float
    f1: float
    examples: float


@dataclass(frozen=True)
class ClassScores:
    """What the answers say of each class; nothing for regression."""

    classes: dict[str, ClassScore] = field(default_factory=dict)  # by name
    macro_f1: float | None = None  # the mean F1
    # How many examples of each label (a row) get each answer (a column); None for several labels.
    confusion: list[list[int]] | None = None

    def as_json(self) -> dict[str, Any]:
        """Return what there is, under the names of eval_results.json."""
        if not self.classes:
            return {}
        return {name: value for name, value in asdict(self).items() if value is not None}

    def lines(self) -> list[str]:
        """Write lines for the console: each class's scores, and their mean F1."""
        if not self.classes:
            return []
        lines = [
            f"{name}: precision {score.precision:.4f}, recall {score.recall:.4f}, "
            f"F1 {score.f1:.4f}, {score.examples:.0f} examples"
            for name, score in self.classes.items()
        ]
        return [*lines, f"macro F1 = {self.macro_f1:.4f}"]


def class_scores(task: Task, answers: np.ndarray, labels: np.ndarray) -> ClassScores:
    """Score each class.

    answers, labels: (examples,) class ids, or of several labels (examples, labels) of 0 and 1.
    """
    if task.is_regression:
        return ClassScores()
    class_ids = range(task.num_labels)
    labels = labels.astype(int)
    answers = answers.astype(int)
    # Not scikit-learn's report: its rows `accuracy` and `macro avg` may be names of classes.
    # Four arrays (classes,): without an average, sklearn gives a number for each class.
    columns = precision_recall_fscore_support(labels, answers, labels=class_ids, zero_division=0)
    by_class = np.array(columns, dtype=float).T.tolist()
    classes = {}
    for name, (precision, recall, f1, examples) in zip(task.labels, by_class, strict=True):
        classes[name] = ClassScore(precision, recall, f1, examples)
    confusion = None
    if not task.multi_label:
        confusion = confusion_matrix(labels, answers, labels=class_ids).tolist()
    return ClassScores(
        classes=classes,
        macro_f1=float(np.mean([score.f1 for score in classes.values()])),
        confusion=confusion,
    )


@dataclass(frozen=True)
class ScoreErrors:
    """How far the answers of a regression are from the labels, in the labels' units."""

    rmse: float  # root of the mean squared error
    rmse_of_mean: float  # of always answering the labels' mean: their standard deviation
    mean: float
    r2: float  # the share of the labels' variance that the answers explain

    @classmethod
    def of(cls, answers: np.ndarray, labels: np.ndarray) -> "ScoreErrors":
        """Compare answers with labels, (examples,) each."""
        targets = np.asarray(labels, dtype=float)
        values = np.asarray(answers, dtype=float)
        return cls(
            rmse=float(root_mean_squared_error(targets, values)),
            rmse_of_mean=float(targets.std()),
            mean=float(targets.mean()),
            r2=float(r2_score(targets, values)) if len(targets) > 1 else 0.0,
        )

    def lines(self) -> list[str]:
        """Write lines for the console."""
        return [
            f"RMSE = {self.rmse:.6g}; always answering the mean, {self.mean:.6g}, gets "
            f"{self.rmse_of_mean:.6g}",
            f"R2 = {self.r2:.4f}",
        ]


def remarks(
    task: Task,
    answers: np.ndarray,
    labels: np.ndarray,
    exit_layer: np.ndarray | None = None,
    layers: int = 1,
) -> list[str]:
    """Say what is suspect about answers: nothing exits early, one answer, no better than chance.

    Args:
        answers, labels: (examples,) class ids, or values for regression; of several labels
            (examples, labels) of 0 and 1.
        exit_layer: (examples,), 1-based; None where examples do not exit.
        layers: of the model.
    """
    texts = []
    if exit_layer is not None and layers > 1:
        layer = int(np.bincount(exit_layer).argmax())
        share = float((exit_layer == layer).mean())
        if layer == layers and share == 1:
            texts.append(NO_EXITS)
        elif layer < layers and share >= NEARLY_ALL:
            texts.append(one_layer_remark(layer, share))
    distinct_answers = np.unique(answers, axis=0)
    if len(distinct_answers) == 1 and len(answers) > 1:
        answer = distinct_answers[0]
        text = f"{answer:.6g}" if task.is_regression else repr(label_text(task, answer))
        return [*texts, f"all examples get the answer {text}"]
    if task.multi_label:
        has_examples = (labels > 0).any(0)  # (labels,)
        is_answered = answers.any(0)
        for label in np.flatnonzero(has_examples & ~is_answered):
            texts.append(f"label {task.labels[label]!r} is never answered")
        return texts
    if not task.is_regression:
        for label in np.setdiff1d(labels, distinct_answers):
            count = (labels == label).sum()
            texts.append(f"class {task.labels[label]!r} is never answered: {count} examples")
    return [*texts, *chance_remarks(task, answers, labels)]


def one_layer_remark(layer: int, share: float) -> str:
    """Say that no exits are needed where all or nearly all examples exit after the same layer."""
    network = "1 layer" if layer == 1 else f"{layer} layers"
    subject = "all examples" if share == 1 else f"{share:.1%} of the examples"
    return (
        f"{subject} exit after layer {layer}: a fixed-depth network of {network} would do, "
        f"without exits: train one with num_hidden_layers = {layer}"
    )


def chance_remarks(task: Task, answers: np.ndarray, labels: np.ndarray) -> list[str]:
    """Say so where the task's own main metric is not above chance; else return [].

    Of accuracy it is the share of the commonest class, of a correlation two standard errors of a
    correlation of 0. Values are also compared with the labels' mean: a correlation does not see
    that they are in other units. answers, labels: (examples,).
    """
    metric = task.usual_metric
    value = compute_metrics(task, answers, labels)[metric]
    if metric == "acc":
        classes, counts = np.unique(labels, return_counts=True)
        commonest = counts.argmax()
        chance = counts[commonest] / len(labels)
        class_name = task.labels[int(classes[commonest])]
        meaning = f"always answering {class_name!r} gets {chance:.4f}"
    else:
        chance = 2 / len(labels) ** 0.5
        meaning = f"with {len(labels)} examples, up to {chance:.2f} is no sign of a relation"
    texts = [f"{metric} {value:.4f} is at chance: {meaning}"] if value <= chance else []
    if task.is_regression:
        errors = ScoreErrors.of(answers, labels)
        if errors.rmse >= errors.rmse_of_mean:
            texts.append(
                f"RMSE {errors.rmse:.6g} is no better than the mean's: always answering "
                f"{errors.mean:.6g} gets {errors.rmse_of_mean:.6g}"
            )
    return texts


def remark_lines(texts: Sequence[str], folder: Path | str) -> list[str]:
    """Write lines for the console; where nothing exits early, with the command that helps.

    texts: of `remarks`. folder: of the model.
    """
    lines = []
    for text in texts:
        line = f"suspect: {text}"
        if text == NO_EXITS:
            line += (
                f"; try sweep_exits.py --model_dir {folder} --pick max_drop=0.01 with the data's "
                "flags"
            )
        lines.append(line)
    return lines
