"""What is exported of a model: its steps under `torch.while_loop`, which becomes ONNX's Loop.

The steps are the model's own (`modeling.depth`; for tokens `modeling.act.encoder.update_tokens`),
so that a new exit rule or criterion is exported without further work.
"""

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..act.encoder import Halting, update_tokens
from ..act.heads import AlbertActForSequenceClassification
from ..depth import EarlyExitModel, ExampleState, Extras, LayerWeights
from ..encoder import AlbertPreTrainedModel, attention_mask_of
from ..keys import Key
from ..loading.weights import TensorDict
from ..rules import AnyRule


class ExportLoop(nn.Module):
    """A model that runs until nothing is left to run, with its rule's numbers as inputs.

    Args:
        model: of one mode, by subclass; it is put in eval mode.
        own_inputs: names of the model's own numbers of an example that are inputs of the file.
        layer_logits: whether every layer's answer is an output as well.

    Attributes:
        outputs: the names, in order, of what `forward` returns.
    """

    outputs: tuple[str, ...]
    model: Any

    def __init__(
        self,
        model: AlbertPreTrainedModel,
        own_inputs: Sequence[str] = (),
        layer_logits: bool = False,
    ) -> None:
        super().__init__()
        self.model = model.eval()
        self.own_inputs = own_inputs
        if layer_logits:
            self.outputs = (*self.outputs, "layer_logits")

    @property
    def keys(self) -> dict[str, Key]:
        """The exit keys that are numbers, and so inputs of the file."""
        keys = self.model.config.table.exit_keys
        return {name: key for name, key in keys.items() if key.kind in (int, float)}

    def settings(self) -> TensorDict:
        """Return the configured values of `keys`, of shape ()."""
        values = self.model.config.exit_keys()
        return {name: torch.tensor(key.kind(values[name])) for name, key in self.keys.items()}


class DepthState(NamedTuple):
    """What `DepthLoop` carries from layer to layer, for a whole batch."""

    layer: Tensor  # layers run, () int64
    active: Tensor  # which examples have not exited, (batch,) bool
    exit_layer: Tensor  # (batch,) int64; of an active example, the newest layer
    answers: Tensor  # at that layer, (batch, num_labels)
    hidden: Tensor  # (batch, length, hidden)
    example_state: ExampleState
    layer_logits: tuple[Tensor, ...]  # (layers, batch, num_labels) if asked for, else empty


class DepthLoop(ExportLoop):
    """An early-exit model, run layer by layer until the last example has exited.

    Layers in a row that share their weights make one loop, and the next ones another, which is not
    entered where all examples have exited.
    """

    outputs = ("logits", "exit_layer", "layers_run")
    model: EarlyExitModel

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor,
        own_inputs: TensorDict,
        settings: TensorDict,
    ) -> tuple[Tensor, ...]:
        """Answer a batch.

        Args:
            input_ids, attention_mask, token_type_ids: (batch, length) int64.
            own_inputs: (batch,) float32 each, by name.
            settings: of shape () each, by exit key.

        Returns:
            Each example's answer (batch, num_labels) and exit layer (batch,), and the number of
            layers that ran, (). If asked for, every layer's answer, (layers, batch, num_labels): 0
            for a layer that did not run, or has no exit.
        """
        model = self.model
        batch = input_ids.shape[0]
        depth = model.config.num_hidden_layers
        labels = model.config.label_count
        rule = model.config.exit_rule(**self.limit_counts(settings, depth))
        mask = attention_mask_of(attention_mask)
        has_layer_logits = "layer_logits" in self.outputs
        embedded = model.embed(input_ids, token_type_ids)
        extras = contiguous(model.layer_extras(embedded, mask))
        state = DepthState(
            layer=torch.zeros((), dtype=torch.long),
            active=torch.ones(batch, dtype=torch.bool),
            exit_layer=torch.zeros(batch, dtype=torch.long),
            answers=torch.zeros(batch, labels),
            hidden=embedded,
            # A loop carries tensors alone, so the depth, else a number, is one for each example.
            example_state=model.start(rule, batch, own_inputs)._replace(
                depth=torch.zeros(batch, dtype=torch.long)
            ),
            layer_logits=(torch.zeros(depth, batch, labels),) if has_layer_logits else (),
        )
        # A body that chose its weights by the layer's number would hold all of them as inputs. So
        # each set of weights has a loop, which goes on to the layer where the next set begins.
        end = 0
        for weights, layers in groupby(map(model.layer_weights, range(depth))):
            end += len(list(layers))
            run_layer = partial(self.run_layer, weights, rule, mask, extras)
            (state,) = torch.while_loop(partial(is_unfinished, end), run_layer, (state,))
        return state.answers, state.exit_layer, state.layer, *state.layer_logits

    def limit_counts(self, settings: TensorDict, depth: int) -> TensorDict:
        """Limit the settings that count layers to the model's depth, whatever a caller gives.

        A window of more layers than there are fires no earlier than one of all of them: both only
        at the last layer, where all examples exit anyway.
        """
        limited = dict(settings)
        for name, value in settings.items():
            if self.keys[name].counts_layers:
                limited[name] = value.clamp(1, depth)
        return limited

    def run_layer(
        self,
        weights: LayerWeights,
        rule: AnyRule,
        mask: Tensor | None,
        extras: Extras,
        state: DepthState,
    ) -> tuple[DepthState]:
        """Run a layer pass and its exit check for the whole batch, also for examples that exited.

        mask: (batch, 1, 1, length) bool. extras: of `EarlyExitModel.layer_extras`.
        """
        model = self.model
        # ONNX's Loop carries tensors of one shape, so nobody is left out of the batch. Who exited
        # is computed on, and `torch.where` keeps the answer that was given.
        hidden = model.layer_pass(state.hidden, extras, weights)  # (batch, length, hidden)
        decision = model.check_exit(rule, hidden, mask, weights, state.example_state)
        # Within the loop the layer's number is a tensor, so its logits are put in place by a
        # comparison with it.
        layer_numbers = torch.arange(model.config.num_hidden_layers)[:, None, None]
        is_newest = layer_numbers == state.layer  # (layers, 1, 1)
        layer_logits = tuple(
            torch.where(is_newest, decision.answer, logits) for logits in state.layer_logits
        )
        layer = state.layer + 1
        exit_layer = torch.where(state.active, layer, state.exit_layer)
        answers = torch.where(state.active[:, None], decision.answer, state.answers)
        new_state = DepthState(
            layer=layer,
            active=state.active & ~decision.exit_mask,
            exit_layer=exit_layer,
            answers=answers,
            hidden=hidden,
            example_state=decision.state,
            layer_logits=layer_logits,
        )
        return (clone_tensors(new_state),)


