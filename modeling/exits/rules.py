"""ELBERT's exit rules: when a layer's answers are good enough to stop.

A rule is a class here, a row of `RULES` at the end, and its name in RULE_NAMES of
`modeling/keys.py`. Its annotations are the exit keys that it reads.

Sources: ELBERT (Xie et al., 2021) for bias_1/2/3; DeeBERT (Xin et al., 2020) for entropy; PABEE
(Zhou et al., 2020) for patience; BERxiT (Xin et al., 2021) for learnt, which reads hidden states;
Longstaff and Schwartz (2001) for the fit of optimal_stopping, `exit_lab/stopping.py`.
"""

import math
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ..rules import (
    Count,
    Depth,
    ExitRule,
    LayerOutput,
    LayerRows,
    NeverExits,
    Number,
    Outcome,
    Size,
    State,
    Tensors,
    normalised_entropy,
)

NO_CLASS = -1  # before the first layer, and of scores that are NaN


class Entropy(ExitRule):
    """entropy: the normalised entropy is below exit_thres."""

    exit_thres: Number

    def step(self, seen: LayerOutput, state: State) -> Outcome:
        return state, normalised_entropy(self.scores(seen.logits)) < self.exit_thres


class SmallestProbability(ExitRule):
    """logits: the smallest class probability is below exit_thres."""

    exit_thres: Number

    def step(self, seen: LayerOutput, state: State) -> Outcome:
        return state, self.scores(seen.logits).amin(-1) < self.exit_thres


class LargestProbability(ExitRule):
    """max_prob: the largest class probability is above 1 − exit_thres."""

    exit_thres: Number

    def step(self, seen: LayerOutput, state: State) -> Outcome:
        # As a distance to 1: 1 − exit_thres rounds differently for a number and for a tensor.
        return state, 1 - self.scores(seen.logits).amax(-1) < self.exit_thres


class Leaders(NamedTuple):
    """The leading class, its lead, and the scores whose course a window follows.

    All have a leading dimension of settings where the scores have one.
    """

    top: Tensor  # (batch,) int64
    lead: Tensor  # (batch,)
    tracked_scores: Tensor  # (batch, classes, or 2 for class0)


def leaders(scores: Tensor, window_score: str) -> Leaders:
    """Find the leaders of one layer's probabilities (batch, classes).

    With two classes p_top1 − p_top2 > 2·margin is the published p > 0.5 + margin. `class0` looks
    at class 0 against 0.5 however many classes there are, as ELBERT's published code does: its two
    sides stand in for classes.
    """
    if window_score == "class0":
        first = scores[..., 0]
        tracked = torch.stack((first, -first), -1)
        return Leaders((first < 0.5).long(), (2 * first - 1).abs(), tracked)
    values, classes = scores.topk(2)
    return Leaders(classes[..., 0], values[..., 0] - values[..., 1], scores)


def extend_streak(length: Tensor, goes_on: Tensor) -> Tensor:
    """Return a streak's length one layer later: one more, or 0 where it broke."""
    return torch.where(goes_on, length + 1, 0)


class WindowRule(ExitRule):
    """A rule on the last cnt_thres layers: its window decides all of its exits."""

    cnt_thres: Count

    def by_window(self, seen: LayerOutput, state: State) -> Tensor:
        return torch.ones(len(seen.logits), dtype=torch.bool, device=seen.logits.device)


class SameLeader(WindowRule):
    """bias_1: the same class leads all through the window, each time by more than 2·margin.

    An entropy below exit_thres ends the pass as well (never with exit_thres = 0). The state is a
    streak: its length, (batch,) or (settings, batch), and the class that led at its last layer,
    (batch,) int64.
    """

    exit_thres: Number
    margin: Number
    window_score: str
    cause = "entropy"

    def by_window(self, seen: LayerOutput, state: State) -> Tensor:
        return ~self.is_sure(self.scores(seen.logits))

    def is_sure(self, scores: Tensor) -> Tensor:
        """Tell which examples exit by their low entropy, whatever the window says."""
        return normalised_entropy(scores) < self.exit_thres

    def start(self, size: Size, inputs: Tensors) -> State:
        return size.zeros(), size.zeros() + NO_CLASS

    def step(self, seen: LayerOutput, state: State) -> Outcome:
        scores = self.scores(seen.logits)
        state, holds = self.window_step(leaders(scores, self.window_score), state)
        return state, holds | self.is_sure(scores)

    def window_step(self, now: Leaders, state: State) -> Outcome:
        """Return the state one layer later, and whose window holds."""
        length, top_before = state
        length_of_class = torch.where(now.top == top_before, length, 0)
        length = extend_streak(length_of_class, now.lead > 2 * self.margin)
        return (length, now.top), length >= self.cnt_thres


