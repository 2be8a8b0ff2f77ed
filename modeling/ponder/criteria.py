"""Exit criteria of a ponder model: who stops, given each layer's halting probability λ.

A criterion is defined once, as a class: what it remembers at depth 0, and what it decides after a
layer. Inference steps through the layers, `scan_halting` through recorded ones.

Sources: PonderNet (Banino et al., 2021) for `sample`; PALBERT (Balagansky and Gavrilov, 2022) for
`threshold`, its Q-exit.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from transformers import AlbertConfig

from ..depth import Check, first_exits
from ..elbert.rules import exit_scores
from ..keys import checked
from .distribution import floored_log
from .keys import PONDER_EXIT_KEYS


@dataclass
class HaltingRule:
    """Settings of a ponder model's exit.

    exit_thres may be a tensor of shape (settings, 1): then all settings are decided at once, and
    answers get a leading dimension of settings.
    """

    exit_criteria: str = "sample"
    exit_thres: float | torch.Tensor = 0.5

    @classmethod
    def from_config(cls, config: AlbertConfig) -> "HaltingRule":
        """The rule that `config` describes now; raises UserError for a value out of range."""
        keys = PONDER_EXIT_KEYS
        return cls(**{name: checked(name, getattr(config, name), keys) for name in keys})


class Layer(NamedTuple):
    """What a criterion reads of a layer."""

    logits: torch.Tensor  # (batch, classes)
    halt_probability: torch.Tensor  # λ, (batch,)


class HaltingState(NamedTuple):
    """What a criterion remembers of the layers so far."""

    alive: torch.Tensor  # Π (1 − λ_j), the probability of not having halted, (batch,)
    halt_probability: torch.Tensor  # λ of the newest layer, (batch,)
    own: Any  # what the criterion itself adds: a tensor, or a NamedTuple of tensors; () for nothing


class Criterion(ABC):
    """Exits where the halting CDF, 1 − Π (1 − λ_j), exceeds a limit.

    reads: the exit keys that it reads. draws: does it need a uniform number for each example?
    mixes: is its answer one of all layers, so that nobody leaves before the last?
    """

    reads: tuple[str, ...] = ()
    draws = mixes = False

    @abstractmethod
    def limit(self, rule: HaltingRule, state: HaltingState) -> float | torch.Tensor:
        """What the CDF has to exceed: one number, (batch,), or (settings, 1)."""

    def start(self, draws: torch.Tensor, classes: int) -> HaltingState:
        """What is remembered of as many examples as there are draws."""
        return HaltingState(torch.ones_like(draws), torch.zeros_like(draws), ())

    def step(self, rule: HaltingRule, layer: Layer, state: HaltingState) -> Check:
        """The layer's answer, who exits there, and the state one layer later."""
        halt = layer.halt_probability
        state = state._replace(alive=state.alive * (1 - halt), halt_probability=halt)
        return Check(layer.logits, 1 - state.alive > self.limit(rule, state), state)


class Threshold(Criterion):
    """Exit where the CDF exceeds exit_thres."""

    reads = ("exit_thres",)

    def limit(self, rule: HaltingRule, state: HaltingState) -> float | torch.Tensor:
        return rule.exit_thres


class Sample(Criterion):
    """Exit where the CDF exceeds the example's own uniform number.

    By inversion of the CDF this halts with probability λ_n at each layer, as PonderNet does, and
    needs one draw an example.
    """

    draws = True

    def start(self, draws: torch.Tensor, classes: int) -> HaltingState:
        """own: each example's threshold, uniform in [0, 1)."""
        return super().start(draws, classes)._replace(own=draws)

    def limit(self, rule: HaltingRule, state: HaltingState) -> torch.Tensor:
        return state.own


class Mixture(NamedTuple):
    """The answers of the layers so far."""

    weighted: torch.Tensor  # Σ p_j · scores_j, (batch, classes)
    mass: torch.Tensor  # Σ p_j, (batch,)


class Expectation(Criterion):
    """Full depth; the answer is the mean of the layers' answers so far under p.

    Log of the mean probabilities; for regression the mean value.
    """

    mixes = True

    def limit(self, rule: HaltingRule, state: HaltingState) -> float:
        return math.inf

    def start(self, draws: torch.Tensor, classes: int) -> HaltingState:
        """own: a `Mixture` of no layer."""
        nothing = Mixture(draws.new_zeros(draws.shape[0], classes), torch.zeros_like(draws))
        return super().start(draws, classes)._replace(own=nothing)

    def step(self, rule: HaltingRule, layer: Layer, state: HaltingState) -> Check:
        weight = state.alive * layer.halt_probability  # p_n
        weight = weight.clamp_min(torch.finfo(weight.dtype).tiny)
        weighted = state.own.weighted + weight[:, None] * exit_scores(layer.logits)
        mass = state.own.mass + weight
        mean = weighted / mass[:, None]
        answer = floored_log(mean) if mean.shape[-1] > 1 else mean
        _, nobody, state = super().step(rule, layer, state)
        return Check(answer, nobody, state._replace(own=Mixture(weighted, mass)))


CRITERIA = {"sample": Sample(), "threshold": Threshold(), "expectation": Expectation()}


def scan_halting(
    rule: HaltingRule,
    all_logits: torch.Tensor,
    halt_probabilities: torch.Tensor,
    draws: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Answers and exit layers of recorded examples, as stepping through them would give.

    Args:
        rule: an exit_thres of shape (settings, 1) decides all settings at once.
        all_logits: (layers, batch, classes).
        halt_probabilities: (batch, layers).
        draws: (batch,) uniform numbers, for `sample`; drawn anew by default.

    Returns:
        answers (batch, classes) and exit layers (batch,), 1-based; or (settings, batch, …) each.
    """
    _, batch, classes = all_logits.shape
    draws = torch.rand(batch, device=all_logits.device) if draws is None else draws
    criterion = CRITERIA[rule.exit_criteria]
    state, checks = criterion.start(draws, classes), []
    for newest in zip(all_logits, halt_probabilities.T, strict=True):
        checks.append(criterion.step(rule, Layer(*newest), state))
        state = checks[-1].state
    exit_layer = first_exits(check.done for check in checks)
    if criterion.mixes:
        return checks[-1].answer, exit_layer
    return all_logits[exit_layer - 1, torch.arange(batch, device=exit_layer.device)], exit_layer
