"""The loss of a task, and the losses of all layers' answers to it.

Sources: ELBERT (Xie et al., 2021) for the joint loss; Hinton et al. (2015) for distillation;
FastBERT (Liu et al., 2020) for exits that learn from the last one;
PonderNet (Banino et al., 2021), and the public PonderALBERT for the form of its loss.
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
    """Compute a task's loss: cross-entropy, binary cross-entropy, or squared error.

    A single output has the squared error. Labels (batch, num_labels) of 0 and 1 have the binary
    cross-entropy, the mean over an example's labels.

    Args:
        logits: (batch, num_labels).
        labels: (batch,) class ids, int64, or values, also as a column, (batch, 1); or (batch,
            num_labels) of 0.0 and 1.0.
        reduction: "mean" over the batch, a scalar, or "none", (batch,).
        smoothing: share of each label that goes to all classes evenly; where there are several
            labels, to present and absent.
        weights: (num_labels,), of the classes; where there are several labels, of a label that is
            present (torch's pos_weight). The mean is over examples, so that the part of an example
            in it does not depend on the others (torch's divides by the sum of their weights).
    """
    if labels.ndim == logits.ndim and labels.shape[-1] == 1:
        labels = labels.squeeze(-1)  # as HF's Trainer makes of rows with "labels": [3.0]
    if logits.shape[-1] == 1:
        # Shapes that differ would be broadcast: (batch, batch).
        scores = labels.float().view_as(logits.squeeze(-1))
        return F.mse_loss(logits.squeeze(-1), scores, reduction=reduction)
    if labels.ndim == logits.ndim:
        target = labels * (1 - smoothing) + smoothing / 2
        losses = F.binary_cross_entropy_with_logits(
            logits, target, reduction="none", pos_weight=weights
        )
        return losses.mean(-1) if reduction == "none" else losses.mean()
    if weights is None:
        return F.cross_entropy(logits, labels, reduction=reduction, label_smoothing=smoothing)
    losses = F.cross_entropy(logits, labels, weights, reduction="none", label_smoothing=smoothing)
    return losses if reduction == "none" else losses.mean()


def distillation_loss(
    logits: Tensor,
    labels: Tensor,
    teacher_logits: Tensor,
    config: AlbertConfig,
    weights: Tensor | None = None,
) -> Tensor:
    """Compute (1 − s)·hard loss + s·soft loss, the mean over the batch (Hinton et al., 2015).

    The hard loss is `task_loss` on the labels. The soft loss is T²·KL(teacher ‖ answer), both
    softened by the temperature T; for a single output it is the squared error.

    Args:
        logits: (batch, num_labels), of an exit.
        labels: (batch,). An example without a label has −100, in regression NaN: only its soft loss
            counts.
        teacher_logits: (batch, num_labels), the soft labels before their softmax.
        config: has s, `teacher_share`, and T, `teacher_temperature`.
        weights: (num_labels,), of the classes; they apply to the hard loss alone.

    Returns:
        A scalar.
    """
    if logits.shape[-1] == 1:
        is_labelled = labels.isfinite()
        labels = labels.nan_to_num()
        soft_loss = F.mse_loss(logits, teacher_logits, reduction="none").squeeze(-1)
    else:
        is_labelled = labels >= 0
        soft_loss = soft_label_loss(logits, teacher_logits, config.teacher_temperature)
    hard_loss = task_loss(
        logits, labels, reduction="none", smoothing=config.label_smoothing, weights=weights
    )
    share = torch.where(is_labelled, config.teacher_share, 1.0)  # (batch,)
    return ((1 - share) * hard_loss + share * soft_loss).mean()


def self_distillation_losses(all_logits: Tensor, config: AlbertConfig) -> Tensor:
    """Compute the loss of every exit but the last to a deeper exit of the same forward pass.

    FastBERT (Liu et al., 2020), "Be your own teacher" (Zhang et al., 2019). The deeper exit learns
    nothing from it. The loss is T²·KL(deeper ‖ answer), with several labels the mean over them, in
    regression the squared distance.

    Args:
        all_logits: (layers, batch, num_labels).
        config: has T, `self_distillation_temperature`, and `self_distillation_from`: "last", the
            last exit teaches all others, or "next", each the one before it.

    Returns:
        (layers − 1, batch).
    """
    answers = all_logits[:-1]
    teaches_all = config.self_distillation_from == "last"
    teachers = (all_logits[-1:] if teaches_all else all_logits[1:]).detach().expand_as(answers)
    if all_logits.shape[-1] == 1:
        return (answers - teachers).square().squeeze(-1)
    if config.is_multi_label:  # each label is an answer of two classes, absent and present
        answers = F.pad(answers[..., None], (1, 0))
        teachers = F.pad(teachers[..., None], (1, 0))
    losses = soft_label_loss(answers, teachers, config.self_distillation_temperature)
    return losses.mean(-1) if config.is_multi_label else losses


def with_self_distillation(losses: Tensor, taught_losses: Tensor, share: float) -> Tensor:
    """Mix the loss of every exit but the last with that to a deeper exit: (1 − s)·L + s·L_deeper.

    losses: (layers, …), to the labels. taught_losses: (layers − 1, …). share: s.
    """
    return torch.cat([(1 - share) * losses[:-1] + share * taught_losses, losses[-1:]])


def soft_label_loss(logits: Tensor, teacher_logits: Tensor, temperature: float) -> Tensor:
    """Compute T²·KL(teacher ‖ answer) of each example, (…), from logits (…, classes)."""
    log_answer = (logits / temperature).log_softmax(-1)
    log_teacher = (teacher_logits / temperature).log_softmax(-1)
    divergence = F.kl_div(log_answer, log_teacher, reduction="none", log_target=True).sum(-1)
    # Gradients of softened answers shrink with 1/T²; the factor keeps the share's meaning.
    return temperature**2 * divergence


def joint_loss(exit_losses: Tensor, exit_weights: Tensor | None = None) -> Tensor:
    """Add up the losses of the N exits, (N,), to a scalar.

    Without weights (`equal`) it is the plain sum. With W = exit_weights, (N − 1,), (`dyn`) it is
    Σᵢ<N σ(Wᵢ)·Lᵢ + (N − Σᵢ σ(Wᵢ))·L_N, so that the weights add up to N.
    """
    if exit_weights is None:
        return exit_losses.sum()
    weights = exit_weights.sigmoid()
    last_weight = len(exit_losses) - weights.sum()
    return (weights * exit_losses[:-1]).sum() + last_weight * exit_losses[-1]


class PonderClassificationLoss(nn.Module):
    """PonderALBERT's loss: the layers' losses, weighted by p, + kl_penalty_factor · KL(p ‖ prior).

    The weighted term is a mean over layers and batch, as published: N times smaller than
    PonderNet's Σ_n p_n L_n, so that PonderNet's β is N · kl_penalty_factor. The code of PALBERT,
    and of the annotated PonderNet, has KL(prior ‖ p) instead.

    Args:
        kl_penalty_factor: weight of the KL divergence.
        class_weights: (num_labels,), as `task_loss` takes them.
        kl_direction: "to_prior", KL(p ‖ prior), or "from_prior", KL(prior ‖ p).
        config: has the keys of self-distillation, where layers learn from deeper ones.
    """

    def __init__(
        self,
        kl_penalty_factor: float = 5e-3,
        class_weights: Tensor | None = None,
        kl_direction: str = "to_prior",
        config: AlbertConfig | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.class_weights = class_weights
        self.kl_penalty_factor = kl_penalty_factor
        self.kl_direction = kl_direction

    def forward(
        self, result: Mapping[str, Any], labels: Tensor | Sequence[float]
    ) -> dict[str, Tensor]:
        """Compute the loss and its two parts.

        Args:
            result: a `PonderOutput`, whose logits and two distributions are read.
            labels: (batch,), class ids, or values for regression.

        Returns:
            The scalars `total_loss`, `weighted_ce_loss` (of squared errors in regression) and
            `kl_loss`, under their published names.
        """
        logits = result["logits"]  # (layers, batch, num_labels)
        dist = result["model_halt_dist"]
        labels = torch.as_tensor(labels, device=logits.device)
        losses = []
        for layer_logits in logits:
            losses.append(
                task_loss(layer_logits, labels, reduction="none", weights=self.class_weights)
            )
        layer_losses = torch.stack(losses)  # (layers, batch)
        p = dist.pmf().T
        weighted_loss = (layer_losses * p).mean()
        if self.config is not None and self.config.self_distillation:
            taught_losses = self_distillation_losses(logits, self.config)
            share = self.config.self_distillation
            mixed = with_self_distillation(layer_losses, taught_losses, share)
            # When to halt is learned from the labels alone: a layer whose loss has a share of
            # teaching would cost less than the last, which has none, for one and the same answer.
            halting = layer_losses.detach() * (p - p.detach())
            weighted_loss = (mixed * p.detach() + halting).mean()
        prior = result["target_halt_dist"]
        divergence = prior.kl_div(dist) if self.kl_direction == "to_prior" else dist.kl_div(prior)
        kl_loss = self.kl_penalty_factor * divergence
        return {
            "total_loss": weighted_loss + kl_loss,
            "weighted_ce_loss": weighted_loss,
            "kl_loss": kl_loss,
        }
