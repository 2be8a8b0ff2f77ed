"""Exit rules: what decides after which layer an example exits.

A rule is a class: `start` gives its state at depth 0, `step` takes one layer's output and says who
exits. The same two methods run at inference, layer by layer, and in `scan`, over recorded outputs.
ELBERT's rules are in `elbert/rules.py`, the halting criteria of ponder models in `ponder/rules.py`.
`EarlyExitConfig.exit_rule` makes every rule.

Settings may be tensors, and with one setting a state's shapes are the same at every layer, so that
the loop over depth can be exported as it is. Use a rule's decision only until it first says exit.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple, dataclass_transform

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_map

State = Any  # what an example carries on: a tensor or a tuple of tensors, batch first; or ()
Outcome = tuple[State, Tensor]  # the new state; who exits, (batch,) or (settings, batch) bool
Tensors = Mapping[str, Tensor]
# An exit key's value, or a tensor of its values: (), or (settings, 1).
Number = float | Tensor
Count = int | Tensor


class LayerOutput(NamedTuple):
    """Answers of a layer, for a rule to read; a recording keeps all of it."""

    logits: Tensor  # (batch, classes)
    halt_probabilities: Tensor | None = None  # λ, (batch,), of a ponder model


class Size(NamedTuple):
    """Sizes that a state's shapes follow from."""

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


@dataclass_transform(kw_only_default=True, eq_default=False)
@dataclass(kw_only=True, eq=False)
class ExitRule:
    """A rule with its settings.

    The exit keys that a rule reads are its fields: what a class declares, and what its bases do. A
    number may be a tensor of shape (settings, 1): then all settings are decided at once, and exits
    get a leading dimension of settings.

    Attributes:
        reads: the exit keys that it reads.
        inputs: the model's own inputs that it reads (`EarlyExitModel.own_inputs`).
        cause: what ends a pass, where no window does; "" for the rule's name.
        never_exits: why every example goes to the last layer; "" for a rule with exits.
    """

    reads: ClassVar[tuple[str, ...]] = ()
    inputs: ClassVar[tuple[str, ...]] = ()
    never_exits = ""
    cause: ClassVar[str] = ""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.reads = tuple(field.name for field in fields(dataclass(kw_only=True, eq=False)(cls)))

    def __post_init__(self) -> None:
        # A Python number is compared in the scores' float32; a tensor must be too, to decide alike.
        for name, value in vars(self).items():
            if isinstance(value, Tensor) and value.is_floating_point():
                setattr(self, name, value.float())

    @property
    def settings_shape(self) -> tuple[int, ...]:
        """(settings,) for numbers of shape (settings, 1), () for scalars."""
        values = [getattr(self, name) for name in self.reads]
        shapes = [value.shape for value in values if isinstance(value, Tensor)]
        return tuple(torch.broadcast_shapes(*shapes)[:-1])

    def scores(self, logits: Tensor) -> Tensor:
        """Values that the rule compares, from logits (batch, classes): probabilities or value.

        (settings, batch, classes) where they depend on a setting.
        """
        return exit_scores(logits)

    def start(self, size: Size, inputs: Tensors) -> State:
        """The state of `size.batch` examples at depth 0; inputs (batch,) each, by name."""
        return ()

    def step(self, seen: LayerOutput, state: State) -> tuple[State, Tensor]:
        """The state one layer later, and who exits there, (batch,) or (settings, batch) bool."""
        raise NotImplementedError

    def answer(self, seen: LayerOutput, state: State) -> Tensor:
        """Answer of an exit, (batch, classes), given the newest layer and the state after it."""
        return seen.logits

    def by_window(self, seen: LayerOutput) -> Tensor:
        """Exits here that a window of layers decides, (batch,) bool."""
        return torch.zeros(len(seen.logits), dtype=torch.bool, device=seen.logits.device)


class NeverExits(ExitRule):
    """Runs every example to the last layer: there is no rule, or it cannot fire."""

    never_exits = "it never fires on a predicted value, so every example goes to the last layer"

    def step(self, seen: LayerOutput, state: State) -> tuple[State, Tensor]:
        shape = (*self.settings_shape, len(seen.logits))
        return state, torch.zeros(shape, dtype=torch.bool, device=seen.logits.device)


