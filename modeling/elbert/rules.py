"""Exit rules: when a layer's answers are good enough to stop.

A rule is defined once, by its functions here and a row of `rule_table.py` that names them. It
remembers a small state, which one layer's answers update: `start` gives the state at depth 0,
`step` takes one layer's scores and says who exits, `scan` does so over recorded answers. A state's
shapes are the same at every layer and settings may be tensors, so that the loop over depth can be
exported as it is. Scores not seen yet are NaN, and a comparison with NaN is false.

A state tells when a rule fires first. What it says of an example that should have left already
means nothing.

Sources: ELBERT (Xie et al., 2021) for bias_1/2/3; DeeBERT (Xin et al., 2020) for entropy; PABEE
(Zhou et al., 2020) for patience.
"""

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from transformers import AlbertConfig

from ..depth import State, first_exits
from ..keys import checked
from .keys import EXIT_KEYS
from .rule_table import RULES

HERE = sys.modules[__name__]  # where the table's names are looked up
Outcome = tuple[State, torch.Tensor]  # the new state; who exits, (batch,) or (settings, batch) bool


@dataclass
class ExitRule:
    """Settings of an exit rule.

    Every number may be a scalar, or a tensor of shape (settings, 1): then all settings are decided
    at once, and answers get a leading dimension of settings.
    """

    thres_name: str = "bias_1"
    exit_thres: float | torch.Tensor = 0.1
    cnt_thres: int | torch.Tensor = 8
    margin: float | torch.Tensor = 0.0
    range_tmp: float | torch.Tensor = 0.2
    window_score: str = "lead"

    def __post_init__(self) -> None:
        # A Python number is compared in the scores' float32; a tensor must be too, to decide alike.
        for name in ("exit_thres", "margin", "range_tmp"):
            value = getattr(self, name)
            if isinstance(value, torch.Tensor):
                setattr(self, name, value.float())

    @classmethod
    def from_config(cls, config: AlbertConfig) -> "ExitRule":
        """The rule that `config` describes now; raises UserError for a value out of range."""
        keys, layers = EXIT_KEYS, config.num_hidden_layers
        return cls(**{name: checked(name, getattr(config, name), keys, layers) for name in keys})

    @property
    def settings_shape(self) -> tuple[int, ...]:
        """(settings,) for numbers of shape (settings, 1), () for scalars."""
        numbers = (self.exit_thres, self.cnt_thres, self.margin, self.range_tmp)
        shapes = [number.shape for number in numbers if isinstance(number, torch.Tensor)]
        return tuple(torch.broadcast_shapes(*shapes)[:-1])


class Size(NamedTuple):
    """What a state's shapes follow from."""

    settings: tuple[int, ...]  # (settings,), or () for one setting
    batch: int
    classes: int  # that a window follows
    layers: int
    device: torch.device | None

    def zeros(self, *rest: int) -> torch.Tensor:
        """Counters of 0, (batch, *rest) or (settings, batch, *rest) int64."""
        shape = (*self.settings, self.batch, *rest)
        return torch.zeros(shape, dtype=torch.long, device=self.device)

    def unknown(self, *rest: int) -> torch.Tensor:
        """Scores that nobody has seen yet: (batch, *rest) of NaN."""
        return torch.full((self.batch, *rest), math.nan, device=self.device)

    def nobody(self) -> torch.Tensor:
        """The number of no class, (batch,) int64."""
        return torch.full((self.batch,), -1, device=self.device)


# What a rule reads of an answer.


def exit_scores(logits: torch.Tensor) -> torch.Tensor:
    """Class probabilities, or the predicted value itself for regression."""
    return logits.softmax(-1) if logits.shape[-1] > 1 else logits


def normalised_entropy(probabilities: torch.Tensor) -> torch.Tensor:
    """Entropy of (..., classes) over log K, in [0, 1]."""
    classes = probabilities.shape[-1]
    return torch.special.entr(probabilities).sum(-1) / math.log(max(classes, 2))


class Leaders(NamedTuple):
    """Which class leads, by how much, and the scores whose course a window follows."""

    top: torch.Tensor  # (batch,) int64
    lead: torch.Tensor  # (batch,)
    followed: torch.Tensor  # (batch, classes, or 2 for class0)


