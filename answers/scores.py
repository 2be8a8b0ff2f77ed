"""What a data set's answers say of each class, and what is suspect about them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from glue.metrics import compute_metrics
from glue.tasks import Task, label_text

NO_EXITS = "no example exits early"
MOST = 20  # classes that are named in a picture


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
        """Give what there is, by the names that eval_results.json has."""
        if not self.classes:
            return {}
        values = asdict(self)
        return {name: value for name, value in values.items() if value is not None}

    def lines(self) -> list[str]:
        """Write lines for the console: each class's scores, and their mean F1."""
        if not self.classes:
            return []
        lines = [
            f"{name}: precision {x.precision:.4f}, recall {x.recall:.4f}, F1 {x.f1:.4f}, "
            f"{x.examples:.0f} examples"
            for name, x in self.classes.items()
        ]
        return [*lines, f"macro F1 = {self.macro_f1:.4f}"]


def class_scores(task: Task, answers: np.ndarray, labels: np.ndarray) -> ClassScores:
    """Score each class.

    answers, labels: (examples,) class ids, or of several labels (examples, labels) of 0 and 1.
    """
    if task.is_regression:
        return ClassScores()
    ids = range(task.num_labels)
    labels, answers = labels.astype(int), answers.astype(int)
    # Four arrays (classes,): without an average, sklearn gives a number for each class.
    columns = precision_recall_fscore_support(labels, answers, labels=ids, zero_division=0)
    by_class = np.array(columns, dtype=float).T
    classes = {
        name: ClassScore(*map(float, row)) for name, row in zip(task.labels, by_class, strict=True)
    }
    f1 = by_class[:, 2]
    confusion = None
    if not task.multi_label:
        confusion = confusion_matrix(labels, answers, labels=ids).tolist()
    return ClassScores(classes, float(np.mean(f1)), confusion)


def remarks(
    task: Task,
    answers: np.ndarray,
    labels: np.ndarray,
    exit_layer: np.ndarray | None = None,
    layers: int = 1,
) -> list[str]:
    """Say what is suspect about answers: nothing exits early, one answer, no better than chance.

    answers, labels: (examples,) class ids, or values for regression; exit_layer: (examples,),
    1-based, of a model of so many `layers`; None where examples do not exit.
    """
    found = []
    if exit_layer is not None and layers > 1 and (exit_layer == layers).all():
        found.append(NO_EXITS)
    kinds = np.unique(answers, axis=0)
    if len(kinds) == 1 and len(answers) > 1:
        name = f"{kinds[0]:.6g}" if task.is_regression else repr(label_text(task, kinds[0]))
        return [*found, f"all examples get the answer {name}"]
    if task.multi_label:
        never = (labels > 0).any(0) & ~answers.any(0)
        names = [task.labels[i] for i in np.flatnonzero(never)]
        return [*found, *(f"label {name!r} is never answered" for name in names)]
    if not task.is_regression:
        missing = [(task.labels[i], (labels == i).sum()) for i in np.setdiff1d(labels, kinds)]
        found += [f"class {name!r} is never answered: {n} examples" for name, n in missing]
    metric = task.primary_metric
    value, chance = compute_metrics(task, answers, labels)[metric], 2 / len(labels) ** 0.5
    means = f"with {len(labels)} examples, up to {chance:.2f} is no sign of a relation"
    if metric == "acc":  # the commonest class, instead of two standard errors of a correlation of 0
        kinds, counts = np.unique(labels, return_counts=True)
        chance, name = counts.max() / len(labels), task.labels[int(kinds[counts.argmax()])]
        means = f"always answering {name!r} gets {chance:.4f}"
    if value <= chance:
        found.append(f"{metric} {value:.4f} is at chance: {means}")
    return found


def remark_lines(found: Sequence[str], folder: Path | str) -> list[str]:
    """Lines for the console; where nothing exits early, with the command that helps."""
    advice = f"; try sweep_exits.py --model_dir {folder} --pick max_drop=0.01 with the data's flags"
    return [f"suspect: {x}{advice if x == NO_EXITS else ''}" for x in found]
