"""Losses: of a task, and of all layers' answers to it.

Sources: PonderNet (Banino et al., 2021); the public PonderALBERT for the form of its loss.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AlbertConfig


def task_loss(
    logits: Tensor,
    labels: Tensor,
    reduction: str = "mean",
    smoothing: float = 0.0,
    weights: Tensor | None = None,
) -> Tensor:
    """Cross-entropy; binary cross-entropy, mean over the labels, for labels (batch, labels) of 0
    and 1; or squared error for a single output. `reduction` over the batch.

    smoothing: share of each label that goes to all classes evenly, or to there and not there.
    weights: of the classes, (classes,), or of a label that is there (torch's pos_weight). The mean
    is over examples, so that no example's part in it depends on the others (torch's own divides by
    the sum of their weights).
    """
    if logits.shape[-1] == 1:
        return F.mse_loss(logits.squeeze(-1), labels.float(), reduction=reduction)
    if labels.ndim == logits.ndim:
        target, how = labels * (1 - smoothing) + smoothing / 2, {"pos_weight": weights}
        losses = F.binary_cross_entropy_with_logits(logits, target, reduction="none", **how)
        return losses.mean(-1) if reduction == "none" else losses.mean()
    each = "none" if weights is not None else reduction
    losses = F.cross_entropy(logits, labels, weights, reduction=each, label_smoothing=smoothing)
    return losses if reduction == "none" else losses.mean()


def distillation_loss(
    logits: Tensor,
    labels: Tensor,
    teacher_logits: Tensor,
    config: AlbertConfig,
    weights: Tensor | None = None,
) -> Tensor:
    """(1 − s)·hard loss + s·soft loss, the mean over the batch (Hinton et al., 2015).

    The hard loss is `task_loss` on the labels. The soft loss is T²·KL(teacher ‖ answer), both
    softened by the temperature T; of a single output it is the squared error.

    Args:
        logits, teacher_logits: (batch, num_labels).
        labels: (batch,). An example without a label has −100, in regression NaN: only its soft loss
            counts.
        config: has s, `teacher_share`, and T, `teacher_temperature`.
        weights: of the classes, in the hard loss alone.
    """
    if logits.shape[-1] == 1:
        is_labelled, labels = labels.isfinite(), labels.nan_to_num()
        soft_loss = F.mse_loss(logits, teacher_logits, reduction="none").squeeze(-1)
    else:
        is_labelled, temperature = labels >= 0, config.teacher_temperature
        answer = (logits / temperature).log_softmax(-1)
        teacher = (teacher_logits / temperature).log_softmax(-1)
        divergence = F.kl_div(answer, teacher, reduction="none", log_target=True).sum(-1)
        soft_loss = temperature**2 * divergence
    hard_loss = task_loss(logits, labels, "none", config.label_smoothing, weights)
    share = torch.where(is_labelled, config.teacher_share, 1.0)
    return ((1 - share) * hard_loss + share * soft_loss).mean()


def joint_loss(exit_losses: Tensor, exit_weights: Tensor | None = None) -> Tensor:
    """Weighted sum of the N exits' losses (N,).

    `equal` (no weights): the plain sum. `dyn`, with W = exit_weights (N − 1,):
    Σᵢ<N σ(Wᵢ)·Lᵢ + (N − Σᵢ σ(Wᵢ))·L_N, so that the weights add up to N.
    """
    if exit_weights is None:
        return exit_losses.sum()
    weights = exit_weights.sigmoid()
    return (weights * exit_losses[:-1]).sum() + (len(exit_losses) - weights.sum()) * exit_losses[-1]


class PonderClassificationLoss(nn.Module):
    """The published loss: p-weighted loss of the layers + kl_penalty_factor · KL(p ‖ prior).

    The weighted term is a mean over layers and batch, as published: N times smaller than
    PonderNet's Σ_n p_n L_n, so that PonderNet's β is N · kl_penalty_factor.
    """

    def __init__(
        self, kl_penalty_factor: float = 5e-3, class_weights: Tensor | None = None
    ) -> None:
        super().__init__()
        self.class_weights = class_weights
        self.kl_penalty_factor = kl_penalty_factor

    def forward(
        self, result: Mapping[str, Any], labels: Tensor | Sequence[float]
    ) -> dict[str, Tensor]:
        """Scalars `total_loss`, `weighted_ce_loss` (squared errors for one label) and `kl_loss`.

        result: what the model answered; labels (batch,): class ids, or values for regression.
        """
        logits, dist = result["logits"], result["model_halt_dist"]
        labels = torch.as_tensor(labels, device=logits.device)
        losses = torch.stack(
            [
                task_loss(layer, labels, reduction="none", weights=self.class_weights)
                for layer in logits
            ]
        )
        weighted = (losses * dist.pmf().T).mean()
        kl_loss = self.kl_penalty_factor * result["target_halt_dist"].kl_div(dist)
        return {"total_loss": weighted + kl_loss, "weighted_ce_loss": weighted, "kl_loss": kl_loss}
