"""ELBERT's exit rules: when a layer's answers are good enough to stop.

A rule is a class here, a row of `RULES` at the end, and its name in RULE_NAMES of `keys.py`.

Sources: ELBERT (Xie et al., 2021) for bias_1/2/3; DeeBERT (Xin et al., 2020) for entropy; PABEE
(Zhou et al., 2020) for patience.
"""

from typing import NamedTuple

import torch

from ..rules import (
    ExitRule,
    LayerOutput,
    NeverExits,
    Size,
    State,
    Tensors,
    normalised_entropy,
    scan,
)

Outcome = tuple[State, torch.Tensor]  # the new state; who exits, (batch,) or (settings, batch) bool


# Rules on one layer's probabilities alone.


class Entropy(ExitRule):
    """entropy: the normalised entropy is below exit_thres."""

    reads = ("exit_thres",)

    def step(self, seen: LayerOutput, state: State) -> Outcome:
        return state, normalised_entropy(seen.scores) < self.exit_thres


class SmallestProbability(ExitRule):
    """logits: the smallest class probability is below exit_thres."""

    reads = ("exit_thres",)

    def step(self, seen: LayerOutput, state: State) -> Outcome:
        return state, seen.scores.amin(-1) < self.exit_thres


class LargestProbability(ExitRule):
    """max_prob: the largest class probability is above 1 − exit_thres."""

    reads = ("exit_thres",)

    def step(self, seen: LayerOutput, state: State) -> Outcome:
        # As a distance to 1: 1 − exit_thres rounds differently for a number and for a tensor.
        return state, 1 - seen.scores.amax(-1) < self.exit_thres


# Rules on a window of layers.


class Leaders(NamedTuple):
    """Which class leads, by how much, and the scores whose course a window follows."""

    top: torch.Tensor  # (batch,) int64
    lead: torch.Tensor  # (batch,)
    tracked_scores: torch.Tensor  # (batch, classes, or 2 for class0)


def leaders(scores: torch.Tensor, window_score: str) -> Leaders:
    """Of one layer's probabilities (batch, classes).

    With two classes p_top1 − p_top2 > 2·margin is the published p > 0.5 + margin. `class0` looks
    at class 0 against 0.5 however many classes there are, as ELBERT's published code does: its two
    sides stand in for classes.
    """
    if window_score == "class0":
        first = scores[:, 0]
        tracked = torch.stack((first, -first), -1)
        return Leaders((first < 0.5).long(), (2 * first - 1).abs(), tracked)
    values, classes = scores.topk(2)
    return Leaders(classes[:, 0], values[:, 0] - values[:, 1], scores)


class Streak(NamedTuple):
    """Layers in a row that agree."""

    length: torch.Tensor  # (batch,) or (settings, batch) int64
    top: torch.Tensor  # the class that led or was answered at the last of them, (batch,) int64


def extend_streak(length: torch.Tensor, goes_on: torch.Tensor) -> torch.Tensor:
    """A streak's length one layer later: one more, or 0 where it broke."""
    return torch.where(goes_on, length + 1, 0)


class WindowRule(ExitRule):
    """A rule on the last cnt_thres layers."""

    reads = ("cnt_thres",)
    eager_when_low = ("cnt_thres", "margin")
    window_offset = 0

    def without_entropy(self) -> "WindowRule":
        """The rule with nothing but its window."""
        return self

    def window(self, recorded: Tensors) -> torch.Tensor:
        """As `ExitRule.window`; asked of the rule itself, with its entropy test off.

        One more layer tells a window that holds at the last layer from one that never holds.
        """
        logits = recorded["all_logits"]
        by_window = scan(self.without_entropy(), {"all_logits": torch.cat((logits, logits[-1:]))})
        held = by_window == scan(self, recorded)
        return torch.where(held, self.cnt_thres + self.window_offset, 0)


class LeadingWindow(WindowRule, Entropy):
    """A rule on the leading class in a window; a low entropy ends the pass, too.

    The entropy test never fires for exit_thres = 0.
    """

    reads = ("exit_thres", "cnt_thres", "margin")
    cause = "entropy"
    window_score = "lead"

    def without_entropy(self) -> WindowRule:
        return type(self)(**{**vars(self), "exit_thres": 0.0})

    def window_step(self, scores: torch.Tensor, state: State) -> Outcome:
        """The state one layer later, and whose window holds."""
        raise NotImplementedError

    def step(self, seen: LayerOutput, state: State) -> Outcome:
        state, holds = self.window_step(seen.scores, state)
        return state, holds | (normalised_entropy(seen.scores) < self.exit_thres)

    def same_leader_streak(self, state: Streak, now: Leaders) -> Outcome:
        """The same class leads all through the window, each time by more than 2·margin."""
        length = torch.where(now.top == state.top, state.length, 0)
        length = extend_streak(length, now.lead > 2 * self.margin)
        return Streak(length, now.top), length >= self.cnt_thres


class SameLeader(LeadingWindow):
    """bias_1: the same class leads all through the window, each time by more than 2·margin."""

    def start(self, size: Size, inputs: Tensors) -> Streak:
        return Streak(size.zeros(), size.no_class())

    def window_step(self, scores: torch.Tensor, state: Streak) -> Outcome:
        return self.same_leader_streak(state, leaders(scores, self.window_score))


class RisingRun(NamedTuple):
    """For every class, how long it has been rising.

    Counted from the layer where it led by more than 2·margin. The oldest such layer without a fall
    since is the first to fill the window, so no other is remembered.
    """

    length: torch.Tensor  # layers, (batch, classes) or (settings, batch, classes) int64
    tracked_scores: torch.Tensor  # at the newest layer, (batch, classes)


