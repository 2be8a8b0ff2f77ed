"""Exit rules: what decides after which layer an example exits.

A rule is a class. `start` gives its state at depth 0. `step` takes one layer's output and the
state, and returns the new state and who exits. The same methods run at inference, layer by layer,
and in `scan`, over recorded outputs. `exits/rules.py` has ELBERT's rules, `ponder/rules.py` the
halting criteria of ponder models. `EarlyExitConfig.exit_rule` makes every rule.

A setting may be a tensor of many values: then one scan decides for all of them. With one setting,
the shapes of a state are the same at every layer, so that the loop over depth can be exported as it
is. A rule's decisions count only up to the first layer where it says exit.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, dataclass_transform

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from .errors import UserError

# What an example carries from layer to layer: a tensor or a tuple of tensors, batch first; or ().
State = Any
Outcome = tuple[State, Tensor]  # the new state; who exits, (batch,) or (settings, batch) bool
Tensors = Mapping[str, Tensor]
# An exit key's value, or a tensor of its values: (), or (settings, 1).
Number = float | Tensor
Count = int | Tensor
# Layers that ran: a number where it is the same for all examples, else (batch,) int64.
Depth = int | Tensor


class LayerOutput(NamedTuple):
    """What a model says after a layer, for a rule to read; a recording keeps all of it."""

    logits: Tensor  # (batch, classes)
    # What else the model says of the layer, by name, (batch,) each: a ponder model's halting
    # probabilities, for example.
    signals: Tensors = MappingProxyType({})
    depth: Depth = 0  # the layer's number, from 1; `decide` sets it


class Size(NamedTuple):
    """Sizes from which the shapes of a state follow."""

    settings: tuple[int, ...]  # (settings,), or () for one setting
    batch: int
    classes: int
    layers: int
    device: torch.device | None = None

    def zeros(self, *rest: int) -> Tensor:
        """Counters of 0: (batch, *rest) or (settings, batch, *rest), int64."""
        shape = (*self.settings, self.batch, *rest)
        return torch.zeros(shape, dtype=torch.long, device=self.device)

    def unknown(self, *rest: int) -> Tensor:
        """Scores before the first layer: (batch, *rest) of NaN, as no comparison with it holds."""
        return torch.full((self.batch, *rest), math.nan, device=self.device)


@dataclass_transform(kw_only_default=True, eq_default=False)
@dataclass(kw_only=True, eq=False)
class ExitRule:
    """An exit rule with the values of its keys; the base of all rules.

    A rule of your own is a subclass with a method `step`. Its annotations are the exit keys that it
    reads, in addition to those of its bases. A number may be a tensor of shape (settings, 1): then
    all settings are decided at once, and exits get a leading dimension of settings.

    Attributes:
        reads: the exit keys that the rule reads.
        signals: names of what it reads of a layer besides the logits (`LayerOutput.signals`).
        inputs: names of the model's own inputs that it reads (`AdaptiveConfig.own_inputs`).
        cause: for a figure, what lets an example exit where no window does; "" stands for the
            rule's name.
        never_exits: why every example goes to the last layer; "" for a rule with exits.
        exits: numbers of the layers that have an exit; it steps at these alone. () stands for all.
    """

    reads: ClassVar[tuple[str, ...]] = ()
    signals: ClassVar[tuple[str, ...]] = ()
    inputs: ClassVar[tuple[str, ...]] = ()
    cause: ClassVar[str] = ""
    never_exits = ""
    exits = ()

    def __init_subclass__(cls, **options: Any) -> None:
        # Every subclass becomes a dataclass, so that a rule is written as its annotations and its
        # step alone, and `reads` can never differ from what the rule really has.
        super().__init_subclass__(**options)
        made = dataclass(kw_only=True, eq=False)(cls)
        cls.reads = tuple(field.name for field in fields(made))

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
        """Values that the rule compares, from logits (batch, classes): probabilities, or a value.

        (settings, batch, classes) where they depend on a setting.
        """
        return exit_scores(logits)

    def may_exit(self, depth: Depth) -> Tensor | bool:
        """Tell who may exit after so many layers, whatever `step` says.

        depth: layers that ran, a number or (batch,) int64. Returns a bool, or a tensor (batch,) or
        (settings, batch). A key that limits all rules, such as a least layer, is applied here.
        """
        return True

    def start(self, size: Size, inputs: Tensors) -> State:
        """Make the state of `size.batch` examples at depth 0; inputs: (batch,) each, by name."""
        return ()

    def step(self, seen: LayerOutput, state: State) -> Outcome:
        """Return the state one layer later, and who exits: (batch,) or (settings, batch) bool."""
        raise NotImplementedError

    def decide(self, seen: LayerOutput, state: State, depth: Depth) -> Outcome:
        """Step, and let only those exit who may; see `may_exit` for depth."""
        state, exit_mask = self.step(seen._replace(depth=depth), state)
        may_exit = self.may_exit(depth)
        return state, exit_mask if may_exit is True else exit_mask & may_exit

    def answer(self, seen: LayerOutput, state: State) -> Tensor:
        """Answer of an exit, (batch, classes), given the newest layer and the state after it."""
        return seen.logits

    def by_window(self, seen: LayerOutput, state: State) -> Tensor:
        """Tell which of the exits here a confidence window decides: (batch,) bool.

        state: after the layer.
        """
        return torch.zeros(len(seen.logits), dtype=torch.bool, device=seen.logits.device)


class NeverExits(ExitRule):
    """Runs every example to the last layer: there is no rule, or it cannot fire."""

    never_exits = "it never fires on a predicted value, so every example goes to the last layer"

    def step(self, seen: LayerOutput, state: State) -> Outcome:
        shape = (*self.settings_shape, len(seen.logits))
        return state, torch.zeros(shape, dtype=torch.bool, device=seen.logits.device)


class WrappedRule:
    """What callers ask of a rule that wraps another one: the wrapped rule's own answers."""

    def __init__(self, rule: "ExitRule | WrappedRule") -> None:
        self.reads = rule.reads
        self.signals = rule.signals
        self.inputs = rule.inputs
        self.cause = rule.cause
        self.never_exits = rule.never_exits
        self.settings_shape = rule.settings_shape
        self.exits: tuple[int, ...] = ()


