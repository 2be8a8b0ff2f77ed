"""--class_weights: how much each class counts in a task's loss."""

from collections.abc import Sequence

import numpy as np

from glue.splits import parse_number
from glue.tasks import Task
from modeling.errors import UserError
from modeling.keys import LARGEST_FLOAT32


def check_class_weights(texts: Sequence[str], task: Task) -> None:
    """Raise UserError unless --class_weights is `balanced` or a positive number for each class."""
    if task.is_regression:
        raise UserError("--class_weights: the labels are scores, and have no classes")
    if list(texts) == ["balanced"]:
        return
    weights = [parse_number(text) or 0.0 for text in texts]
    if len(weights) != task.num_labels or not all(0 < x < LARGEST_FLOAT32 for x in weights):
        raise UserError(
            f"--class_weights {' '.join(texts)}: allowed is balanced, or a positive number for "
            f"each of the classes {', '.join(task.labels[:20])}"
        )


def class_weights(texts: Sequence[str], task: Task, labels: np.ndarray) -> dict[str, float]:
    """Read --class_weights: the weight in the loss of each class, by its name.

    Args:
        texts: the flag's values: a number for each class, or `balanced` alone.
        labels: of the training examples: class ids (examples,), −100 for no label; or 0 and 1 for
            each of several labels, (examples, labels).

    Raises UserError for scores in place of classes, for a class without an example, and for
    anything but positive numbers.
    """
    check_class_weights(texts, task)
    if list(texts) == ["balanced"]:
        weights = balanced_weights(task, labels)
    else:
        weights = [float(text) for text in texts]
    return dict(zip(task.labels, weights, strict=True))


def balanced_weights(task: Task, labels: np.ndarray) -> list[float]:
    """Compute weights by which all classes count the same; labels: as `class_weights`.

    Those of classes are scikit-learn's, examples / (classes · examples of the class). That of one
    of several labels is the number of examples without it for each one that has it, and 1 where
    all have it.
    """
    from sklearn.utils.class_weight import compute_class_weight  # a second to import

    label_ids = np.nonzero(labels)[1] if task.multi_label else labels[labels >= 0]
    for number, name in enumerate(task.labels):
        if number not in label_ids:
            raise UserError(f"--class_weights balanced: no training example is {name!r}")
    if task.multi_label:
        shares = labels.mean(0)
        # No weight balances a label that every example has: it keeps 1. By the formula it would get
        # 0, and would never be learnt.
        weights = np.where(shares < 1, 1 / shares - 1, 1.0)
    else:
        classes = np.arange(task.num_labels)
        weights = compute_class_weight("balanced", classes=classes, y=label_ids)
    return weights.tolist()
