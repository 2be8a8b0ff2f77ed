"""Depth: what an early-exit model offers, and the loops over its layers.

A model gives the steps (`embed`, `layer_pass`, `check_exit`), which know nothing of loops. The
loops are here: `layer_states` through all layers, `run_depths` with an exit check after each.
`depth_batching.py` has one for examples at different depths.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from .albert import AlbertPreTrainedModel

State = dict[str, torch.Tensor]  # what examples carry from layer to layer, batch first


class Check(NamedTuple):
    """What the exit check after a layer says."""

    answer: torch.Tensor  # (batch, num_labels) float32
    done: torch.Tensor  # (batch,) bool: who exits here
    state: State


class EarlyExitModel(AlbertPreTrainedModel, ABC):
    """A model whose examples may stop after any layer, each for itself."""

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
        """The rule as the configuration has it now; raises UserError for a value out of range."""

    @abstractmethod
    def start(self, batch: int, draws: torch.Tensor | None = None, rule: Any = None) -> State:
        """What examples carry at depth 0: `depth` (batch,), 0, and what the rule remembers.

        draws: (batch,) the examples' own uniform numbers, where exits are sampled; drawn here by
        default. rule: the one in force, `exit_rule()` by default.
        """

    @abstractmethod
    def check_exit(
        self, rule: Any, hidden: torch.Tensor, mask: torch.Tensor | None, weights: int, state: State
    ) -> Check:
        """The exit after the layer that gave `hidden`; at the last layer all examples are done."""


class Step(NamedTuple):
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
    draws: torch.Tensor | None = None,
    leave: bool = True,
) -> Iterator[Step]:
    """Layer by layer with its exit check, until every example has left; who is done leaves.

    hidden (batch, length, hidden) are the states at depth 0. With `leave` off nobody leaves before
    the last layer, and there is no wait for the device.
    """
    rule = model.exit_rule()
    state = model.start(len(hidden), draws, rule)
    rows = torch.arange(len(hidden), device=hidden.device)
    for layer in range(model.config.num_hidden_layers):
        weights = model.weights_of(layer)
        hidden = model.layer_pass(hidden, mask, weights)
        check = model.check_exit(rule, hidden, mask, weights, state)
        done = check.done.tolist() if leave else []  # the step's one wait for the device
        yield Step(layer + 1, rows, check, [i for i, leaves in enumerate(done) if leaves])
        state = check.state
        if done and all(done):
            return
        if any(done):
            staying = [i for i, leaves in enumerate(done) if not leaves]
            keep = torch.tensor(staying, device=hidden.device)
            hidden, rows = hidden[keep], rows[keep]
            mask = None if mask is None else mask[keep]
            state = {name: tensor[keep] for name, tensor in state.items()}