class RisingLeader(SameLeader):
    """bias_2: the window's first layer leads, and its class's probability never falls in it.

    The state is, for every class, how long it has been rising, counted from the layer where it led
    by more than 2·margin, (batch, classes) or (settings, batch, classes), and its newest score,
    (batch, classes). The oldest such layer without a fall since is the first to fill the window, so
    no other is remembered.
    """

    def start(self, size: Size, inputs: Tensors) -> State:
        classes = 2 if self.window_score == "class0" else size.classes
        return size.zeros(classes), size.unknown(classes)

    def window_step(self, now: Leaders, state: State) -> Outcome:
        length, scores_before = state
        classes = torch.arange(scores_before.shape[-1], device=scores_before.device)
        leads = (now.lead > 2 * self.margin)[..., None]
        opens_window = leads & (classes == now.top[..., None])
        goes_on = (now.tracked_scores >= scores_before) & (length > 0)
        length = torch.where(goes_on, length + 1, opens_window.long())
        return (length, now.tracked_scores), length.amax(-1) >= self.cnt_thres


def extend_extremes(extremes: State, score: Tensor) -> State:
    """Add a layer's score (batch, 1) to the extremes of the layers before.

    extremes: the highest and the lowest score of the last 1, 2, … layers, (batch, layers) each.
    """
    highest, lowest = extremes
    # The extreme of the last n layers becomes a part of that of the last n + 1.
    shifted_highest = F.pad(highest[..., :-1], (1, 0), value=-math.inf)
    shifted_lowest = F.pad(lowest[..., :-1], (1, 0), value=math.inf)
    return shifted_highest.maximum(score), shifted_lowest.minimum(score)


def spread(extremes: State, count: Count) -> Tensor:
    """Return highest − lowest of the last `count` layers: (batch,), or (settings, batch)."""
    spreads = extremes[0] - extremes[1]  # (batch, layers), or (settings, batch, layers)
    if isinstance(count, int):
        return spreads[..., count - 1]
    shape = torch.broadcast_shapes(spreads.shape[:-1], count.shape)
    columns = (count - 1)[..., None].expand(*shape, 1)
    return spreads.expand(*shape, -1).gather(-1, columns)[..., 0]


class SteadyLeader(SameLeader):
    """bias_3: bias_1's window holds, and that class's probability moves by at most range_tmp.

    The scores are those of each layer's own leader: of one class where bias_1's window holds. The
    state is bias_1's, and the extremes of the scores.
    """

    range_tmp: Number

    def start(self, size: Size, inputs: Tensors) -> State:
        extremes = size.unknown(size.layers), size.unknown(size.layers)
        return super().start(size, inputs), extremes

    def window_step(self, now: Leaders, state: State) -> Outcome:
        streak, extremes = state
        streak, same_leader = super().window_step(now, streak)
        score = now.tracked_scores.gather(-1, now.top[..., None])
        extremes = extend_extremes(extremes, score)
        is_steady = spread(extremes, self.cnt_thres) <= self.range_tmp
        return (streak, extremes), same_leader & is_steady


class SteadyValue(WindowRule):
    """bias_1 to 3 for regression: the window's values lie within range_tmp of each other."""

    range_tmp: Number

    def start(self, size: Size, inputs: Tensors) -> State:
        return size.unknown(size.layers), size.unknown(size.layers)

    def step(self, seen: LayerOutput, state: State) -> Outcome:
        extremes = extend_extremes(state, self.scores(seen.logits))
        return extremes, spread(extremes, self.cnt_thres) <= self.range_tmp


