"""The loss of a ponder model: the layers' losses weighed by p, and p pulled to a prior.

Sources: PonderNet (Banino et al., 2021); the public PonderALBERT for the form.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from modeling.keys import PONDER_KEYS, checked
from modeling.losses import losses_of_steps


class PonderClassificationLoss(nn.Module):
    """The published loss: p-weighted loss of the layers + kl_penalty_factor · KL(p ‖ prior).

    The weighted term is a mean over layers and batch, as published: N times smaller than
    PonderNet's Σ_n p_n L_n, so that PonderNet's β is N · kl_penalty_factor.
    """

    def __init__(self, kl_penalty_factor: float = 5e-3) -> None:
        super().__init__()
        self.kl_penalty_factor = checked("kl_penalty_factor", kl_penalty_factor, PONDER_KEYS)

    def forward(
        self, result: Mapping[str, Any], labels: torch.Tensor | Sequence[float]
    ) -> dict[str, torch.Tensor]:
        """Scalars `total_loss`, `weighted_ce_loss` (squared errors for one label) and `kl_loss`.

        result: what the model answered; labels (batch,): class ids, or values for regression.
        """
        logits, dist = result["logits"], result["model_halt_dist"]
        losses = losses_of_steps(logits, torch.as_tensor(labels, device=logits.device))
        weighted = (losses * dist.pmf().T).mean()
        kl_loss = self.kl_penalty_factor * result["target_halt_dist"].kl_div(dist)
        return {"total_loss": weighted + kl_loss, "weighted_ce_loss": weighted, "kl_loss": kl_loss}
