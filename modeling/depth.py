"""Depth: what an early-exit model offers, and the loops over its layers.

A model gives the steps (`embed`, `layer_extras`, `layer_pass`, `layer_output`), which know nothing
of loops. The loops are here: `layer_states` runs all layers, `iter_layers` checks after each which
examples exit. `depth_batching.py` has a loop for examples at different depths.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from transformers import AutoModelForSequenceClassification
from transformers.modeling_outputs import SequenceClassifierOutput

from .configuration import EarlyExitConfig
from .encoder import AlbertPreTrainedModel, attention_mask_of, refuse_tracing
from .rules import AnyRule, Depth, LayerOutput, Size, State

Inputs = Mapping[str, Tensor]  # of `AdaptiveConfig.own_inputs`, (batch,) each
Extras = Any  # what layers read beside the states, as `EarlyExitModel.layer_extras` makes it


class LayerWeights(NamedTuple):
    """Which weights a layer has: several layers may share them."""

    group: int  # index of its layer group
    exit: int  # index of its exit classifier, or NO_EXIT


NO_EXIT = -1  # of a layer after which nothing is checked


class ExampleState(NamedTuple):
    """What examples carry from layer to layer, batch first."""

    depth: Depth  # layers that ran
    rule: State  # the exit rule's
    model: State  # the model's own; () for most


class ExitDecision(NamedTuple):
    """What the exit check after a layer found."""

    answer: Tensor  # of an exit here, (batch, num_labels) float32
    exit_mask: Tensor  # who exits here, (batch,) bool
    state: ExampleState  # after the layer
    seen: LayerOutput  # what the rule read


class LayerStep(NamedTuple):
    """One layer of `iter_layers`, for the examples that are still running."""

    rows: Tensor  # their numbers in the batch, (running,) int64
    decision: ExitDecision  # (running, …)
    exiting: list[int]  # which of them exit here: positions from 0 to running − 1


class GraphRunner(Protocol):
    """What runs the model of a `graphed_copy` by captured graphs (`graphs.DepthGraphs`)."""

    def embed(
        self,
        input_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor | None:
        """Embed as `EarlyExitModel.embed`; None where the model has to run as it is."""

    def iter_layers(
        self, hidden: Tensor, mask: Tensor | None, inputs: Inputs, allow_exit: bool
    ) -> Iterator[LayerStep] | None:
        """Run as the function of that name; None where the model has to run as it is."""

    def forget(self) -> None:
        """Forget all that was captured."""


@dataclass
class EarlyExitOutput(SequenceClassifierOutput):
    """Output of an early-exit model for a batch.

    Attributes:
        loss: scalar; in train() of all exits, in eval() of the answers.
        logits: (batch, num_labels), the logits of each example's exit; in train() of the last
            layer.
        exit_layer: (batch,) int64, counted from 1.
        all_logits: (layers, batch, num_labels), in train(), or with `output_all_exits`. An ELBERT
            gives the logits of every layer, 0 where it has no exit; a ponder model those of an
            example's exit for all layers behind it.
    """

    exit_layer: Tensor | None = None
    all_logits: Tensor | None = None


class EarlyExitModel(AlbertPreTrainedModel, ABC):
    """A model whose examples may exit after any layer, each by itself; a base of two modes."""

    config: EarlyExitConfig  # pyrefly: ignore[bad-override-mutable-attribute]  # HF's is any
    newest_rule: tuple[dict[str, Any], AnyRule] | None = None  # and the values it was made of
    graphs: GraphRunner | None = None  # of a `graphed_copy`

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "config_class" in vars(cls):
            AutoModelForSequenceClassification.register(cls.config_class, cls, exist_ok=True)

    @abstractmethod
    def layer_weights(self, layer: int) -> LayerWeights:
        """Tell which weights layer `layer` (0-based) has.

        The indices never fall with depth, but for NO_EXIT.
        """

    @abstractmethod
    def embed(self, *text: Tensor | None) -> Tensor:
        """Make the states at depth 0, (batch, length, hidden), from AlbertEmbeddings' inputs."""

    def first_states(self, *text: Tensor | None) -> Tensor:
        """Make the states at depth 0 as `embed` does; a `graphed_copy` replays a graph.

        Of a graphed copy, the states hold until `iter_layers` has run from them.
        """
        hidden = None if self.graphs is None else self.graphs.embed(*text)
        return self.embed(*text) if hidden is None else hidden

    def layer_extras(self, hidden: Tensor, mask: Tensor | None) -> Extras:
        """Compute what all layers of a batch read beside the states: here the mask alone.

        It follows from the mask and the shape of the states, (batch, length, hidden), so that it is
        computed anew where examples have left the batch.

        mask: (batch, 1, 1, length) bool, true for real tokens, or None without padding.
        """
        return mask

    @abstractmethod
    def layer_pass(self, hidden: Tensor, extras: Extras, weights: LayerWeights) -> Tensor:
        """Run the next layer on states (batch, length, hidden), and return its states.

        extras: of `layer_extras`, for the same examples.
        """

    @abstractmethod
    def layer_output(
        self, hidden: Tensor, mask: Tensor | None, weights: LayerWeights, state: ExampleState
    ) -> tuple[LayerOutput, State]:
        """Read the layer that gave `hidden`; return what it says, and the model's own new state."""

    def exit_rule(self) -> AnyRule:
        """Return the rule of the configured exit keys, made anew where one of them has changed.

        Raises UserError for a key that is out of range.
        """
        config = self.config
        values = {
            **config.exit_keys(),
            "label_count": config.label_count,
            "is_multi_label": config.is_multi_label,
            "num_hidden_layers": config.num_hidden_layers,
            "exits": config.exits,
        }
        if self.newest_rule is None or self.newest_rule[0] != values:
            with torch.inference_mode(False):  # its tensors serve later calls with gradients, too
                rule = config.exit_rule()
            # A copy: a list that the caller changes in place is a change, too.
            self.newest_rule = copy.deepcopy(values), rule
        return self.newest_rule[1]

    def start(self, rule: AnyRule, batch: int, inputs: Inputs) -> ExampleState:
        """Make the state of `batch` examples at depth 0; inputs: of `config.own_inputs`.

        Its depth is a number. Loops whose examples have different depths count in a tensor.
        """
        size = Size(
            settings=rule.settings_shape,
            batch=batch,
            classes=self.config.label_count,
            layers=self.config.num_hidden_layers,
            device=self.device,
        )
        return ExampleState(depth=0, rule=rule.start(size, inputs), model=())

    def check_exit(
        self,
        rule: AnyRule,
        hidden: Tensor,
        mask: Tensor | None,
        weights: LayerWeights,
        state: ExampleState,
    ) -> ExitDecision:
        """Decide who exits after the layer that gave `hidden`; at the last layer everyone does.

        After a layer without an exit nobody does: its answers are 0, and its rule sees nothing.

        Args:
            rule: as `config.exit_rule` makes it.
            hidden: (batch, length, hidden), the layer's states.
            mask: (batch, 1, 1, length) bool, or None without padding.
            state: after the layer before.
        """
        depth = state.depth + 1
        if weights.exit == NO_EXIT:
            nobody = torch.zeros(len(hidden), dtype=torch.bool, device=hidden.device)
            no_answer = torch.zeros(len(hidden), self.config.label_count, device=hidden.device)
            return ExitDecision(
                answer=no_answer,
                exit_mask=nobody,
                state=state._replace(depth=depth),
                seen=LayerOutput(no_answer),
            )
        seen, model_state = self.layer_output(hidden, mask, weights, state)
        rule_state, exit_mask = rule.decide(seen, state.rule, depth)
        # A bool where all examples are at one depth; in slots and in exported files a tensor,
        # (batch,), whose values Python must not ask for.
        is_last = depth == self.config.num_hidden_layers
        if is_last is not False:
            exit_mask = exit_mask | is_last
        return ExitDecision(
            answer=rule.answer(seen, rule_state),
            exit_mask=exit_mask,
            state=ExampleState(depth, rule_state, model_state),
            seen=seen,
        )

    def exit_early(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **inputs: Tensor,
    ) -> EarlyExitOutput:
        """Answer a batch, each example at its own exit.

        Args:
            input_ids, attention_mask, token_type_ids, position_ids: (batch, length) int64, as for
                HF's ALBERT; `inputs_embeds`, (batch, length, embedding), in place of `input_ids`.
            inputs: further inputs of the model, (batch,) each, by the names in `config.own_inputs`.
        """
        hidden = self.first_states(input_ids, token_type_ids, position_ids, inputs_embeds)
        mask = attention_mask_of(attention_mask)
        batch = len(hidden)
        exit_layer = torch.zeros(batch, dtype=torch.long, device=hidden.device)
        logits = None
        for layer, step in enumerate(iter_layers(self, hidden, mask, inputs), start=1):
            if len(step.exiting) == batch:  # all of them here: nothing to gather
                answer = step.decision.answer.clone()
                return EarlyExitOutput(None, answer, exit_layer=exit_layer + layer)
            if step.exiting:
                # Made here, since the number type of an answer is known only with the first.
                if logits is None:
                    logits = step.decision.answer.new_empty(batch, self.config.label_count)
                rows = step.rows[step.exiting]
                logits[rows] = step.decision.answer[step.exiting]
                exit_layer[rows] = layer
        return EarlyExitOutput(None, logits, exit_layer=exit_layer)