class Patience(WindowRule):
    """patience: cnt_thres layers in a row have each answered the class of the layer before.

    The state is how many did so, (batch,) or (settings, batch), and the newest class, (batch,).
    """

    def start(self, size: Size, inputs: Tensors) -> State:
        return size.zeros(), size.zeros() + NO_CLASS

    def step(self, seen: LayerOutput, state: State) -> Outcome:
        length, top_before = state
        scores = self.scores(seen.logits)
        top = scores.argmax(-1)
        is_answer = ~scores[..., 0].isnan()  # NaN agrees with no class, itself included
        length = extend_streak(length, is_answer & (top == top_before))
        top = torch.where(is_answer, top, NO_CLASS)
        return (length, top), length >= self.cnt_thres


class PatienceOfValues(WindowRule):
    """patience for regression: the values of layers in a row differ by less than exit_thres."""

    exit_thres: Number

    def start(self, size: Size, inputs: Tensors) -> State:
        return size.zeros(), size.unknown()

    def step(self, seen: LayerOutput, state: State) -> Outcome:
        length, value_before = state
        value = self.scores(seen.logits)[..., 0]
        length = extend_streak(length, (value - value_before).abs() < self.exit_thres)
        return (length, value), length >= self.cnt_thres


def log_odds(probability: Tensor) -> Tensor:
    """Return log p − log (1 − p), finite for 0 and 1."""
    probability = probability.clamp(1e-6, 1 - 1e-6)
    return probability.log() - (1 - probability).log()


class Learnt(ExitRule):
    """learnt: this layer's answer is wrong with a probability below exit_thres.

    A layer's row of `learnt_weights` is a logistic regression, its bias first, on the log odds of
    the class that leads, now and at the layer before. The state is the newest scores, (batch,
    classes). Without rows of such a length no example exits.
    """

    exit_thres: Number
    learnt_weights: list[list[float]]
    inputs_read: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        weights = self.learnt_weights
        if {len(row) for row in weights} != {1 + self.inputs_read}:
            self.never_exits = "it is not fitted: sweep_exits.py --rules learnt --pick … does that"
            # A bias of −∞: no answer is ever sure.
            weights = [[-math.inf] + [0.0] * self.inputs_read]
        self.rows = LayerRows(torch.tensor(weights))  # (layers, 1 + inputs_read)

    def start(self, size: Size, inputs: Tensors) -> State:
        # Before the first layer both of two classes are as probable.
        return torch.full((size.batch, size.classes), 0.5, device=size.device)

    def step(self, seen: LayerOutput, state: Tensor) -> Outcome:
        scores = self.scores(seen.logits)
        return scores, self.uncertainty(scores, state, seen.depth) < self.exit_thres

    def uncertainty(self, scores: Tensor, scores_before: Tensor, depth: Depth) -> Tensor:
        """Compute how probable it is that the layer's answer is wrong: (batch,).

        scores, scores_before: (batch, classes), of this layer and of the one before; depth: the
        layer's number, from 1.
        """
        row = self.rows.at(depth, scores.device)  # (1 + inputs,), or (batch, 1 + inputs)
        bias, slopes = row[..., 0], row[..., 1:]
        logit = bias + (slopes * self.read(scores, scores_before)).sum(-1)  # of being right
        return (-logit).sigmoid()

    def read(self, scores: Tensor, scores_before: Tensor) -> Tensor:
        """Compute what the regression reads: (batch, inputs_read).

        scores, scores_before: (batch, classes), of this layer and of the one before.
        """
        leader = scores.argmax(-1, keepdim=True)
        probability = scores.gather(-1, leader)
        probability_before = scores_before.expand_as(scores).gather(-1, leader)
        return log_odds(torch.cat([probability, probability_before], -1))


class LearntOfValues(Learnt):
    """learnt for regression: tanh |error| is below exit_thres, as BERxiT measures certainty.

    It reads the value, its square, and how far it is from the value before.
    """

    inputs_read = 3

    def read(self, scores: Tensor, scores_before: Tensor) -> Tensor:
        return torch.cat((scores, scores.square(), (scores - scores_before).abs()), -1)