def is_unfinished(end: int, state: DepthState) -> Tensor:
    """Tell whether a loop over the layers up to `end` has something left to run, () bool."""
    return state.active.any() & (state.layer < end)


def contiguous(extras: Extras) -> Extras:
    """Lay out all tensors anew: the exporter cannot translate strides of what is expanded."""
    return pytree.tree_map_only(Tensor, contiguous_clone, extras)


def clone_tensors(state: DepthState) -> DepthState:
    """Copy all tensors: a loop's body must return new ones, laid out as the first ones were."""
    return pytree.tree_map(contiguous_clone, state)


def contiguous_clone(tensor: Tensor) -> Tensor:
    """Copy a tensor, without gaps."""
    return tensor.clone(memory_format=torch.contiguous_format)


class TokenState(NamedTuple):
    """What `TokenLoop` carries from update to update, for a whole batch."""

    layer: Tensor  # updates so far, () int64
    hidden: Tensor  # (batch, length, hidden)
    halting: Halting  # (batch, length)
    mean: tuple[Tensor, ...]  # of the states, (batch, length, hidden), for graves; else empty


class TokenLoop(ExportLoop):
    """An Adaptive Depth model, run update by update until the last token has halted.

    Every pass computes all tokens.
    """

    outputs = ("logits", "updates", "layers_run")
    model: AlbertActForSequenceClassification

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor,
        own_inputs: TensorDict,
        settings: TensorDict,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Answer a batch; arguments as `DepthLoop.forward`'s.

        Returns:
            Answers (batch, num_labels), the tokens' updates (batch, length), and the number of
            passes, ().
        """
        albert = self.model.albert
        encoder = albert.encoder
        config = self.model.config
        depth = config.num_hidden_layers
        is_graves = config.act_update == "graves"
        mask = attention_mask_of(attention_mask)
        embedded = albert.embeddings(input_ids, token_type_ids)
        hidden = encoder.embedding_hidden_mapping_in(embedded)

        def has_running_tokens(state: TokenState) -> Tensor:
            return state.halting.running.any() & (state.layer < depth)

        def run_layer(state: TokenState) -> tuple[TokenState]:
            layer = state.layer + 1
            # Without gathering, whose shapes would change from pass to pass: halted tokens are
            # computed and weigh nothing, with the same result.
            update = update_tokens(
                layer=encoder.albert_layer,
                act_update=config.act_update,
                states=state.hidden,
                mask=mask,
                halting=state.halting,
                epsilon=settings["act_epsilon"],
                last=is_graves & (layer == depth),
            )
            weight = update.weight[..., None]
            mean = tuple(x + weight * update.states for x in state.mean)
            return (TokenState(layer, update.states, update.halting, mean),)

        state = TokenState(
            layer=torch.zeros((), dtype=torch.long),
            hidden=hidden,
            halting=encoder.start(hidden, mask),
            mean=(torch.zeros_like(hidden),) if is_graves else (),
        )
        (state,) = torch.while_loop(has_running_tokens, run_layer, (state,))
        final_states = state.mean[0] if is_graves else state.hidden
        logits = self.model.classifier(albert.pool(final_states, mask))
        return logits, state.halting.updates.long(), state.layer
