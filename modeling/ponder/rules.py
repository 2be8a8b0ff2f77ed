"""Exit rules of a ponder model: who halts, given each layer's halting probability λ.

Sources: PonderNet (Banino et al., 2021) for `sample`; PALBERT (Balagansky and Gavrilov, 2022) for
`threshold`, its Q-exit.
"""

from typing import NamedTuple

import torch

from ..rules import ExitRule, LayerOutput, Size, State, Tensors
from .distribution import floored_log

Outcome = tuple[State, torch.Tensor]  # the new state; who exits, (batch,) or (settings, batch) bool


class Threshold(ExitRule):
    """threshold: the halting CDF, 1 − Π (1 − λ_j), exceeds exit_thres.

    Its state is Π (1 − λ_j), the probability of not having halted, (batch,).
    """

    reads = ("exit_thres",)
    eager_when_low = ("exit_thres",)
    cause = "halting CDF above exit_thres"

    def start(self, size: Size, inputs: Tensors) -> torch.Tensor:
        return torch.ones(size.batch, device=size.device)

    def step(self, seen: LayerOutput, state: torch.Tensor) -> Outcome:
        alive = state * (1 - seen.halt_probability)
        return alive, 1 - alive > self.exit_thres


class Sampled(NamedTuple):
    """What `Sample` remembers."""

    alive: torch.Tensor  # Π (1 − λ_j), (batch,)
    draws: torch.Tensor  # each example's threshold, uniform in [0, 1), (batch,)


class Sample(Threshold):
    """sample: the halting CDF exceeds the example's own uniform number.

    By inversion of the CDF this halts with probability λ_n at each layer, as PonderNet does, and
    needs one draw an example, which is made here where the caller brings none.
    """

    reads = ()
    inputs = ("draws",)
    cause = "chance"

    def start(self, size: Size, inputs: Tensors) -> Sampled:
        draws = inputs.get("draws")
        if draws is None:
            draws = torch.rand(size.batch, device=size.device)
        return Sampled(torch.ones_like(draws), draws)

    def step(self, seen: LayerOutput, state: Sampled) -> Outcome:
        alive = state.alive * (1 - seen.halt_probability)
        return Sampled(alive, state.draws), 1 - alive > state.draws


class Mixture(NamedTuple):
    """The answers of the layers so far."""

    alive: torch.Tensor  # Π (1 − λ_j), (batch,)
    weighted: torch.Tensor  # Σ p_j · scores_j, (batch, classes)
    mass: torch.Tensor  # Σ p_j, (batch,)


class Expectation(Threshold):
    """expectation: full depth; the answer is the mean of the layers' answers so far under p.

    Log of the mean probabilities; for regression the mean value.
    """

    reads = ()
    never_exits = "it mixes the answers of all layers, so every example goes to the last"

    def start(self, size: Size, inputs: Tensors) -> Mixture:
        alive = torch.ones(size.batch, device=size.device)
        weighted = torch.zeros(size.batch, size.classes, device=size.device)
        return Mixture(alive, weighted, torch.zeros_like(alive))

    def step(self, seen: LayerOutput, state: Mixture) -> Outcome:
        weight = state.alive * seen.halt_probability  # p_n
        weight = weight.clamp_min(torch.finfo(weight.dtype).tiny)
        weighted = state.weighted + weight[:, None] * seen.scores
        alive = state.alive * (1 - seen.halt_probability)
        return Mixture(alive, weighted, state.mass + weight), torch.zeros_like(alive) > 0

    def answer(self, seen: LayerOutput, state: Mixture) -> torch.Tensor:
        mean = state.weighted / state.mass[:, None]
        return floored_log(mean) if mean.shape[-1] > 1 else mean


RULES = {"threshold": Threshold, "sample": Sample, "expectation": Expectation}