class EachLabel(WrappedRule):
    """A rule for examples that may have several labels.

    An example exits where `rule` lets each label exit, as a choice between there and not there: the
    least certain label decides. It has the methods of a rule that callers use.
    """

    def __init__(self, rule: ExitRule) -> None:
        super().__init__(rule)
        self.rule = rule

    def start(self, size: Size, inputs: Tensors) -> State:
        """Make the state of `size.batch` examples at depth 0, as `ExitRule.start`."""
        of_labels = {name: x.repeat_interleave(size.classes) for name, x in inputs.items()}
        labels = size._replace(batch=size.batch * size.classes, classes=2)
        return self.by_example(self.rule.start(labels, of_labels), size.classes)

    def decide(self, seen: LayerOutput, state: State, depth: Depth) -> Outcome:
        """Return the state one layer later, and who exits, as `ExitRule.decide`."""
        labels = seen.logits.shape[-1]
        if not self.settings_shape:
            state = tree_map(lambda x: x.flatten(0, 1), state)
        if isinstance(depth, Tensor):
            depth = depth.repeat_interleave(labels)
        state, exit_mask = self.rule.decide(self.of_labels(seen), state, depth)
        all_labels_exit = exit_mask.unflatten(-1, (-1, labels)).all(-1)
        return self.by_example(state, labels), all_labels_exit

    def answer(self, seen: LayerOutput, state: State) -> Tensor:
        """Answer of an exit, (batch, labels): the newest layer's."""
        return seen.logits

    def by_window(self, seen: LayerOutput, state: State) -> Tensor:
        """Tell which of the exits here a window decides for some label: (batch,) bool."""
        of_labels = self.rule.by_window(self.of_labels(seen), state)
        return of_labels.unflatten(-1, (-1, seen.logits.shape[-1])).any(-1)

    def of_labels(self, seen: LayerOutput) -> LayerOutput:
        """Logits (batch, labels) -> (batch · labels, 2): 0 of not there, the label's of there."""
        labels = seen.logits.shape[-1]
        signals = {name: x.repeat_interleave(labels) for name, x in seen.signals.items()}
        return LayerOutput(F.pad(seen.logits.flatten()[:, None], (1, 0)), signals)

    def by_example(self, state: State, labels: int) -> State:
        """Give a state the batch as its first dimension, so that examples can be left out of it.

        Where many settings are scanned nobody is left out, and the state stays as it is.
        """
        if self.settings_shape:
            return state
        return tree_map(lambda x: x.unflatten(0, (-1, labels)), state)