class EachLabel(ExitRule):
    """Lets an example that may have several labels exit where `rule` lets each label exit, as a
    choice between there and not there: the least certain label decides."""

    rule: ExitRule

    def __post_init__(self) -> None:
        self.never_exits = self.rule.never_exits

    @property
    def settings_shape(self) -> tuple[int, ...]:
        return self.rule.settings_shape

    def start(self, size: Size, inputs: Tensors) -> State:
        state = self.rule.start(size._replace(batch=size.batch * size.classes, classes=2), inputs)
        return self.by_example(state, size.classes)

    def step(self, seen: LayerOutput, state: State) -> Outcome:
        labels = seen.logits.shape[-1]
        if not self.settings_shape:
            state = tree_map(lambda x: x.flatten(0, 1), state)
        state, exit_mask = self.rule.step(self.of_labels(seen), state)
        return self.by_example(state, labels), exit_mask.unflatten(-1, (-1, labels)).all(-1)

    def by_window(self, seen: LayerOutput) -> Tensor:
        of_labels = self.rule.by_window(self.of_labels(seen))
        return of_labels.unflatten(-1, (-1, seen.logits.shape[-1])).any(-1)

    def of_labels(self, seen: LayerOutput) -> LayerOutput:
        """Logits (batch, labels) -> (batch · labels, 2): 0 of not there, the label's of there."""
        return LayerOutput(F.pad(seen.logits.flatten()[:, None], (1, 0)))

    def by_example(self, state: State, labels: int) -> State:
        """A state with the batch first, of which examples that exit are left out; many settings
        are scanned without leaving any out."""
        if self.settings_shape:
            return state
        return tree_map(lambda x: x.unflatten(0, (-1, labels)), state)


def per_class(setting: Number) -> Number:
    """A setting in a shape that goes with logits (batch, classes)."""
    return setting[..., None] if isinstance(setting, Tensor) and setting.ndim else setting


def exit_scores(logits: Tensor, multi_label: bool = False) -> Tensor:
    """Class probabilities, the probability of each of several labels, or for regression the
    predicted value itself."""
    if multi_label:
        return logits.sigmoid()
    return logits.softmax(-1) if logits.shape[-1] > 1 else logits


def certainty(scores: Tensor, multi_label: bool) -> Tensor:
    """Probability of an answer, (...), from `exit_scores`; of several labels the least certain."""
    return scores.maximum(1 - scores).amin(-1) if multi_label else scores.amax(-1)


def normalised_entropy(probabilities: Tensor) -> Tensor:
    """Entropy of (..., classes) over log K, in [0, 1]."""
    classes = probabilities.shape[-1]
    return torch.special.entr(probabilities).sum(-1) / math.log(max(classes, 2))


def replay(rule: ExitRule, recorded: Tensors) -> Iterator[tuple[LayerOutput, State, Tensor]]:
    """Step through recorded layers: of each what it says, the state after it, and who exits there.

    recorded: all_logits (layers, batch, classes), what else a layer says, by `LayerOutput`'s names,
    (batch, layers) each, and the rule's `inputs`.
    """
    all_logits = recorded["all_logits"]
    layers, batch, classes = all_logits.shape
    state = rule.start(
        Size(rule.settings_shape, batch, classes, layers, all_logits.device), recorded
    )
    more = {name: recorded[name].T for name in LayerOutput._fields if name in recorded}
    for layer, logits in enumerate(all_logits):
        seen = LayerOutput(logits, **{name: values[layer] for name, values in more.items()})
        state, exit_mask = rule.step(seen, state)
        yield seen, state, exit_mask


def scan(rule: ExitRule, recorded: Tensors) -> Tensor:
    """Find the exit layers of recorded examples, as inference would: (batch,) int64, 1-based.

    (settings, batch) for a rule whose settings have the shape (settings, 1). An example for which
    the rule never fires exits at the last layer.

    Args:
        rule: as `EarlyExitConfig.exit_rule` makes it.
        recorded: `all_logits` (layers, batch, classes); for a halting criterion also
            `halt_probabilities` (batch, layers), and for `sample` its `draws` (batch,).
    """
    exit_layer = torch.zeros((), dtype=torch.long)
    for layer, (_, _, exit_mask) in enumerate(replay(rule, recorded), start=1):
        exit_layer = torch.where(exit_mask & (exit_layer == 0), layer, exit_layer)
    return exit_layer.masked_fill(exit_layer == 0, layer)


def layer_answers(rule: ExitRule, recorded: Tensors) -> Tensor:
    """Answers of an exit at every layer: (layers, batch, classes)."""
    return torch.stack([rule.answer(seen, state) for seen, state, _ in replay(rule, recorded)])


def scan_answers(rule: ExitRule, recorded: Tensors) -> tuple[Tensor, Tensor]:
    """Return the answers (batch, classes) at the exit layers, and these layers, as `scan` does."""
    exit_layer = scan(rule, recorded)
    rows = torch.arange(exit_layer.shape[-1], device=exit_layer.device)
    return layer_answers(rule, recorded)[exit_layer - 1, rows], exit_layer


def exits_by_window(rule: ExitRule, recorded: Tensors, exit_layer: Tensor) -> Tensor:
    """Tell which of the exits at these layers, (batch,), a window decided: (batch,) bool."""
    found = torch.stack([rule.by_window(seen) for seen, _, _ in replay(rule, recorded)])
    return found[exit_layer - 1, torch.arange(len(exit_layer))]
