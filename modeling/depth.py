"""Depth: what an early-exit model offers, and the loops over its layers.

A model gives the steps (`embed`, `start`, `layer_pass`, `check_exit`), which know nothing of loops.
The loops are here: `layer_states` through all layers, `run_depths` with an exit check after each.
`depth_batching.py` has one for examples at different depths.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn

from .albert import AlbertPreTrainedModel, attention_mask_of

State = Any  # what examples carry on: a NamedTuple of tensors, batch first, or of further ones
Inputs = Mapping[str, torch.Tensor]  # of `EarlyExitModel.own_inputs`, (batch,) each


class Check(NamedTuple):
    """What the exit check after a layer says."""

    answer: torch.Tensor  # (batch, num_labels) float32
    done: torch.Tensor  # (batch,) bool: who exits here
    state: State


class EarlyExitModel(AlbertPreTrainedModel, ABC):
    """A model whose examples may stop after any layer, each for itself.

    own_inputs: the numbers that an example may bring beside its text, by name, each with the lowest
    and the highest allowed.
    """

    own_inputs: ClassVar[Mapping[str, tuple[float, float]]] = {}

    @abstractmethod
    def layer_groups(self) -> Sequence[nn.Module]:
        """The modules that make a layer pass."""

    @abstractmethod
    def exit_heads(self) -> Sequence[nn.Module]:
        """The modules that make an exit."""

    @abstractmethod
    def weights_of(self, layer: int) -> int:
        """Which weights layer `layer` (0-based) and its exit use, as a number; never falls with it.

        Examples at layers of the same number may share a pass and a check.
        """

    @abstractmethod
    def embed(
        self, input_ids: torch.Tensor, token_type_ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(batch, length) ids -> (batch, length, hidden), the states at depth 0."""

    @abstractmethod
    def layer_pass(
        self, hidden: torch.Tensor, mask: torch.Tensor | None, weights: int
    ) -> torch.Tensor:
        """The next layer's states (batch, length, hidden) from these, with weights so numbered.

        mask: (batch, 1, 1, length) bool, true for real tokens, or None without padding.
        """

    @abstractmethod
    def exit_rule(self) -> Any:
        """The rule as the configuration has it now: a dataclass whose fields are the exit keys.

        Its numbers may be tensors, where a file's caller gives them. Raises UserError for a value
        out of range.
        """

    @abstractmethod
    def start(self, rule: Any, batch: int, inputs: Inputs) -> State:
        """What so many examples carry at depth 0 under the rule.

        inputs: of `own_inputs` those that the examples bring; the model makes up the others.
        """

    @abstractmethod
    def check_exit(
        self, rule: Any, hidden: torch.Tensor, mask: torch.Tensor | None, weights: int, state: State
    ) -> Check:
        """The exit after the layer that gave `hidden`; at the last layer all examples are done."""

    def exits(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        **inputs: torch.Tensor,
    ) -> "Exits":
        """A batch's answers and exit layers; ids, mask and segments (batch, length)."""
        hidden = self.embed(input_ids, token_type_ids)
        return early_exit(self, hidden, attention_mask_of(attention_mask), inputs)


class Exits(NamedTuple):
    """Where examples left, and with what."""

    answer: torch.Tensor  # (batch, num_labels)
    exit_layer: torch.Tensor  # (batch,) int64, 1-based


class LayerStep(NamedTuple):
    """One layer of `run_depths`."""

    layer: int  # 1-based
    rows: torch.Tensor  # (running,) int64: which of the batch the check is of
    check: Check
    leaving: list[int]  # positions in `rows` of those who exit here


def layer_states(
    model: EarlyExitModel, hidden: torch.Tensor, mask: torch.Tensor | None
) -> Iterator[torch.Tensor]:
    """The states (batch, length, hidden) after each layer, from those at depth 0."""
    for layer in range(model.config.num_hidden_layers):
        hidden = model.layer_pass(hidden, mask, model.weights_of(layer))
        yield hidden


def run_depths(
    model: EarlyExitModel,
    hidden: torch.Tensor,
    mask: torch.Tensor | None,
    inputs: Inputs,
    leave: bool = True,
) -> Iterator[LayerStep]:
    """Layer by layer with its exit check, until every example has left; who is done leaves.

    hidden (batch, length, hidden) are the states at depth 0. With `leave` off every example runs
    all layers, `leaving` is always empty, and there is no wait for the device.
    """
    rule = model.exit_rule()
    state = model.start(rule, len(hidden), inputs)
    rows = torch.arange(len(hidden), device=hidden.device)
    for layer in range(model.config.num_hidden_layers):
        weights = model.weights_of(layer)
        hidden = model.layer_pass(hidden, mask, weights)
        check = model.check_exit(rule, hidden, mask, weights, state)
        done = check.done.tolist() if leave else []  # the step's one wait for the device
        yield LayerStep(layer + 1, rows, check, [i for i, leaves in enumerate(done) if leaves])
        state = check.state
        if done and all(done):
            return
        if any(done):
            staying = [i for i, leaves in enumerate(done) if not leaves]
            keep = torch.tensor(staying, device=hidden.device)
            hidden, rows = hidden[keep], rows[keep]
            mask = None if mask is None else mask[keep]
            state = rows_of(state, keep)


def early_exit(
    model: EarlyExitModel,
    hidden: torch.Tensor,
    mask: torch.Tensor | None,
    inputs: Inputs,
    trail: list[LayerStep] | None = None,
) -> Exits:
    """`run_depths` to its end; its steps are added to a `trail` that is wanted."""
    batch, device = len(hidden), hidden.device
    answers = torch.empty(batch, model.config.num_labels, device=device)
    exit_layer = torch.empty(batch, dtype=torch.long, device=device)
    for step in run_depths(model, hidden, mask, inputs):
        if trail is not None:
            trail.append(step)
        if step.leaving:
            rows = step.rows[step.leaving]
            answers[rows] = step.check.answer[step.leaving]
            exit_layer[rows] = step.layer
    return Exits(answers, exit_layer)


def rows_of(state: State, rows: torch.Tensor) -> State:
    """The state of some of the examples."""
    return on_each(lambda tensor: tensor[rows], state)


def on_each(function: Callable[..., torch.Tensor], *states: State) -> State:
    """The state whose every tensor is `function` of the tensors in its place in `states`."""
    first = states[0]
    if isinstance(first, torch.Tensor):
        return function(*states)
    return type(first)(*(on_each(function, *parts) for parts in zip(*states, strict=True)))


def first_exits(fires: Iterable[torch.Tensor]) -> torch.Tensor:
    """The layers (1-based, int64) at which examples fire first; the last, where they never do.

    fires: of each layer, bool of any shape, which is the outcome's.
    """
    exit_layer = None
    for layer, now in enumerate(fires, start=1):
        if exit_layer is None:
            exit_layer = torch.zeros(now.shape, dtype=torch.long, device=now.device)
        exit_layer[now & (exit_layer == 0)] = layer
    return exit_layer.masked_fill(exit_layer == 0, layer)