class Recalibrated(WrappedRule):
    """A rule that reads, and answers with, recalibrated logits.

    Each layer has an affine map of its own, fitted to labelled examples after training. Of classes
    it is matrix scaling (Guo et al., 2017) of `calibration_inputs`. Of several labels, each label
    has a slope and a bias. A predicted value is mixed with the recalibrated value of the layer
    before, so that an exit's answer rests on all layers so far. A rule's `logits` are then the
    recalibrated ones. It has the methods of a rule that callers use.

    The state is the newest recalibrated logits, (batch, classes), and the rule's own state.

    Args:
        rule: of class probabilities, of several labels, or of values.
        rows: a row for each layer, of classes · (1 + classes) numbers, class by class: its bias,
            then a slope for the input of each class; of 3 for a value: its bias, the slope of
            this layer's value and that of the value before.
        classes: how many logits an answer has.

    Raises:
        UserError: the rows have another length.
    """

    def __init__(self, rule: "ExitRule | EachLabel", rows: list[list[float]], classes: int) -> None:
        super().__init__(rule)
        self.rule = rule
        self.classes = classes
        width = calibration_width(classes)
        if {len(row) for row in rows} != {classes * width}:
            raise UserError(
                f"exit_calibration has rows of {sorted({len(row) for row in rows})} numbers: "
                f"{classes * width} fit {classes} outputs; fit it again with sweep_exits.py "
                "--rules optimal_stopping --pick …"
            )
        maps = torch.tensor(rows).view(len(rows), classes, width)
        slopes = maps[..., 1:]  # (layers, classes, inputs)
        # Of two classes the inputs are d and −d: one slope for each class says the same.
        self.has_two_classes = classes == 2 and not isinstance(rule, EachLabel)
        if self.has_two_classes:
            of_own_input = slopes.diagonal(dim1=-2, dim2=-1)
            of_other_input = slopes.flip(-1).diagonal(dim1=-2, dim2=-1)
            slopes = of_own_input - of_other_input  # (layers, classes)
        self.biases = LayerRows(maps[..., 0])
        self.slopes = LayerRows(slopes)

    def start(self, size: Size, inputs: Tensors) -> State:
        """Make the state of `size.batch` examples at depth 0, as `ExitRule.start`."""
        answers = torch.zeros(size.batch, size.classes, device=size.device)
        return answers, self.rule.start(size, inputs)

    def decide(self, seen: LayerOutput, state: State, depth: Depth) -> Outcome:
        """Return the state one layer later, and who exits, as `ExitRule.decide`."""
        answers_before, rule_state = state
        answers = self.recalibrate(seen.logits, answers_before, depth)
        rule_state, exit_mask = self.rule.decide(seen._replace(logits=answers), rule_state, depth)
        return (answers, rule_state), exit_mask

    def recalibrate(self, logits: Tensor, answers_before: Tensor, depth: Depth) -> Tensor:
        """Map one layer's logits (batch, classes) to recalibrated ones.

        answers_before: recalibrated, of the layer before; depth: the layer's number, from 1.
        """
        biases = self.biases.at(depth, logits.device)
        slopes = self.slopes.at(depth, logits.device)
        if self.has_two_classes:
            return calibration_inputs(logits) * slopes + biases
        if self.classes == 1:
            inputs = torch.cat([logits, answers_before], -1)
        else:
            inputs = logits if isinstance(self.rule, EachLabel) else calibration_inputs(logits)
        return biases + (slopes * inputs[:, None]).sum(-1)

    def answer(self, seen: LayerOutput, state: State) -> Tensor:
        """Answer of an exit, (batch, classes): recalibrated, or what the rule makes of that."""
        answers, rule_state = state
        return self.rule.answer(seen._replace(logits=answers), rule_state)

    def by_window(self, seen: LayerOutput, state: State) -> Tensor:
        """Tell which of the exits here a confidence window decides: (batch,) bool."""
        answers, rule_state = state
        return self.rule.by_window(seen._replace(logits=answers), rule_state)


def calibration_inputs(logits: Tensor) -> Tensor:
    """Compute what a recalibration of classes reads of logits (…, classes): the same shape.

    A number added to all logits changes nothing. Of two classes it is half the log odds of each, so
    that the map is Platt's scaling; of more, the log-probabilities.
    """
    if logits.shape[-1] == 2:
        return logits - logits.mean(-1, keepdim=True)
    return logits.log_softmax(-1)


def calibration_width(classes: int) -> int:
    """Return how many numbers of a calibration belong to one class: a bias, and its slopes."""
    return 3 if classes == 1 else 1 + classes


class LayerRows:
    """Numbers of a rule that differ from layer to layer: a row of a tensor (layers, …) for each.

    A layer behind the last row has the last one.
    """

    def __init__(self, rows: Tensor) -> None:
        self.put(rows)

    def put(self, rows: Tensor) -> None:
        """Keep the rows, on their device."""
        self.rows = rows.clone()  # torch.export allows no two views of one tensor in a loop
        # At hand, so that an exit check after one layer selects nothing.
        self.of_layers = self.rows.unbind()

    def at(self, depth: Depth, device: torch.device) -> Tensor:
        """Return the row of layer `depth`, from 1: (…), or (batch, …) where depths differ."""
        if self.rows.device != device:  # once: no layer then waits for a copy, nor does a graph
            with torch.inference_mode(False), torch.no_grad():
                self.put(self.rows.to(device))
        if isinstance(depth, int):
            return self.of_layers[min(depth, len(self.of_layers)) - 1]
        return self.rows[(depth - 1).clamp(max=len(self.rows) - 1)]


