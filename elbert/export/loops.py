"""What is exported of a model: its steps under `torch.while_loop`, which becomes ONNX's Loop.

The steps are the model's own (`elbert.depth`; for tokens `Halting.advance`), so that a new exit
rule or criterion exports by itself.
"""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from elbert_base.keys import Key

from ..act.encoder import Halting, interpolate, share_of_new
from ..act.heads import AlbertActForSequenceClassification
from ..albert import AlbertPreTrainedModel, attention_mask_of
from ..depth import EarlyExitModel, LayerWeights
from ..loading.weights import Tensors
from ..rules import AnyRule


class ExportLoop(nn.Module):
    """A model that runs until nothing is left to run, with its rule's numbers as inputs.

    outputs: names, in order, of what `forward` gives. Its inputs are ids, mask and segments,
    (batch, length) int64; what `own` names, (batch,) float32 each; and `settings`, () each.
    own: which of the model's own numbers of an example are inputs, by name.
    layer_logits: make every layer's answer an output as well.
    """

    outputs: tuple[str, ...]

    model: Any  # of one mode, by subclass

    def __init__(
        self, model: AlbertPreTrainedModel, own: Sequence[str] = (), layer_logits: bool = False
    ) -> None:
        super().__init__()
        self.model = model.eval()
        self.own = own
        if layer_logits:
            self.outputs = (*self.outputs, "layer_logits")

    @property
    def keys(self) -> dict[str, Key]:
        """The exit keys that are numbers."""
        keys = self.model.config.table.exit_keys
        return {name: key for name, key in keys.items() if key.kind in (int, float)}

    def settings(self) -> Tensors:
        """Return the values of `keys` now, of shape ()."""
        values = self.model.config.exit_keys()
        return {name: torch.tensor(key.kind(values[name])) for name, key in self.keys.items()}


class DepthLoop(ExportLoop):
    """Layer by layer until the last example has exited.

    Layers in a row that share their weights make one loop, the next ones another, which is not
    entered where all have exited.
    """

    outputs = ("logits", "exit_layer", "layers_run")
    model: EarlyExitModel

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor,
        own: Tensors,
        settings: Tensors,
    ) -> tuple[Tensor, ...]:
        """Return each example's answer (batch, num_labels), exit layer (batch,), and passes ().

        If asked for, every layer's answer, (layers, batch, num_labels): 0 of layers not run.
        """
        model = self.model
        config = model.config
        batch = input_ids.shape[0]
        depth = config.num_hidden_layers
        labels = config.label_count
        # A window of more layers than there are fires as little as one of all of them does before
        # the last layer, where all exit.
        settings = {
            name: value.clamp(1, depth) if self.keys[name].counts_layers else value
            for name, value in settings.items()
        }
        rule = config.exit_rule(**settings)
        mask = attention_mask_of(attention_mask)
        end = 0
        carried: tuple[Any, ...] = (
            torch.zeros((), dtype=torch.long),  # layers run
            torch.ones(batch, dtype=torch.bool),  # which examples have not exited
            torch.zeros(batch, dtype=torch.long),  # exit layers; of the active, the newest layer
            torch.zeros(batch, labels),  # answers, of that layer
            model.embed(input_ids, token_type_ids),
            model.start(rule, batch, own),
        )
        if "layer_logits" in self.outputs:
            carried = (*carried, torch.zeros(depth, batch, labels))
        for weights, count in Counter(map(model.layer_weights, range(depth))).items():
            end += count

            def goes_on(layer: Tensor, active: Tensor, *_: Any, end: int = end) -> Any:
                return active.any() & (layer < end)

            one_layer = partial(self.one_layer, weights, rule, mask)
            carried = torch.while_loop(goes_on, one_layer, carried)
        layers_run, _, exit_layer, answers, _, _, *layer_logits = carried
        return answers, exit_layer, layers_run, *layer_logits

    def one_layer(
        self, weights: LayerWeights, rule: AnyRule, mask: Tensor | None, *carried: Any
    ) -> tuple[Any, ...]:
        """Run a layer pass and its exit check, for the whole batch, those that exited included."""
        layer, active, exit_layer, answers, hidden, state, *layer_logits = carried
        hidden = self.model.layer_pass(hidden, mask, weights)
        check = self.model.check_exit(rule, hidden, mask, weights, state)
        newest = torch.arange(self.model.config.num_hidden_layers)[:, None, None] == layer
        layer_logits = [torch.where(newest, check.answer, logits) for logits in layer_logits]
        layer = layer + 1
        exit_layer = torch.where(active, layer, exit_layer)
        answers = torch.where(active[:, None], check.answer, answers)
        active = active & ~check.exit_mask
        new = (layer, active, exit_layer, answers, hidden, check.state, *layer_logits)
        # A loop wants tensors of their own, laid out as the first ones were.
        return pytree.tree_map(lambda x: x.clone(memory_format=torch.contiguous_format), new)


class TokenLoop(ExportLoop):
    """Update by update until the last token has halted; every pass computes all tokens."""

    outputs = ("logits", "updates", "layers_run")
    model: AlbertActForSequenceClassification

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor,
        own: Tensors,
        settings: Tensors,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return answers (batch, num_labels), tokens' updates (batch, length), and passes ()."""
        albert = self.model.albert
        config = self.model.config
        layer_pass = albert.encoder.albert_layer
        depth = config.num_hidden_layers
        graves = config.act_update == "graves"
        mask = attention_mask_of(attention_mask)
        embedded = albert.embeddings(input_ids, token_type_ids)
        hidden = albert.encoder.embedding_hidden_mapping_in(embedded)

        def goes_on(layer: Tensor, hidden: Tensor, halting: Halting, *mean: Tensor) -> Tensor:
            return halting.running.any() & (layer < depth)

        def update(layer: Tensor, hidden: Tensor, halting: Halting, *mean: Tensor) -> tuple:
            new = layer_pass(hidden, mask)
            was_running = halting.running
            layer = layer + 1
            last = graves & (layer == depth)
            epsilon = settings["act_epsilon"]
            weight, halting = halting.advance(layer_pass.act(new), epsilon, last)
            share = share_of_new(config.act_update, weight, was_running)
            hidden = interpolate(new, hidden, share)
            return layer, hidden, halting, *(x + weight[..., None] * hidden for x in mean)

        no_layers = torch.zeros((), dtype=torch.long)
        start = (no_layers, hidden, albert.encoder.start(hidden, mask))
        if graves:
            start = (*start, torch.zeros_like(hidden))
        layers_run, hidden, halting, *mean = torch.while_loop(goes_on, update, start)
        logits = self.model.classifier(albert.pool(mean[0] if graves else hidden, mask))
        return logits, halting.updates.long(), layers_run
