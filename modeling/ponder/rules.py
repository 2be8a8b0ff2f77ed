"""The halting criteria of ponder models: exit rules that read halting probabilities.

Sources: PonderNet (Banino et al., 2021) for `sample`; PALBERT (Balagansky and Gavrilov, 2022) for
`threshold`, its Q-exit.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ..rules import ExitRule, LayerOutput, Number, Outcome, Size, State, Tensors
from .distribution import floored_log

# The name of a ponder model's signal (`LayerOutput.signals`): a layer's λ, (batch,).
HALT = "halt_probabilities"


class Threshold(ExitRule):
    """The criterion threshold: exit when the halting CDF, 1 − Π (1 − λ_j), exceeds exit_thres.

    The state is Π (1 − λ_j), the probability of not having halted, (batch,).
    """

    exit_thres: Number
    signals = (HALT,)
    cause = "halting CDF above exit_thres"

    def start(self, size: Size, inputs: Tensors) -> Tensor:
        return torch.ones(size.batch, device=size.device)

    def step(self, seen: LayerOutput, state: Tensor) -> Outcome:
        not_halted = state * (1 - seen.signals[HALT])
        return not_halted, 1 - not_halted > self.exit_thres


class Sample(ExitRule):
    """The criterion sample: exit when the halting CDF exceeds the example's own uniform number.

    By inversion of the CDF this halts with probability λ_n at each layer, as PonderNet does, with
    one draw for each example. The draws are made here where the caller brings none. The state is
    that of `Threshold`, and the draws, (batch,), uniform in [0, 1).
    """

    signals = (HALT,)
    inputs = ("draws",)
    cause = "chance"

    def start(self, size: Size, inputs: Tensors) -> State:
        draws = inputs.get("draws")
        if draws is None:
            draws = torch.rand(size.batch, device=size.device)
        return torch.ones_like(draws), draws

    def step(self, seen: LayerOutput, state: State) -> Outcome:
        not_halted, draws = state
        not_halted = not_halted * (1 - seen.signals[HALT])
        return (not_halted, draws), 1 - not_halted > draws


class ExpectationState(NamedTuple):
    """The state of `Expectation` after the layers so far."""

    not_halted: Tensor  # Π (1 − λ_j), (batch,)
    weighted_scores: Tensor  # Σ p_j · scores_j, (batch, classes)
    weight_sum: Tensor  # Σ p_j, (batch,)


class Expectation(ExitRule):
    """The criterion expectation: run to full depth, and answer with the mean under p.

    The answer is the logarithm of the layers' mean probabilities; for regression, their mean value.
    """

    signals = (HALT,)
    never_exits = "it mixes the answers of all layers, so every example goes to the last"

    def start(self, size: Size, inputs: Tensors) -> State:
        not_halted = torch.ones(size.batch, device=size.device)
        weighted_scores = torch.zeros(size.batch, size.classes, device=size.device)
        return ExpectationState(not_halted, weighted_scores, torch.zeros_like(not_halted))

    def step(self, seen: LayerOutput, state: ExpectationState) -> Outcome:
        halt = seen.signals[HALT]  # λ_n
        weight = state.not_halted * halt  # p_n
        # A weight of 0 in every layer would leave no mean.
        weight = weight.clamp_min(torch.finfo(weight.dtype).tiny)
        scores = self.scores(seen.logits)  # (batch, classes)
        new_state = ExpectationState(
            not_halted=state.not_halted * (1 - halt),
            weighted_scores=state.weighted_scores + weight[:, None] * scores,
            weight_sum=state.weight_sum + weight,
        )
        nobody_exits = torch.zeros_like(weight, dtype=torch.bool)
        return new_state, nobody_exits

    def answer(self, seen: LayerOutput, state: ExpectationState) -> Tensor:
        mean = state.weighted_scores / state.weight_sum[:, None]
        return floored_log(mean) if mean.shape[-1] > 1 else mean


RULES = {"threshold": Threshold, "sample": Sample, "expectation": Expectation}
