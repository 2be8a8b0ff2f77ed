"""What is exported of a model: its steps under `torch.while_loop`, which becomes ONNX's Loop.

The steps are the model's own (`modeling.depth`; for tokens `Halting.advance`), so that a new exit
rule or criterion exports by itself.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ..act.encoder import Halting, interpolate
from ..act.heads import AlbertActForSequenceClassification
from ..act.model import AlbertActModelOutput
from ..albert import attention_mask_of
from ..depth import EarlyExitModel, ExampleState
from ..keys import Key
from ..loading.weights import Tensors
from ..rules import ExitRule


class ExportLoop(nn.Module, ABC):
    """A model that runs until nothing is left to run, with its rule's numbers as inputs.

    outputs: their names, in order.
    own: which of the model's own numbers of an example are inputs, by name.
    """

    outputs: tuple[str, ...]

    def __init__(self, model: nn.Module, own: Sequence[str] = ()) -> None:
        super().__init__()
        self.model, self.own = model.eval(), own

    @property
    def keys(self) -> dict[str, Key]:
        """The exit keys that are numbers."""
        keys = self.model.config.table.exit_keys
        return {name: key for name, key in keys.items() if key.kind in (int, float)}

    def settings(self) -> Tensors:
        """The values of `keys` now, of shape ()."""
        values = self.model.config.exit_keys()
        return {name: torch.tensor(key.kind(values[name])) for name, key in self.keys.items()}

    @abstractmethod
    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor,
        own: Tensors,
        settings: Tensors,
    ) -> tuple[torch.Tensor, ...]:
        """What `outputs` names.

        ids, mask and segments are (batch, length) int64; what `own` names is (batch,) float32.
        """


class Carried(NamedTuple):
    """What one layer hands to the next, for the whole batch: those who have left run along."""

    layer: torch.Tensor  # () int64, passes made so far
    active: torch.Tensor  # (batch,) bool, who has not left
    exit_layer: torch.Tensor  # (batch,) int64; of the active, the newest layer
    answers: torch.Tensor  # (batch, num_labels), of that layer
    hidden: torch.Tensor  # (batch, length, hidden)
    state: ExampleState
    kept: Tensors  # layer_logits (layers, batch, num_labels), if asked for; 0 of layers to come


class DepthLoop(ExportLoop):
    """Layer by layer until the last example has left.

    Layers in a row that share their weights make one loop, the next ones another, which is not
    entered where all have left.

    layer_logits: is every layer's answer an output, too?
    """

    outputs = ("logits", "exit_layer", "layers_run")
    model: EarlyExitModel

    def __init__(
        self, model: EarlyExitModel, own: Sequence[str] = (), layer_logits: bool = False
    ) -> None:
        super().__init__(model, own)
        if layer_logits:
            self.outputs = (*self.outputs, "layer_logits")

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor,
        own: Tensors,
        settings: Tensors,
    ) -> tuple[torch.Tensor, ...]:
        """Each example's answer (batch, num_labels), exit layer (batch,), and passes made ().

        If asked for, every layer's answer, (layers, batch, num_labels): 0 of layers not run.
        """
        model, batch, config = self.model, input_ids.shape[0], self.model.config
        every = torch.zeros(config.num_hidden_layers, batch, config.num_labels)
        rule = model.config.exit_rule(**self.within_depth(settings))
        carried = Carried(
            torch.zeros((), dtype=torch.long),
            torch.ones(batch, dtype=torch.bool),
            torch.zeros(batch, dtype=torch.long),
            torch.zeros(batch, config.num_labels),
            model.embed(input_ids, token_type_ids),
            model.start(rule, batch, own),
            {"layer_logits": every} if "layer_logits" in self.outputs else {},
        )
        mask, end = attention_mask_of(attention_mask), 0
        layers = Counter(map(model.param_index, range(config.num_hidden_layers)))
        for index, count in layers.items():
            end += count
            carried = self.run_layers(index, end, rule, mask, carried)
        return carried.answers, carried.exit_layer, carried.layer, *carried.kept.values()

    def within_depth(self, settings: Tensors) -> Tensors:
        """A window of more layers than there are fires as little as one of all of them does before
        the last layer, where all leave."""
        layers = self.model.config.num_hidden_layers
        return {
            name: value.clamp(1, layers) if self.keys[name].counts_layers else value
            for name, value in settings.items()
        }

    def run_layers(
        self, index: int, end: int, rule: ExitRule, mask: torch.Tensor, carried: Carried
    ) -> Carried:
        """The layers of this index, up to number `end`, as long as an example is active."""

        def goes_on(layer: torch.Tensor, active: torch.Tensor, *_: Any) -> torch.Tensor:
            return active.any() & (layer < end)

        def one_layer(*carried: Any) -> tuple:
            new = self.one_layer(index, rule, mask, Carried(*carried))
            # A loop wants tensors of their own, laid out as the first ones were.
            return pytree.tree_map(lambda x: x.clone(memory_format=torch.contiguous_format), new)

        return Carried(*torch.while_loop(goes_on, one_layer, tuple(carried)))

    def one_layer(self, index: int, rule: ExitRule, mask: torch.Tensor, carried: Carried) -> tuple:
        """A layer pass and its exit check; the active have this layer's answer."""
        layer, active, exit_layer, answers, hidden, state, kept = carried
        hidden = self.model.layer_pass(hidden, mask, index)
        check = self.model.check_exit(rule, hidden, mask, index, state)
        newest = torch.arange(self.model.config.num_hidden_layers)[:, None, None] == layer
        kept = {name: torch.where(newest, check.answer, every) for name, every in kept.items()}
        layer = layer + 1
        exit_layer = torch.where(active, layer, exit_layer)
        answers = torch.where(active[:, None], check.answer, answers)
        return layer, active & ~check.exit_mask, exit_layer, answers, hidden, check.state, kept


class TokenLoop(ExportLoop):
    """Update by update until the last token has halted; every pass computes all tokens."""

    outputs = ("logits", "updates", "layers_run")
    model: AlbertActForSequenceClassification

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor,
        own: Tensors,
        settings: Tensors,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Answers (batch, num_labels), each token's updates (batch, length), and passes made ()."""
        albert, depth = self.model.albert, self.model.config.num_hidden_layers
        layer_pass, mask = albert.encoder.albert_layer, attention_mask_of(attention_mask)
        embedded = albert.embeddings(input_ids, token_type_ids)
        hidden = albert.encoder.embedding_hidden_mapping_in(embedded)

        def goes_on(layer: torch.Tensor, hidden: torch.Tensor, halting: Halting) -> torch.Tensor:
            return halting.running.any() & (layer < depth)

        def update(layer: torch.Tensor, hidden: torch.Tensor, halting: Halting) -> tuple:
            new = layer_pass(hidden, mask)
            weight, halting = halting.advance(layer_pass.act(new), settings["act_epsilon"])
            return layer + 1, interpolate(new, hidden, weight), halting

        none = torch.zeros((), dtype=torch.long)
        start = (none, hidden, albert.encoder.start(hidden, mask))
        layers_run, hidden, halting = torch.while_loop(goes_on, update, start)
        pooled = albert.pooler(hidden[:, 0]).tanh()
        logits = self.model.logits_of(AlbertActModelOutput(hidden, pooled))
        return logits, halting.updates.long(), layers_run