AnyRule = ExitRule | EachLabel | Recalibrated  # what `EarlyExitConfig.exit_rule` makes


def per_class(setting: Number) -> Number:
    """Reshape a setting so that it goes with logits (batch, classes)."""
    return setting[..., None] if isinstance(setting, Tensor) and setting.ndim else setting


def exit_scores(logits: Tensor, multi_label: bool = False) -> Tensor:
    """Turn logits into the scores that rules compare.

    Args:
        logits: (..., classes).
        multi_label: whether an example may have several labels.

    Returns:
        The probabilities of the classes, or of each of several labels; for a single output the
        predicted value itself.
    """
    if multi_label:
        return logits.sigmoid()
    return logits.softmax(-1) if logits.shape[-1] > 1 else logits


def certainty(scores: Tensor, multi_label: bool) -> Tensor:
    """Probability of an answer, (...), from `exit_scores`; of several labels the least certain."""
    return scores.maximum(1 - scores).amin(-1) if multi_label else scores.amax(-1)


def normalised_entropy(probabilities: Tensor) -> Tensor:
    """Entropy of (..., classes) divided by log K, the number of classes: (...), in [0, 1]."""
    classes = probabilities.shape[-1]
    return torch.special.entr(probabilities).sum(-1) / math.log(max(classes, 2))


def replay(rule: AnyRule, recorded: Tensors) -> Iterator[tuple[LayerOutput, State, Tensor]]:
    """Step through recorded layers: yield each layer's output, the state after it, and who exits.

    Where a layer has no exit, they are those of the exit before, from which nobody exits any more;
    before the first exit the logits are 0.

    recorded: `all_logits` (layers, batch, classes); the rule's `signals`, (batch, layers) each; the
    rule's `inputs`, (batch,) each.
    """
    all_logits = recorded["all_logits"]
    layers, batch, classes = all_logits.shape
    size = Size(rule.settings_shape, batch, classes, layers, all_logits.device)
    state = rule.start(size, recorded_inputs(rule, recorded))
    nobody = torch.zeros(batch, dtype=torch.bool, device=all_logits.device)
    seen = LayerOutput(torch.zeros_like(all_logits[0]))
    for layer, logits in enumerate(all_logits):
        if rule.exits and layer + 1 not in rule.exits:
            yield seen, state, nobody
            continue
        signals = {name: recorded[name][:, layer] for name in rule.signals}
        seen = LayerOutput(logits, signals)
        state, exit_mask = rule.decide(seen, state, layer + 1)
        yield seen, state, exit_mask


def recorded_inputs(rule: AnyRule, recorded: Tensors) -> Tensors:
    """Select the rule's own inputs from a recording, where it has them."""
    return {name: recorded[name] for name in rule.inputs if name in recorded}


def scan(rule: AnyRule, recorded: Tensors) -> Tensor:
    """Find the exit layers of recorded examples, without running the model again.

    They are those of inference. An example for which the rule never fires exits at the last layer.

    Args:
        rule: a rule, as `EarlyExitConfig.exit_rule` makes it.
        recorded: `all_logits` (layers, batch, classes); for a halting criterion also
            `halt_probabilities` (batch, layers), and for `sample` its `draws` (batch,).

    Returns:
        Exit layers, counted from 1: (batch,) int64, or (settings, batch) for a rule whose settings
        have the shape (settings, 1).
    """
    exit_layer = torch.zeros((), dtype=torch.long)
    for layer, (_, _, exit_mask) in enumerate(replay(rule, recorded), start=1):
        exit_layer = torch.where(exit_mask & (exit_layer == 0), layer, exit_layer)
    return exit_layer.masked_fill(exit_layer == 0, layer)


def layer_answers(rule: AnyRule, recorded: Tensors) -> Tensor:
    """Return the answers of an exit at every layer: (layers, batch, classes)."""
    return torch.stack([rule.answer(seen, state) for seen, state, _ in replay(rule, recorded)])


def scan_answers(rule: AnyRule, recorded: Tensors) -> tuple[Tensor, Tensor]:
    """Find the answers and the exit layers of recorded examples; the arguments are those of `scan`.

    Returns:
        The logits at the exit layers, (batch, classes), and the exit layers, (batch,).
    """
    exit_layer = scan(rule, recorded)
    rows = torch.arange(exit_layer.shape[-1], device=exit_layer.device)
    return layer_answers(rule, recorded)[exit_layer - 1, rows], exit_layer


def exits_by_window(rule: AnyRule, recorded: Tensors, exit_layer: Tensor) -> Tensor:
    """Tell which of the exits at these layers, (batch,), a window decided: (batch,) bool."""
    by_layer = torch.stack(
        [rule.by_window(seen, state) for seen, state, _ in replay(rule, recorded)]
    )
    return by_layer[exit_layer - 1, torch.arange(len(exit_layer))]