def layer_states(model: EarlyExitModel, hidden: Tensor, mask: Tensor | None) -> Iterator[Tensor]:
    """Run all layers from the states at depth 0; yield the states after each, of the same shape."""
    extras = model.layer_extras(hidden, mask)
    for layer in range(model.config.num_hidden_layers):
        hidden = model.layer_pass(hidden, extras, model.layer_weights(layer))
        yield hidden


def iter_layers(
    model: EarlyExitModel,
    hidden: Tensor,
    mask: Tensor | None,
    inputs: Inputs,
    allow_exit: bool = True,
) -> Iterator[LayerStep]:
    """Run layer by layer, with an exit check after each, until all examples have exited.

    An example that has exited is left out of the layers behind: the batch shrinks. The tensors of a
    step hold until the next one: of a `graphed_copy`, every layer writes to the same ones.

    Args:
        hidden: (batch, length, hidden), the states at depth 0.
        mask: (batch, 1, 1, length) bool, or None without padding.
        allow_exit: if off, run all layers for every example, and do not wait for the device.

    Raises UserError where the loop is traced or exported.
    """
    if allow_exit:
        refuse_tracing()
    if model.graphs is not None:
        graphed = model.graphs.iter_layers(hidden, mask, inputs, allow_exit)
        if graphed is not None:
            yield from graphed
            return
    rule = model.exit_rule()
    state = model.start(rule, len(hidden), inputs)
    rows = torch.arange(len(hidden), device=hidden.device)  # (running,): who is where in `hidden`
    extras = model.layer_extras(hidden, mask)
    for layer in range(model.config.num_hidden_layers):
        weights = model.layer_weights(layer)
        hidden = model.layer_pass(hidden, extras, weights)  # (running, length, hidden)
        decision = model.check_exit(rule, hidden, mask, weights, state)
        state = decision.state
        if not allow_exit or weights.exit == NO_EXIT:
            yield LayerStep(rows, decision, exiting=[])
            continue
        exits_here = decision.exit_mask.tolist()  # the one wait for the device
        exiting = [position for position, exits in enumerate(exits_here) if exits]
        yield LayerStep(rows, decision, exiting)
        if len(exiting) == len(exits_here):
            return
        # Gathering copies the states of all who stay, so it is left out where nobody exits. The
        # length is kept: a narrower mask would need the lengths of those who stay from the device.
        if exiting:
            staying = [position for position, exits in enumerate(exits_here) if not exits]
            keep = torch.tensor(staying, device=hidden.device)
            hidden = hidden[keep]  # (staying, length, hidden)
            rows = rows[keep]
            mask = None if mask is None else mask[keep]
            extras = model.layer_extras(hidden, mask)
            # Whatever a rule or a model remembers has the batch first. The depth, of all alike, is
            # a number and stays.
            state = tree_map_only(Tensor, itemgetter(keep), state)
