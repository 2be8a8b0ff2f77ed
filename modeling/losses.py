"""What every mode's task asks for: cross-entropy of classes, squared error of values."""

import torch
from torch.nn import functional as F


def task_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross-entropy, or squared error for a single output; mean over the batch."""
    if logits.shape[-1] == 1:
        return F.mse_loss(logits.squeeze(-1), labels.float())
    return F.cross_entropy(logits, labels)


def losses_of_steps(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The same per answer: logits (steps, batch, classes), labels (batch,) -> (steps, batch)."""
    steps, batch, classes = logits.shape
    if classes == 1:
        return (logits[..., 0] - labels.float()) ** 2
    repeated = labels.expand(steps, batch).flatten()
    return F.cross_entropy(logits.flatten(0, 1), repeated, reduction="none").view(steps, batch)
