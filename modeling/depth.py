"""Depth: what an early-exit model offers, and the loops over its layers.

A model gives the steps (`embed`, `layer_pass`, `layer_output`), which know nothing of loops. The
loops are here: `layer_states` through all layers, `iter_layers` with an exit check after each.
`depth_batching.py` has a loop for examples at different depths.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from transformers import AutoModelForSequenceClassification
from transformers.modeling_outputs import SequenceClassifierOutput

from .albert import AlbertPreTrainedModel, attention_mask_of
from .configuration import EarlyExitConfig
from .rules import ExitRule, LayerOutput, Size, State

Inputs = Mapping[str, Tensor]  # of `EarlyExitModel.own_inputs`, (batch,) each


class ExampleState(NamedTuple):
    """State that an example carries from layer to layer."""

    depth: Tensor  # layers that ran, (batch,) int64
    rule: State
    model: State


class ExitDecision(NamedTuple):
    """Answer of the exit check after a layer."""

    answer: Tensor  # of an exit here, (batch, num_labels) float32
    exit_mask: Tensor  # who exits here, (batch,) bool
    state: ExampleState
    seen: LayerOutput  # what the rule read


@dataclass
class EarlyExitOutput(SequenceClassifierOutput):
    """Output of a model for a batch.

    Attributes:
        loss: scalar; train(): of all exits, eval(): of the answers.
        logits: (batch, num_labels), of the exit taken (train(): of the last layer).
        exit_layer: (batch,) int64, 1-based.
        all_logits: (layers, batch, num_labels), when training or asked for. ELBERT: every layer's
            own; ponder model: after an example's exit those of its exit.
    """

    exit_layer: Tensor | None = None
    all_logits: Tensor | None = None


class EarlyExitModel(AlbertPreTrainedModel, ABC):
    """A model whose examples may exit after any layer, each for itself.

    own_inputs: names of the numbers that an example may bring beside its text.
    """

    config: EarlyExitConfig
    own_inputs: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "config_class" in vars(cls):
            AutoModelForSequenceClassification.register(cls.config_class, cls, exist_ok=True)

    @abstractmethod
    def param_index(self, layer: int) -> int:
        """Index of the weights of layer `layer` (0-based) and its exit; non-decreasing in layer."""

    @abstractmethod
    def embed(self, *text: Tensor | None) -> Tensor:
        """Inputs of AlbertEmbeddings, in its order -> (batch, length, hidden), at depth 0."""

    @abstractmethod
    def layer_pass(self, hidden: Tensor, mask: Tensor | None, index: int) -> Tensor:
        """The next layer's states (batch, length, hidden) from these, with the weights `index`.

        mask: (batch, 1, 1, length) bool, true for real tokens, or None without padding.
        """

    @abstractmethod
    def layer_output(
        self, hidden: Tensor, mask: Tensor | None, index: int, state: ExampleState
    ) -> tuple[LayerOutput, State]:
        """Read the layer that gave `hidden`: its answer, and the model's own part of the state."""

    def start(self, rule: ExitRule, batch: int, inputs: Inputs) -> ExampleState:
        """Initial state of `batch` examples; inputs: those of `own_inputs` that they bring."""
        config, device = self.config, self.device
        shape = batch, config.num_labels, config.num_hidden_layers
        remembered = rule.start(Size(rule.settings_shape, *shape, device), inputs)
        depth = torch.zeros(batch, dtype=torch.long, device=device)
        return ExampleState(depth, remembered, model=())

    def check_exit(
        self, rule: ExitRule, hidden: Tensor, mask: Tensor | None, index: int, state: ExampleState
    ) -> ExitDecision:
        """The exit after the layer that gave `hidden`; at the last layer all examples exit."""
        seen, own = self.layer_output(hidden, mask, index, state)
        remembered, exit_mask = rule.step(seen, state.rule)
        depth = state.depth + 1
        exit_mask = exit_mask | (depth == self.config.num_hidden_layers)
        answer = rule.answer(seen, remembered)
        return ExitDecision(answer, exit_mask, ExampleState(depth, remembered, own), seen)

    def exit_early(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **inputs: Tensor,
    ) -> EarlyExitOutput:
        """A batch's answers and exit layers; text as HF ALBERT's, inputs of `own_inputs`."""
        hidden = self.embed(input_ids, token_type_ids, position_ids, inputs_embeds)
        mask = attention_mask_of(attention_mask)
        logits = torch.empty(len(hidden), self.config.num_labels, device=hidden.device)
        exit_layer = torch.empty(len(hidden), dtype=torch.long, device=hidden.device)
        layers = iter_layers(self, hidden, mask, inputs)
        for layer, (rows, decision, exiting) in enumerate(layers, start=1):
            if exiting:
                logits[rows[exiting]] = decision.answer[exiting]
                exit_layer[rows[exiting]] = layer
        return EarlyExitOutput(None, logits, exit_layer=exit_layer)


def layer_states(model: EarlyExitModel, hidden: Tensor, mask: Tensor | None) -> Iterator[Tensor]:
    """The states (batch, length, hidden) after each layer, from those at depth 0."""
    for layer in range(model.config.num_hidden_layers):
        hidden = model.layer_pass(hidden, mask, model.param_index(layer))
        yield hidden


def iter_layers(
    model: EarlyExitModel,
    hidden: Tensor,
    mask: Tensor | None,
    inputs: Inputs,
    allow_exit: bool = True,
) -> Iterator[tuple[Tensor, ExitDecision, list[int]]]:
    """Run layer by layer with its exit check, until all examples have exited.

    Yields of each layer the running examples' numbers in the batch, (running,) int64, their
    decision, and the positions among them of those who exit here.

    Args:
        hidden: (batch, length, hidden), the states at depth 0.
        allow_exit: if off, run all layers for every example, and do not wait for the device.
    """
    rule = model.config.exit_rule()
    state = model.start(rule, len(hidden), inputs)
    rows = torch.arange(len(hidden), device=hidden.device)
    for layer in range(model.config.num_hidden_layers):
        index = model.param_index(layer)
        hidden = model.layer_pass(hidden, mask, index)
        decision = model.check_exit(rule, hidden, mask, index, state)
        state = decision.state
        exit_here = decision.exit_mask.tolist() if allow_exit else []  # the one wait for the device
        yield rows, decision, [i for i, exits in enumerate(exit_here) if exits]
        if exit_here and all(exit_here):
            return
        if any(exit_here):
            keep = torch.tensor([i for i, exits in enumerate(exit_here) if not exits])
            keep = keep.to(hidden.device)
            hidden, rows = hidden[keep], rows[keep]
            mask = None if mask is None else mask[keep]
            state = tree_map(itemgetter(keep), state)