def leaders(scores: torch.Tensor, window_score: str) -> Leaders:
    """Of one layer's probabilities (batch, classes).

    With two classes p_top1 − p_top2 > 2·margin is the published p > 0.5 + margin. `class0` looks
    at class 0 against 0.5 however many classes there are, as ELBERT's published code does: its two
    sides stand in for classes.
    """
    if window_score == "class0":
        first = scores[:, 0]
        followed = torch.stack((first, -first), -1)
        return Leaders((first < 0.5).long(), (2 * first - 1).abs(), followed)
    values, classes = scores.topk(2)
    return Leaders(classes[:, 0], values[:, 0] - values[:, 1], scores)


# Rules on one layer's probabilities alone.


def nothing(size: Size) -> tuple[()]:
    return ()


def entropy_step(rule: ExitRule, state: State, scores: torch.Tensor) -> Outcome:
    return state, normalised_entropy(scores) < rule.exit_thres


def smallest_step(rule: ExitRule, state: State, scores: torch.Tensor) -> Outcome:
    return state, scores.amin(-1) < rule.exit_thres


def largest_step(rule: ExitRule, state: State, scores: torch.Tensor) -> Outcome:
    # As a distance to 1: 1 − exit_thres rounds differently for a number and for a tensor.
    return state, 1 - scores.amax(-1) < rule.exit_thres


def never_step(rule: ExitRule, state: State, scores: torch.Tensor) -> Outcome:
    """A predicted value has no probability: a rule on one is never sure."""
    return state, torch.zeros(
        (*rule.settings_shape, len(scores)), dtype=torch.bool, device=scores.device
    )


# Rules on a window of layers.


class Streak(NamedTuple):
    """Layers in a row that agree."""

    length: torch.Tensor  # (batch,) or (settings, batch) int64
    top: torch.Tensor  # the class that led or was answered at the last of them, (batch,) int64


def grown(length: torch.Tensor, goes_on: torch.Tensor) -> torch.Tensor:
    """A streak's length one layer later: one more, or 0 where it broke."""
    return torch.where(goes_on, length + 1, 0)


def streak_start(size: Size) -> Streak:
    return Streak(size.zeros(), size.nobody())


def led(rule: ExitRule, state: Streak, now: Leaders) -> Outcome:
    """bias_1: the same class leads all through the window, each time by more than 2·margin."""
    length = torch.where(now.top == state.top, state.length, 0)
    length = grown(length, now.lead > 2 * rule.margin)
    return Streak(length, now.top), length >= rule.cnt_thres


def leading_step(rule: ExitRule, state: Streak, scores: torch.Tensor) -> Outcome:
    return led(rule, state, leaders(scores, rule.window_score))


class Rise(NamedTuple):
    """For every class, how long it has been rising.

    Counted from the layer where it led by more than 2·margin. The oldest such layer without a fall
    since is the first to fill the window, so no other is remembered.
    """

    length: torch.Tensor  # layers, (batch, classes) or (settings, batch, classes) int64
    followed: torch.Tensor  # scores at the newest layer, (batch, classes)


def rising_start(size: Size) -> Rise:
    return Rise(size.zeros(size.classes), size.unknown(size.classes))


def rising_step(rule: ExitRule, state: Rise, scores: torch.Tensor) -> Outcome:
    """bias_2: the window's first layer leads, and its class's probability never falls in it."""
    top, lead, followed = leaders(scores, rule.window_score)
    classes = torch.arange(followed.shape[-1], device=top.device)
    opens = (lead > 2 * rule.margin)[..., None] & (classes == top[:, None])
    goes_on = (followed >= state.followed) & (state.length > 0)
    length = torch.where(goes_on, state.length + 1, opens.long())
    return Rise(length, followed), length.amax(-1) >= rule.cnt_thres


class Extremes(NamedTuple):
    """The highest and lowest score of the last 1, 2, … layers, (batch, layers) each."""

    highest: torch.Tensor
    lowest: torch.Tensor


def spread_start(size: Size) -> Extremes:
    return Extremes(size.unknown(size.layers), size.unknown(size.layers))


