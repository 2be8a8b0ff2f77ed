"""Adaptive computation time: when a token halts, and what its newest state weighs (Graves 2016)."""

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


class Halting:
    """How far each token is on its way to halting; all tensors have one shape.

    running: bool, is the token still updated?
    spent: the sum of its halting weights.
    updates: how often it was updated.
    remainder: what was left of 1 before its last update, R of Graves; for a token that the maximum
        stopped, what is left after it. The published code has 0 there, with which a model that
        never halts would not learn to.
    """

    def __init__(self, running: torch.Tensor, dtype: torch.dtype, epsilon: float) -> None:
        self.running = running
        self.epsilon = epsilon
        self.spent = torch.zeros(running.shape, dtype=dtype, device=running.device)
        self.updates = torch.zeros_like(self.spent)
        self.remainder = torch.zeros_like(self.spent)

    def advance(self, probability: torch.Tensor) -> torch.Tensor:
        """Account for one update; returns the weight of the new states, 0 for halted tokens."""
        weight, halts = halting_weight(probability, self.spent, self.epsilon)
        weight = weight.masked_fill(~self.running, 0.0)
        self.spent = self.spent + weight
        left = torch.where(halts, weight, 1 - self.spent)
        self.remainder = torch.where(self.running, left, self.remainder)
        self.updates = self.updates + self.running
        self.running = self.running & ~halts
        return weight


def interpolate(new: torch.Tensor, old: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """weight · new + (1 − weight) · old: states (..., hidden), weights (...)."""
    weight = weight[..., None]
    return (new * weight + old * (1 - weight)).to(old.dtype)
