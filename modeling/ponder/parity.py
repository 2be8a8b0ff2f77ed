"""PonderNet's parity experiment: a GRU that learns how many steps a vector takes.

Sources: PonderNet (Banino et al., 2021); the annotated PonderNet (labml), whose names, shapes and
losses these are.
"""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from ..keys import PONDER_KEYS, checked
from .distribution import GeneralizedGeometricDist, floored_log


class ParityPonderGRU(nn.Module):
    """PonderNet's parity model: a GRU cell as step function, a head for y and one for λ.

    The state h_n is the cell applied n times to the same input. With `is_halt`, steps end when
    every example has halted; outputs then have as many steps as ran.
    """

    def __init__(self, n_elems: int, n_hidden: int, max_steps: int) -> None:
        super().__init__()
        self.max_steps = max_steps
        self.n_hidden = n_hidden
        self.gru = nn.GRUCell(n_elems, n_hidden)
        self.output_layer = nn.Linear(n_hidden, 1)
        self.lambda_layer = nn.Linear(n_hidden, 1)
        self.is_halt = False

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """p and ŷ of all steps, (steps, batch), then those of a sampled step, (batch,).

        x is (batch, n_elems); ŷ is the logit of an odd number of ones; λ of the last step is 1.
        """
        draws = torch.rand(len(x), device=x.device)
        hidden = self.halted_states(x, draws) if self.is_halt else self.all_states(x)
        y_hat = self.output_layer(hidden)[..., 0]
        halts = self.lambda_layer(hidden)[..., 0].T  # (batch, steps)
        if len(hidden) == self.max_steps:
            halts = F.pad(halts[:, :-1], (0, 1), value=torch.inf)
        p = GeneralizedGeometricDist.from_logits(halts).pmf(normalize=False).T
        at = sampled_steps(p, draws)[None] - 1
        return p, y_hat, p.gather(0, at)[0], y_hat.gather(0, at)[0]

    def all_states(self, x: torch.Tensor) -> torch.Tensor:
        """h_1 … h_N, (steps, batch, n_hidden): the cell over a constant sequence, in one call."""
        cell = self.gru
        weights = [cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh]
        sequence = x.expand(self.max_steps, *x.shape)
        start = x.new_zeros(1, len(x), self.n_hidden)
        # has_biases, num_layers, dropout, train, bidirectional, batch_first
        return torch.gru(sequence, start, weights, True, 1, 0.0, self.training, False, False)[0]

    def halted_states(self, x: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
        """h_1 … h_m, (steps, batch, n_hidden), up to the step m at which the last example halts."""
        state, alive, states = x.new_zeros(len(x), self.n_hidden), x.new_ones(len(x)), []
        for _ in range(self.max_steps):
            state = self.gru(x, state)
            states.append(state)
            alive = alive * (1 - self.lambda_layer(state)[:, 0].sigmoid())
            if (1 - alive > draws).all():
                break
        return torch.stack(states)


def sampled_steps(p: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """Steps (batch,), 1-based, at which a CDF passes uniform `draws` (batch,); p (steps, batch)."""
    steps = (p.cumsum(0) <= draws).sum(0) + 1
    return steps.clamp_max(len(p))  # rounding may leave the CDF a little below 1


class ReconstructionLoss(nn.Module):
    """L_Rec = Σ_n p_n L(y, ŷ_n), mean over the batch.

    Args:
        loss_func: L without reduction, (rows, …) and (rows, …) -> (rows,).
    """

    def __init__(self, loss_func: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.loss_func = loss_func

    def forward(self, p: torch.Tensor, y_hat: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """p (steps, batch), y_hat (steps, batch, …), y (batch, …) -> scalar."""
        repeated = y.expand(len(p), *y.shape).flatten(0, 1)
        losses = self.loss_func(y_hat.flatten(0, 1), repeated).view_as(p)
        return (p * losses).sum(0).mean()


class RegularizationLoss(nn.Module):
    """L_Reg = Σ_n g_n (log g_n − log p_n), g_n = λ_p (1 − λ_p)^(n−1), mean over the batch.

    As in the annotated PonderNet: KL with the prior first, and the prior cut off, not normalised.

    Args:
        lambda_p: λ_p of the geometric prior, in (0, 1].
        max_steps: the highest number of steps.
    """

    def __init__(self, lambda_p: float, max_steps: int = 1_000) -> None:
        super().__init__()
        lambda_p = checked("target_halt_probability", lambda_p, PONDER_KEYS)
        prior = GeneralizedGeometricDist(lambda_p, max_steps, 1).pmf(normalize=False)
        self.register_buffer("p_g", prior[0], persistent=False)

    def forward(self, p: torch.Tensor) -> torch.Tensor:
        """p (steps, batch) -> scalar."""
        target = self.p_g[: len(p)].expand(p.shape[1], -1)
        return F.kl_div(floored_log(p.T), target, reduction="batchmean")