class RisingLeader(LeadingWindow):
    """bias_2: the window's first layer leads, and its class's probability never falls in it."""

    def start(self, size: Size, inputs: Tensors) -> RisingRun:
        classes = 2 if self.window_score == "class0" else size.classes
        return RisingRun(size.zeros(classes), size.unknown(classes))

    def window_step(self, scores: torch.Tensor, state: RisingRun) -> Outcome:
        top, lead, tracked = leaders(scores, self.window_score)
        classes = torch.arange(tracked.shape[-1], device=top.device)
        opens = (lead > 2 * self.margin)[..., None] & (classes == top[:, None])
        goes_on = (tracked >= state.tracked_scores) & (state.length > 0)
        length = torch.where(goes_on, state.length + 1, opens.long())
        return RisingRun(length, tracked), length.amax(-1) >= self.cnt_thres


class Extremes(NamedTuple):
    """The highest and lowest score of the last 1, 2, … layers, (batch, layers) each."""

    highest: torch.Tensor
    lowest: torch.Tensor

    @classmethod
    def start(cls, size: Size) -> "Extremes":
        return cls(size.unknown(size.layers), size.unknown(size.layers))

    def extend(self, score: torch.Tensor) -> "Extremes":
        """One layer later, with a score of each example, (batch, 1)."""
        highest = torch.cat((score, self.highest[:, :-1].maximum(score)), 1)
        return Extremes(highest, torch.cat((score, self.lowest[:, :-1].minimum(score)), 1))

    def spread(self, count: int | torch.Tensor) -> torch.Tensor:
        """Highest − lowest of the last `count` layers: (batch,), or (settings, batch) for a count
        of shape (settings, 1)."""
        spreads = self.highest - self.lowest  # (batch, layers)
        if isinstance(count, int):
            return spreads[:, count - 1]
        columns = spreads.index_select(1, (count - 1).flatten())
        return columns.T.reshape(*count.shape[:-1], -1)


class SteadyState(NamedTuple):
    """What bias_3 remembers: who has led how long, and how far the leaders' scores moved."""

    streak: Streak
    extremes: Extremes


class SteadyLeader(LeadingWindow):
    """bias_3: bias_1's window holds, and that class's probability moves by at most range_tmp.

    The scores are those of each layer's own leader: of one class where bias_1's window holds.
    """

    reads = (*LeadingWindow.reads, "range_tmp")

    def start(self, size: Size, inputs: Tensors) -> SteadyState:
        return SteadyState(Streak(size.zeros(), size.no_class()), Extremes.start(size))

    def window_step(self, scores: torch.Tensor, state: SteadyState) -> Outcome:
        now = leaders(scores, self.window_score)
        streak, leads = self.same_leader_streak(state.streak, now)
        extremes = state.extremes.extend(now.tracked_scores.gather(-1, now.top[:, None]))
        steady = extremes.spread(self.cnt_thres) <= self.range_tmp
        return SteadyState(streak, extremes), leads & steady


class SteadyValue(WindowRule):
    """bias_1 to 3 for regression: the window's values lie within range_tmp of each other."""

    reads = ("cnt_thres", "range_tmp")

    def start(self, size: Size, inputs: Tensors) -> Extremes:
        return Extremes.start(size)

    def step(self, seen: LayerOutput, state: Extremes) -> Outcome:
        state = state.extend(seen.scores)
        return state, state.spread(self.cnt_thres) <= self.range_tmp


class Patience(WindowRule):
    """patience: cnt_thres layers in a row have each answered the class of the layer before."""

    window_offset = 1

    def start(self, size: Size, inputs: Tensors) -> Streak:
        return Streak(size.zeros(), size.no_class())

    def step(self, seen: LayerOutput, state: Streak) -> Outcome:
        # NaN agrees with nothing.
        top = seen.scores.argmax(-1).masked_fill(seen.scores[:, 0].isnan(), -2)
        length = extend_streak(state.length, top == state.top)
        return Streak(length, top.clamp_min(-1)), length >= self.cnt_thres


class Closeness(NamedTuple):
    """Layers in a row that predicted about the value of the one before."""

    length: torch.Tensor  # (batch,) or (settings, batch) int64
    value: torch.Tensor  # of the newest layer, (batch,)


class PatienceOfValues(WindowRule):
    """patience for regression: the values of layers in a row differ by less than exit_thres."""

    reads = ("exit_thres", "cnt_thres")
    window_offset = 1

    def start(self, size: Size, inputs: Tensors) -> Closeness:
        return Closeness(size.zeros(), size.unknown())

    def step(self, seen: LayerOutput, state: Closeness) -> Outcome:
        value = seen.scores[:, 0]
        length = extend_streak(state.length, (value - state.value).abs() < self.exit_thres)
        return Closeness(length, value), length >= self.cnt_thres


class RuleVariants(NamedTuple):
    """A rule over class probabilities, and over values that are predicted."""

    classes: type[ExitRule]
    values: type[ExitRule]


RULES = {
    "entropy": RuleVariants(Entropy, NeverExits),
    "logits": RuleVariants(SmallestProbability, NeverExits),
    "max_prob": RuleVariants(LargestProbability, NeverExits),
    "bias_1": RuleVariants(SameLeader, SteadyValue),
    "bias_2": RuleVariants(RisingLeader, SteadyValue),
    "bias_3": RuleVariants(SteadyLeader, SteadyValue),
    "patience": RuleVariants(Patience, PatienceOfValues),
}


def elbert_rules(regression: bool) -> dict[str, type[ExitRule]]:
    """The rules by name, for predicted values or for classes."""
    return {name: rule.values if regression else rule.classes for name, rule in RULES.items()}