class OptimalStopping(ExitRule):
    """optimal_stopping: the uncertainty is below the layer's threshold at a price of computation.

    The uncertainty is 1 less the largest class probability. A row of `stopping_thresholds` is a
    price, then the threshold of every layer but the last at that price; rows are in rising order of
    price, and between two prices thresholds are interpolated. The state is the newest scores,
    (batch, classes). Without rows no example exits.
    """

    exit_price: Number
    stopping_thresholds: list[list[float]]

    def __post_init__(self) -> None:
        super().__post_init__()
        rows = self.stopping_thresholds
        if not rows or {len(row) for row in rows} != {len(rows[0])} or len(rows[0]) < 2:
            self.never_exits = (
                "it is not fitted: sweep_exits.py --rules optimal_stopping --pick … does that"
            )
            rows = [[0.0, -1.0]]  # no uncertainty is below −1
        table = torch.tensor(rows)  # (prices, 1 + layers − 1)
        thresholds = interpolate(self.exit_price, table[:, 0], table[:, 1:])
        by_layer = thresholds.movedim(-1, 0)  # (layers − 1,), or (layers − 1, settings)
        self.thresholds = LayerRows(by_layer[..., None])

    def start(self, size: Size, inputs: Tensors) -> State:
        return torch.zeros(size.batch, size.classes, device=size.device)

    def step(self, seen: LayerOutput, state: Tensor) -> Outcome:
        scores = self.scores(seen.logits)
        uncertainty = self.uncertainty(scores, state)  # (batch,)
        threshold = self.thresholds.at(seen.depth, uncertainty.device)
        if isinstance(seen.depth, Tensor):  # (batch, 1), or (batch, settings, 1)
            threshold = threshold[..., 0].movedim(0, -1)
        return scores, uncertainty < threshold

    def uncertainty(self, scores: Tensor, scores_before: Tensor) -> Tensor:
        """Compute how uncertain the answers are: (batch,).

        scores, scores_before: (batch, classes), of this exit and of the one before.
        """
        return 1 - scores.amax(-1)


class OptimalStoppingOfValues(OptimalStopping):
    """optimal_stopping for regression: the uncertainty is how far the last layer moved the value.

    At the first exit it is 0, so that all examples exit there, or none.
    """

    def start(self, size: Size, inputs: Tensors) -> State:
        return size.unknown(size.classes)

    def uncertainty(self, scores: Tensor, scores_before: Tensor) -> Tensor:
        moved = (scores - scores_before).abs().amax(-1)
        is_first = scores_before[..., 0].isnan()
        return moved.masked_fill(is_first, 0.0)


def interpolate(place: Number, places: Tensor, values: Tensor) -> Tensor:
    """Interpolate between rows of values, linearly: (columns,), or (settings, columns).

    place: a number, or (settings, 1) of them; outside of `places` the nearest row holds.
    places: (rows,), rising. values: (rows, columns).
    """
    # A weighted sum instead of a search, so that it can be exported with `place` as an input. At
    # one of `places` its row has the weight 1 and all others 0: the threshold is exact.
    place = torch.as_tensor(place, dtype=torch.float)
    passed = ((place - places[:-1]) / places.diff()).clamp(0, 1)  # (settings, rows − 1)
    weights = F.pad(passed, (1, 0), value=1.0) - F.pad(passed, (0, 1))
    return (weights[..., None] * values).sum(-2)


# By name: the rule over class probabilities, and the one over predicted values.
RULES = {
    "entropy": (Entropy, NeverExits),
    "logits": (SmallestProbability, NeverExits),
    "max_prob": (LargestProbability, NeverExits),
    "bias_1": (SameLeader, SteadyValue),
    "bias_2": (RisingLeader, SteadyValue),
    "bias_3": (SteadyLeader, SteadyValue),
    "patience": (Patience, PatienceOfValues),
    "learnt": (Learnt, LearntOfValues),
    "optimal_stopping": (OptimalStopping, OptimalStoppingOfValues),
}
