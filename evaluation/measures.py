"""Measures of a data set's answers, given as logits: the task's metrics, and every layer's."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from glue.features import Features
from glue.metrics import compute_metrics
from glue.tables import as_csv
from glue.tasks import Task
from modeling.errors import UserError
from modeling.losses import task_loss
from modeling.rules import exit_scores, normalised_entropy

LAYER_STATISTICS = ("loss", "entropy", "accuracy")  # columns of a layer table


def predictions_of(logits: Tensor, multi_label: bool = False) -> np.ndarray:
    """Turn logits (..., num_labels) into predictions.

    Returns class ids, or the values of a single output, (...). With `multi_label` it returns which
    of the labels are there: bool (..., num_labels).
    """
    if multi_label:
        return (logits > 0).numpy()
    if logits.shape[-1] == 1:
        return logits[..., 0].numpy()
    return logits.argmax(-1).numpy()


def labels_of(features: Features) -> np.ndarray:
    """Return class ids or scores, (examples,); of several labels 0 and 1, (examples, num_labels).

    Raises UserError where the file has none.
    """
    if features.labels is None:
        raise UserError("the file has no labels; evaluate on the dev file, or use --do_predict")
    return features.labels


def metrics_of(task: Task, logits: Tensor, labels: np.ndarray) -> dict[str, float]:
    """Compute the task's metrics of answers (examples, num_labels), by name."""
    return compute_metrics(task, predictions_of(logits, task.multi_label), labels)


def layer_curve(task: Task, all_logits: Tensor, labels: np.ndarray) -> list[float]:
    """Compute the task's main metric of every layer's answers (layers, examples, num_labels)."""
    return [metrics_of(task, logits, labels)[task.primary_metric] for logits in all_logits]


def layer_table(all_logits: Tensor, labels: Tensor, exit_layer: Tensor | None = None) -> str:
    """Format loss, entropy and accuracy of every layer as CSV; see `layer_statistics`.

    Args:
        all_logits: (layers, examples, num_labels).
        labels: (examples,), or (examples, num_labels) of 0 and 1.
        exit_layer: (examples,), 1-based: then only the examples that exit at a layer count there.
            Default: all examples count at every layer.
    """
    rows = []
    for layer, logits in enumerate(all_logits, start=1):
        layer_labels = labels
        if exit_layer is not None:
            exits_here = exit_layer == layer
            logits, layer_labels = logits[exits_here], labels[exits_here]
        statistics = layer_statistics(logits, layer_labels)
        row: dict[str, Any] = {"layer": layer, "samples": len(layer_labels)}
        for name in LAYER_STATISTICS:
            row[name] = f"{statistics[name]:.6f}" if name in statistics else ""
        rows.append(row)
    return as_csv(rows)


def layer_statistics(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """Compute mean loss, mean normalised entropy and accuracy of a layer's answers, by name.

    Regression has only a loss, and no examples have nothing. An answer of several labels is right
    if all of them are.

    logits: (examples, num_labels); labels: as in `layer_table`.
    """
    if len(labels) == 0:
        return {}
    loss = task_loss(logits, labels).item()
    if logits.shape[-1] == 1:
        return {"loss": loss}
    multi_label = labels.ndim > 1
    is_right = torch.as_tensor(predictions_of(logits, multi_label)) == labels
    if multi_label:
        is_right = is_right.all(-1)
        # Each label is a choice between two classes: a logit of 0 for "not there", its own for
        # "there".
        logits = torch.stack((torch.zeros_like(logits), logits), -1)
    entropy = normalised_entropy(exit_scores(logits))
    return {
        "loss": loss,
        "entropy": entropy.mean().item(),
        "accuracy": is_right.float().mean().item(),
    }
