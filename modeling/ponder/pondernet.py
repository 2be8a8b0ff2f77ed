"""PonderNet around any step function: how often it is applied is learned with the answer.

The step function makes of an input x and its state h_n the next state, the probability λ_n of
halting at step n, and the answer ŷ_n. Step n is the last with probability
p_n = λ_n Π_{j<n} (1 − λ_j); in training all steps answer, and `ReconstructionLoss` weighs the
answers' losses by p.

Sources: PonderNet (Banino et al., 2021); the annotated PonderNet (labml) for outputs and shapes.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..albert import attention_mask_of
from .distribution import GeneralizedGeometricDist
from .texts import HALTING_TOKEN

if TYPE_CHECKING:
    from .model import PonderAlbertClassifier


class PonderNet(nn.Module):
    """Applies a step function up to `max_steps` times, and says how probable each end is.

    Args:
        step: a module; `step(x, state)` is the next state, λ (batch,), and the answer (batch, …).
            At the first step `state` is None. A subclass may have a method `step` instead.
        max_steps: N; λ of the last step is taken for 1.

    With `is_halt`, steps end when every example has halted; outputs then have as many steps as ran.
    """

    def __init__(self, step: nn.Module | None, max_steps: int) -> None:
        super().__init__()
        if step is not None:
            self.step = step
        self.max_steps = max_steps
        self.is_halt = False

    def forward(self, x: Any) -> tuple[torch.Tensor, ...]:
        """p (steps, batch) and ŷ (steps, batch, …), then of a sampled step (batch,), (batch, …)."""
        answers, halting, draws = self.run(x)
        p = halting.pmf(normalize=False).T
        at, rows = sampled_steps(p, draws) - 1, torch.arange(len(draws), device=draws.device)
        return p, answers, p[at, rows], answers[at, rows]

    def run(self, x: Any) -> tuple[torch.Tensor, GeneralizedGeometricDist, torch.Tensor]:
        """ŷ (steps, batch, …), when to halt, and the uniform draws (batch,) that decide it."""
        state, answers, halts = None, [], []
        for step in range(1, self.max_steps + 1):
            state, halt, answer = self.step(x, state)
            if step == 1:
                draws, alive = torch.rand_like(halt), torch.ones_like(halt)
            halts.append(torch.ones_like(halt) if step == self.max_steps else halt)
            answers.append(answer)
            alive = alive * (1 - halt)
            if self.is_halt and (1 - alive > draws).all():
                break
        return torch.stack(answers), GeneralizedGeometricDist(torch.stack(halts, dim=1)), draws


def sampled_steps(p: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """Steps (batch,), 1-based, at which a CDF passes uniform `draws` (batch,); p (steps, batch)."""
    steps = (p.cumsum(0) <= draws).sum(0) + 1
    return steps.clamp_max(len(p))  # rounding may leave the CDF a little below 1


class AlbertStep(nn.Module):
    """ALBERT's layer pass as a step function: `PonderNet(AlbertStep(model), max_steps)`.

    x is a batch as `PonderAlbertClassifier` takes ids: input_ids, attention_mask, token_type_ids.
    """

    def __init__(self, model: "PonderAlbertClassifier") -> None:
        super().__init__()
        self.model = model

    def forward(
        self, x: Mapping[str, torch.Tensor], state: torch.Tensor | None
    ) -> tuple[torch.Tensor, ...]:
        """A pass later: states (batch, length, hidden), λ (batch,), logits (batch, labels)."""
        model, mask = self.model, attention_mask_of(x.get("attention_mask"))
        hidden = model.embed(x["input_ids"], x.get("token_type_ids")) if state is None else state
        before = hidden[:, HALTING_TOKEN]
        previous = torch.zeros_like(before) if state is None else before
        hidden = model.layer_pass(hidden, mask, model.param_index(0))
        halt = model.halt_logits(hidden[:, HALTING_TOKEN], previous).sigmoid()
        return hidden, halt, model.classifier(hidden[:, 0]).float()