def spread_step(rule: ExitRule, state: Extremes, score: torch.Tensor) -> Outcome:
    """Values, or one score of each example, (batch, 1): is their window within range_tmp?"""
    highest = torch.cat((score, state.highest[:, :-1].maximum(score)), 1)
    lowest = torch.cat((score, state.lowest[:, :-1].minimum(score)), 1)
    moved = of_window(highest - lowest, rule.cnt_thres)
    return Extremes(highest, lowest), moved <= rule.range_tmp


def of_window(table: torch.Tensor, count: int | torch.Tensor) -> torch.Tensor:
    """Column of `table` (batch, windows) for windows of `count` layers: (batch,), or
    (settings, batch) for a count of shape (settings, 1)."""
    if isinstance(count, int):
        return table[:, count - 1]
    columns = table.index_select(1, (count - 1).flatten())
    return columns.T.reshape(*count.shape[:-1], -1)


class Steady(NamedTuple):
    """What bias_3 remembers: who has led how long, and how far the leaders' scores moved."""

    streak: Streak
    extremes: Extremes


def steady_start(size: Size) -> Steady:
    return Steady(streak_start(size), spread_start(size))


def steady_step(rule: ExitRule, state: Steady, scores: torch.Tensor) -> Outcome:
    """bias_3: bias_1's window holds, and that class's probability moves by at most range_tmp.

    The scores are those of each layer's own leader: of one class where bias_1's window holds.
    """
    now = leaders(scores, rule.window_score)
    streak, leads = led(rule, state.streak, now)
    score = now.followed.gather(-1, now.top[:, None])  # (batch, 1)
    extremes, steady = spread_step(rule, state.extremes, score)
    return Steady(streak, extremes), leads & steady


def agreeing_step(rule: ExitRule, state: Streak, scores: torch.Tensor) -> Outcome:
    """patience: cnt_thres layers in a row have each answered the class of the layer before."""
    seen = scores.argmax(-1).masked_fill(scores[:, 0].isnan(), -2)  # NaN agrees with nothing
    length = grown(state.length, seen == state.top)
    return Streak(length, seen.clamp_min(-1)), length >= rule.cnt_thres


class Closeness(NamedTuple):
    """Layers in a row that predicted about the value of the one before."""

    length: torch.Tensor  # (batch,) or (settings, batch) int64
    value: torch.Tensor  # of the newest layer, (batch,)


def close_start(size: Size) -> Closeness:
    return Closeness(size.zeros(), size.unknown())


def close_step(rule: ExitRule, state: Closeness, scores: torch.Tensor) -> Outcome:
    """patience: cnt_thres layers in a row have each predicted about the value before."""
    value = scores[:, 0]
    length = grown(state.length, (value - state.value).abs() < rule.exit_thres)
    return Closeness(length, value), length >= rule.cnt_thres


# One layer after the other.


def start(
    rule: ExitRule, batch: int, classes: int, layers: int, device: torch.device | None = None
) -> State:
    """What `rule` remembers of so many examples at depth 0."""
    followed = 2 if classes > 1 and rule.window_score == "class0" else classes
    size = Size(rule.settings_shape, batch, followed, layers, device)
    begin = getattr(HERE, RULES[rule.thres_name].of(classes).start)
    return begin(size)


def step(rule: ExitRule, state: State, scores: torch.Tensor) -> Outcome:
    """One layer's scores (batch, classes) -> the new state, and who exits there."""
    kind = RULES[rule.thres_name].of(scores.shape[-1])
    update = getattr(HERE, kind.step)
    state, fires = update(rule, state, scores)
    return state, fires | entropy_step(rule, state, scores)[1] if kind.or_entropy else fires


def scan(rule: ExitRule, all_logits: torch.Tensor) -> torch.Tensor:
    """Exit layer (1-based, int64) of every example from its recorded answers.

    all_logits (layers, batch, classes) -> (batch,), or (settings, batch). An example for which
    the rule never fires exits at the last layer.
    """
    return first_exits(firing(rule, all_logits))


def firing(rule: ExitRule, all_logits: torch.Tensor) -> Iterator[torch.Tensor]:
    """Who exits at each layer of (layers, batch, classes): (batch,) or (settings, batch) bool."""
    layers, batch, classes = all_logits.shape
    state = start(rule, batch, classes, layers, all_logits.device)
    for scores in exit_scores(all_logits):
        state, fires = step(rule, state, scores)
        yield fires
