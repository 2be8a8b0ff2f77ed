"""Exit rules: when a layer's answers are good enough to stop.

A rule is defined once, as a row of `RULES`. It remembers a small state, which one layer's answers
update: `start` gives the state at depth 0, `step` takes one layer's scores and says who exits,
`scan` does so over recorded answers. A state's shapes are the same at every layer and settings may
be tensors, so that the loop over depth can be exported as it is. Scores not seen yet are NaN, and a
comparison with NaN is false.

A state tells when a rule fires first. What it says of an example that should have left already
means nothing.

Sources: ELBERT (Xie et al., 2021) for bias_1/2/3; DeeBERT (Xin et al., 2020) for entropy; PABEE
(Zhou et al., 2020) for patience.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from transformers import AlbertConfig

from ..keys import EXIT_KEYS, checked

State = dict[str, torch.Tensor]
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


def nothing(size: Size) -> State:
    return {}


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


def grown(run: torch.Tensor, goes_on: torch.Tensor) -> torch.Tensor:
    """A run's length one layer later: one more, or 0 where it broke."""
    return torch.where(goes_on, run + 1, 0)


def run_start(size: Size) -> State:
    """run: layers in a row; top: the class that led or was answered at the layer before."""
    return {"run": size.zeros(), "top": size.nobody()}


def led(rule: ExitRule, state: State, now: Leaders) -> Outcome:
    """bias_1: the same class leads all through the window, each time by more than 2·margin."""
    run = torch.where(now.top == state["top"], state["run"], 0)
    run = grown(run, now.lead > 2 * rule.margin)
    return {**state, "run": run, "top": now.top}, run >= rule.cnt_thres


def leading_step(rule: ExitRule, state: State, scores: torch.Tensor) -> Outcome:
    return led(rule, state, leaders(scores, rule.window_score))


def rising_start(size: Size) -> State:
    """rise: for every class, layers since it led by more than 2·margin without a fall; the oldest
    such layer is the first to fill the window, so no other is remembered. followed: its scores."""
    return {"rise": size.zeros(size.classes), "followed": size.unknown(size.classes)}


def rising_step(rule: ExitRule, state: State, scores: torch.Tensor) -> Outcome:
    """bias_2: the window's first layer leads, and its class's probability never falls in it."""
    top, lead, followed = leaders(scores, rule.window_score)
    classes = torch.arange(followed.shape[-1], device=top.device)
    opens = (lead > 2 * rule.margin)[..., None] & (classes == top[:, None])
    goes_on = (followed >= state["followed"]) & (state["rise"] > 0)
    rise = torch.where(goes_on, state["rise"] + 1, opens.long())
    return {"rise": rise, "followed": followed}, rise.amax(-1) >= rule.cnt_thres


def spread_start(size: Size) -> State:
    """highest, lowest: the extreme scores of the last 1, 2, … layers."""
    return {"highest": size.unknown(size.layers), "lowest": size.unknown(size.layers)}


def spread_step(rule: ExitRule, state: State, score: torch.Tensor) -> Outcome:
    """Values, or one score of each example, (batch, 1): do all of the window lie in range_tmp?"""
    highest = torch.cat((score, state["highest"][:, :-1].maximum(score)), 1)
    lowest = torch.cat((score, state["lowest"][:, :-1].minimum(score)), 1)
    moved = of_window(highest - lowest, rule.cnt_thres)
    return {**state, "highest": highest, "lowest": lowest}, moved <= rule.range_tmp


def of_window(table: torch.Tensor, count: int | torch.Tensor) -> torch.Tensor:
    """Column of `table` (batch, windows) for windows of `count` layers: (batch,), or
    (settings, batch) for a count of shape (settings, 1)."""
    if isinstance(count, int):
        return table[:, count - 1]
    columns = table.index_select(1, (count - 1).flatten())
    return columns.T.reshape(*count.shape[:-1], -1)


def steady_start(size: Size) -> State:
    return run_start(size) | spread_start(size)


def steady_step(rule: ExitRule, state: State, scores: torch.Tensor) -> Outcome:
    """bias_3: bias_1's window holds, and that class's probability moves by at most range_tmp.

    The scores are those of each layer's own leader: of one class where bias_1's window holds.
    """
    now = leaders(scores, rule.window_score)
    state, leads = led(rule, state, now)
    state, steady = spread_step(rule, state, now.followed.gather(-1, now.top[:, None]))
    return state, leads & steady


