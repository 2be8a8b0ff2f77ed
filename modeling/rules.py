"""Exit rules: what decides after which layer an example exits.

A rule is a class: `start` gives its state at depth 0, `step` takes one layer's output and says who
exits. The same two methods run at inference, layer by layer, and in `scan`, over recorded outputs.
ELBERT's rules are in `elbert/rules.py`, the halting criteria of ponder models in `ponder/rules.py`.

Settings may be tensors, and with one setting a state's shapes are the same at every layer, so that
the loop over depth can be exported as it is. Use a rule's decision only until it first says exit.
"""

import math
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

State = Any  # what an example carries on: a tensor or a tuple of tensors, batch first; or ()
Outcome = tuple[State, Tensor]  # the new state; who exits, (batch,) or (settings, batch) bool
Tensors = Mapping[str, Tensor]


class LayerOutput(NamedTuple):
    """What a layer says of the examples, for a rule to read."""

    logits: Tensor  # (batch, classes)
    scores: Tensor  # class probabilities, or the predicted value, (batch, classes)
    halt_probability: Tensor | None = None  # λ, (batch,), of a ponder model


class Size(NamedTuple):
    """What a state's shapes follow from."""

    settings: tuple[int, ...]  # (settings,), or () for one setting
    batch: int
    classes: int
    layers: int
    device: torch.device | None = None

    def zeros(self, *rest: int) -> Tensor:
        """Counters of 0, (batch, *rest) or (settings, batch, *rest) int64."""
        shape = (*self.settings, self.batch, *rest)
        return torch.zeros(shape, dtype=torch.long, device=self.device)

    def unknown(self, *rest: int) -> Tensor:
        """Scores before the first layer, (batch, *rest) of NaN: a comparison with NaN is false."""
        return torch.full((self.batch, *rest), math.nan, device=self.device)


class ExitRule(SimpleNamespace):
    """A rule with its settings: `Entropy(exit_thres=0.3)`; attributes are named as the exit keys.

    A number may be a tensor of shape (settings, 1): then all settings are decided at once, and
    exits get a leading dimension of settings.

    Attributes:
        reads: the exit keys that it reads, which a sweep varies.
        eager_when_low: those of them whose low values exit early; for all others high ones do.
        inputs: the model's own inputs that it reads (`EarlyExitModel.own_inputs`).
        cause: what ends a pass, where no window does; "" for the rule's name.
        never_exits: why every example goes to the last layer; "" for a rule with exits.
    """

    reads: ClassVar[tuple[str, ...]] = ()
    eager_when_low: ClassVar[tuple[str, ...]] = ()
    inputs: ClassVar[tuple[str, ...]] = ()
    cause: ClassVar[str] = ""
    never_exits: ClassVar[str] = ""

    def __init__(self, **settings: Any) -> None:
        # A Python number is compared in the scores' float32; a tensor must be too, to decide alike.
        for name, value in settings.items():
            if isinstance(value, Tensor) and value.is_floating_point():
                settings[name] = value.float()
        super().__init__(**settings)

    @property
    def settings_shape(self) -> tuple[int, ...]:
        """(settings,) for numbers of shape (settings, 1), () for scalars."""
        shapes = [value.shape for value in vars(self).values() if isinstance(value, Tensor)]
        return tuple(torch.broadcast_shapes(*shapes)[:-1])

    def start(self, size: Size, inputs: Tensors) -> State:
        """The state of `size.batch` examples at depth 0; inputs (batch,) each, by name."""
        return ()

    def step(self, seen: LayerOutput, state: State) -> tuple[State, Tensor]:
        """The state one layer later, and who exits there, (batch,) or (settings, batch) bool."""
        raise NotImplementedError

    def answer(self, seen: LayerOutput, state: State) -> Tensor:
        """What an exit answers, (batch, classes), given the newest layer and the state after it."""
        return seen.logits

    def ends_by_window(self, scores: Tensor) -> Tensor:
        """Which exits (examples,) a window of layers decided; scores: of the exit layers."""
        return torch.zeros(len(scores), dtype=torch.bool)


class NeverExits(ExitRule):
    """Runs every example to the last layer: there is no rule, or it cannot fire."""

    never_exits = "it never fires on a predicted value, so every example goes to the last layer"

    def step(self, seen: LayerOutput, state: State) -> tuple[State, Tensor]:
        shape = (*self.settings_shape, len(seen.logits))
        return state, torch.zeros(shape, dtype=torch.bool, device=seen.logits.device)


def exit_scores(logits: Tensor) -> Tensor:
    """Class probabilities, or the predicted value itself for regression."""
    return logits.softmax(-1) if logits.shape[-1] > 1 else logits


def normalised_entropy(probabilities: Tensor) -> Tensor:
    """Entropy of (..., classes) over log K, in [0, 1]."""
    classes = probabilities.shape[-1]
    return torch.special.entr(probabilities).sum(-1) / math.log(max(classes, 2))


def replay(rule: ExitRule, recorded: Tensors) -> Iterator[tuple[Tensor, Tensor]]:
    """Step through recorded layers: of each the answers, (batch, classes), and who exits there.

    recorded: all_logits (layers, batch, classes) and what the rule reads beside it:
    halt_probabilities (batch, layers), and its `inputs`.
    """
    all_logits = recorded["all_logits"]
    layers, batch, classes = all_logits.shape
    size = Size(rule.settings_shape, batch, classes, layers, all_logits.device)
    state, halts = rule.start(size, recorded), [None] * layers
    if "halt_probabilities" in recorded:
        halts = recorded["halt_probabilities"].T
    for output in zip(all_logits, exit_scores(all_logits), halts, strict=True):
        seen = LayerOutput(*output)
        state, exit_mask = rule.step(seen, state)
        yield rule.answer(seen, state), exit_mask


def scan(rule: ExitRule, recorded: Tensors) -> Tensor:
    """Find the exit layers of recorded examples, as inference would: (batch,) int64, 1-based.

    (settings, batch) for a rule whose settings have the shape (settings, 1). An example for which
    the rule never fires exits at the last layer.

    Args:
        rule: with its settings, such as `Entropy(exit_thres=0.3)`.
        recorded: `all_logits` (layers, batch, classes); for a halting criterion also
            `halt_probabilities` (batch, layers), and for `sample` its `draws` (batch,).
    """
    exit_layer = torch.zeros((), dtype=torch.long)
    for layer, (_, exit_mask) in enumerate(replay(rule, recorded), start=1):
        exit_layer = torch.where(exit_mask & (exit_layer == 0), layer, exit_layer)
    return exit_layer.masked_fill(exit_layer == 0, layer)


def scan_answers(rule: ExitRule, recorded: Tensors) -> tuple[Tensor, Tensor]:
    """Return the answers (batch, classes) at the exit layers, and these layers, as `scan` does."""
    exit_layer = scan(rule, recorded)
    answers = torch.stack([answer for answer, _ in replay(rule, recorded)])
    rows = torch.arange(exit_layer.shape[-1], device=exit_layer.device)
    return answers[exit_layer - 1, rows], exit_layer
