"""The halting criteria of ponder models: exit rules that read halting probabilities.

Sources: PonderNet (Banino et al., 2021) for `sample`; PALBERT (Balagansky and Gavrilov, 2022) for
`threshold`, its Q-exit.
"""

import torch
from torch import Tensor

from ..rules import ExitRule, LayerOutput, Number, Outcome, Size, State, Tensors
from .distribution import floored_log

HALT = "halt_probabilities"  # the signal of a ponder model's layers: λ, (batch,)


class Threshold(ExitRule):
    """threshold: the halting CDF, 1 − Π (1 − λ_j), exceeds exit_thres.

    Its state is Π (1 − λ_j), the probability of not having halted, (batch,).
    """

    exit_thres: Number
    signals = (HALT,)
    cause = "halting CDF above exit_thres"

    def start(self, size: Size, inputs: Tensors) -> Tensor:
        return torch.ones(size.batch, device=size.device)

    def step(self, seen: LayerOutput, state: Tensor) -> Outcome:
        alive = state * (1 - seen.signals[HALT])
        return alive, 1 - alive > self.exit_thres


class Sample(ExitRule):
    """sample: the halting CDF exceeds the example's own uniform number.

    By inversion of the CDF this halts with probability λ_n at each layer, as PonderNet does, and
    needs one draw an example, which is made here where the caller brings none. Its state is
    Threshold's, and the draws, (batch,), uniform in [0, 1).
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
        alive, draws = state
        alive = alive * (1 - seen.signals[HALT])
        return (alive, draws), 1 - alive > draws


class Expectation(ExitRule):
    """expectation: full depth; the answer is the mean of the layers' answers so far under p.

    Log of the mean probabilities; for regression the mean value. Its state is Threshold's, then
    Σ p_j · scores_j, (batch, classes), and Σ p_j, (batch,), of the layers so far.
    """

    signals = (HALT,)
    never_exits = "it mixes the answers of all layers, so every example goes to the last"

    def start(self, size: Size, inputs: Tensors) -> State:
        alive = torch.ones(size.batch, device=size.device)
        weighted = torch.zeros(size.batch, size.classes, device=size.device)
        return alive, weighted, torch.zeros_like(alive)

    def step(self, seen: LayerOutput, state: State) -> Outcome:
        alive, weighted, mass = state
        halt = seen.signals[HALT]  # λ_n
        weight = alive * halt  # p_n
        weight = weight.clamp_min(torch.finfo(weight.dtype).tiny)
        weighted = weighted + weight[:, None] * self.scores(seen.logits)
        alive = alive * (1 - halt)
        return (alive, weighted, mass + weight), torch.zeros_like(alive) > 0

    def answer(self, seen: LayerOutput, state: State) -> Tensor:
        _, weighted, mass = state
        mean = weighted / mass[:, None]
        return floored_log(mean) if mean.shape[-1] > 1 else mean


RULES = {"threshold": Threshold, "sample": Sample, "expectation": Expectation}