def agreeing_step(rule: ExitRule, state: State, scores: torch.Tensor) -> Outcome:
    """patience: cnt_thres layers in a row have each answered the class of the layer before."""
    top = scores.argmax(-1)
    run = grown(state["run"], top == state["top"])
    seen = top.masked_fill(scores[:, 0].isnan(), -1)
    return {"run": run, "top": seen}, run >= rule.cnt_thres


def close_start(size: Size) -> State:
    """run: layers in a row; value: what the layer before predicted."""
    return {"run": size.zeros(), "value": size.unknown()}


def close_step(rule: ExitRule, state: State, scores: torch.Tensor) -> Outcome:
    """patience: cnt_thres layers in a row have each predicted about the value before."""
    value = scores[:, 0]
    run = grown(state["run"], (value - state["value"]).abs() < rule.exit_thres)
    return {"run": run, "value": value}, run >= rule.cnt_thres


Stepper = Callable[[ExitRule, State, torch.Tensor], Outcome]


# The table.


class Rule(NamedTuple):
    """What a rule remembers, what it does with an answer, and which keys it reads for that."""

    start: Callable[[Size], State]
    step: Stepper
    reads: tuple[str, ...]
    beyond: int | None = None  # layers of its window beyond cnt_thres; None: it has no window
    or_entropy: bool = False  # does a low entropy end the pass, too (never for exit_thres = 0)?


class Kinds(NamedTuple):
    """A rule over class probabilities, and over values that are predicted."""

    classes: Rule
    values: Rule

    def of(self, classes: int) -> Rule:
        return self.values if classes == 1 else self.classes


NEVER = Rule(nothing, never_step, ())
STEADY_VALUE = Rule(spread_start, spread_step, ("cnt_thres", "range_tmp"), 0)
WINDOW = ("exit_thres", "cnt_thres", "margin")

RULES = {
    "entropy": Kinds(Rule(nothing, entropy_step, ("exit_thres",)), NEVER),
    "logits": Kinds(Rule(nothing, smallest_step, ("exit_thres",)), NEVER),
    "max_prob": Kinds(Rule(nothing, largest_step, ("exit_thres",)), NEVER),
    "bias_1": Kinds(Rule(run_start, leading_step, WINDOW, 0, or_entropy=True), STEADY_VALUE),
    "bias_2": Kinds(Rule(rising_start, rising_step, WINDOW, 0, or_entropy=True), STEADY_VALUE),
    "bias_3": Kinds(
        Rule(steady_start, steady_step, (*WINDOW, "range_tmp"), 0, or_entropy=True), STEADY_VALUE
    ),
    "patience": Kinds(
        Rule(run_start, agreeing_step, ("cnt_thres",), 1),
        Rule(close_start, close_step, ("exit_thres", "cnt_thres"), 1),
    ),
}


def keys_read(regression: bool) -> dict[str, tuple[str, ...]]:
    """Which keys each rule reads; a predicted value has no entropy and no class that leads."""
    return {name: (k.values if regression else k.classes).reads for name, k in RULES.items()}


def start(
    rule: ExitRule, batch: int, classes: int, layers: int, device: torch.device | None = None
) -> State:
    """What `rule` remembers at depth 0: tensors with the batch first, but for (settings, batch)."""
    followed = 2 if classes > 1 and rule.window_score == "class0" else classes
    size = Size(rule.settings_shape, batch, followed, layers, device)
    return RULES[rule.thres_name].of(classes).start(size)


def step(rule: ExitRule, state: State, scores: torch.Tensor) -> Outcome:
    """One layer's scores (batch, classes) -> the new state, and who exits there."""
    kind = RULES[rule.thres_name].of(scores.shape[-1])
    state, fires = kind.step(rule, state, scores)
    return state, fires | entropy_step(rule, state, scores)[1] if kind.or_entropy else fires


def scan(rule: ExitRule, all_logits: torch.Tensor) -> torch.Tensor:
    """Exit layer (1-based, int64) of every example from its recorded answers.

    all_logits (layers, batch, classes) -> (batch,), or (settings, batch). An example for which
    the rule never fires exits at the last layer.
    """
    layers, batch, classes = all_logits.shape
    state = start(rule, batch, classes, layers, all_logits.device)
    exit_layer = None
    for layer, scores in enumerate(exit_scores(all_logits), start=1):
        state, fires = step(rule, state, scores)
        if exit_layer is None:
            exit_layer = torch.full(fires.shape, layers, device=fires.device)
        exit_layer[fires & (exit_layer > layer)] = layer
    return exit_layer
