"""Adaptive computation time: when a token halts, and what its newest state weighs (Graves 2016)."""

from typing import NamedTuple

import torch


def halting_weight(
    probability: torch.Tensor, spent: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight of a running token's newest state, and whether the token halts (Graves 2016, eq. 6).

    With h = `spent`, the sum of the token's weights so far: it halts when h + p > 1 − ε, and then
    the weight is what is left, 1 − h; otherwise the weight is p.
    """
    halts = spent + probability > 1 - epsilon
    return torch.where(halts, 1 - spent, probability), halts


class Halting(NamedTuple):
    """How far each token is on its way to halting; all tensors have one shape."""

    running: torch.Tensor  # bool, is the token still updated?
    spent: torch.Tensor  # the sum of its halting weights
    updates: torch.Tensor  # how often it was updated
    # What was left of 1 before its last update, R of Graves; for a token that the maximum stopped,
    # what is left after it. The published code has 0 there, with which a model that never halts
    # would not learn to.
    remainder: torch.Tensor

    @classmethod
    def start(cls, running: torch.Tensor, dtype: torch.dtype) -> "Halting":
        """Before the first update, of the tokens that are `running`."""
        nothing = torch.zeros(running.shape, dtype=dtype, device=running.device)
        return cls(running, *(nothing.clone() for _ in range(3)))

    def advance(self, probability: torch.Tensor, epsilon: float) -> tuple[torch.Tensor, "Halting"]:
        """One update later: the weight of the new states, 0 for halted tokens, and who runs on."""
        weight, halts = halting_weight(probability, self.spent, epsilon)
        weight = weight.masked_fill(~self.running, 0.0)
        spent = self.spent + weight
        left = torch.where(halts, weight, 1 - spent)
        remainder = torch.where(self.running, left, self.remainder)
        updates = self.updates + self.running
        return weight, Halting(self.running & ~halts, spent, updates, remainder)


def interpolate(new: torch.Tensor, old: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """weight · new + (1 − weight) · old: states (..., hidden), weights (...)."""
    weight = weight[..., None]
    return (new * weight + old * (1 - weight)).to(old.dtype)
