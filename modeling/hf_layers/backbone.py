"""An encoder of transformers in the place of ALBERT's, and a fine-tuned classifier's own head."""

import inspect
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling

from ..encoder import Pooler, check_text_length
from ..errors import UserError
from .check import check_encoder, check_head
from .configs import encoder_config
from .families import steps_of


class HfBackbone(nn.Module):
    """An encoder of transformers, with the methods of `AlbertBackbone`.

    Attributes:
        model: the encoder, without a pooler of its own.
        encoder: holds the exits, under the names that they have beside ALBERT's layers.
        pooler: one that exits share, or None.
        layer_dtype: number type of the layers' products, where it is not the weights'.
    """

    layer_dtype: torch.dtype | None = None

    def __init__(self, config: PreTrainedConfig, model: PreTrainedModel, has_pooler: bool) -> None:
        super().__init__()
        elbert: Any = config
        self.num_layers = elbert.num_hidden_layers
        self.max_length = elbert.max_position_embeddings
        self.model = model
        self.encoder = nn.Module()
        self.pooler = Pooler(elbert, elbert.hidden_size) if has_pooler else None
        self.steps = steps_of(model.config.model_type)

    def check(self) -> None:
        """Raise UserError, with the reason, unless the encoder can run one layer at a time.

        A kept head has to answer from the last layer's states alone.
        """
        check_encoder(self.model, self.steps)
        head: Any = self.encoder.kept_head
        if isinstance(head, HfHead):
            check_head(head, self.model)

    def group_of(self, layer: int) -> int:
        """Return the index of the weights that layer `layer` (0-based) has: each has its own."""
        return layer

    def embed(
        self,
        input_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """Embed a batch of texts, (batch, length, hidden); arguments as `AlbertEmbeddings`'.

        An encoder without segments takes no notice of `token_type_ids`.

        Raises:
            UserError: a text is too long, or `position_ids` are given, which layers may read, too.
        """
        words: Any = input_ids if inputs_embeds is None else inputs_embeds
        text: dict[str, Tensor] = {"input_ids" if inputs_embeds is None else "inputs_embeds": words}
        check_text_length(words.shape[1], self.max_length)
        if position_ids is not None:
            raise UserError("position_ids: transformers' layers number the tokens; leave them out")
        if token_type_ids is not None and "token_type_ids" in signature_of(self.model):
            text["token_type_ids"] = token_type_ids
        return self.steps.embed(self.model, **text)

    def layer_extras(self, hidden: Tensor, mask: Tensor | None) -> Any:
        """Compute what all layers read beside the states; see `EarlyExitModel.layer_extras`."""
        return self.steps.extras(self.model, hidden, None if mask is None else mask[:, 0, 0].long())

    def cast_layers(self, dtype: torch.dtype) -> None:
        """Change the number type of the layers' products; states and sums stay as they are."""
        self.layer_dtype = None if dtype == torch.float32 else dtype
        for module in self.steps.layers(self.model).modules():
            if isinstance(module, nn.Linear):
                module.to(dtype)

    def check_records(self) -> None:
        """Raise UserError for an encoder that does not let transformers record its layers."""
        if not getattr(self.model, "_can_record_outputs", None):
            raise UserError(
                "output_hidden_states, output_attentions: transformers records none of the layers "
                f"of model_type {self.model.config.model_type!r}; leave them out"
            )

    def run_layer(self, layer: int, hidden: Tensor, extras: Any) -> Tensor:
        """Run layer `layer` (0-based) on states (batch, length, hidden)."""
        precision: Any = nullcontext()
        if self.layer_dtype is not None:
            precision = torch.autocast(hidden.device.type, self.layer_dtype)
        with precision:
            states = self.steps.run_layer(self.model, layer, hidden, extras)
        return states.to(hidden.dtype)

    def run_all(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        """Run all layers from the states at depth 0, and what stands behind the last."""
        extras = self.layer_extras(hidden, mask)
        for layer in range(self.num_layers):
            hidden = self.run_layer(layer, hidden, extras)
        return self.finish(hidden)

    def finish(self, hidden: Tensor) -> Tensor:
        """Turn a layer's states into what an exit reads: the encoder's final norm, if any."""
        return self.steps.finish(self.model, hidden)


class HfHead(nn.Module):
    """The head of transformers' classifier, run by its own code: the exit of the last layer."""

    def __init__(self, classifier: PreTrainedModel) -> None:
        super().__init__()
        self.classifier = classifier

    @property
    def label_map(self) -> str:
        """The path of the linear map with an output for each label: the last one."""
        linear_maps = [
            name for name, module in self.named_modules() if isinstance(module, nn.Linear)
        ]
        return f"kept_head.{linear_maps[-1]}"

    def forward(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        """Classify finished states (batch, length, hidden): logits (batch, num_labels), float32.

        mask: (batch, 1, 1, length) bool, or None without padding.
        """
        attention_mask = None if mask is None else mask[:, 0, 0].long()
        out = self.classifier(inputs_embeds=hidden, attention_mask=attention_mask)
        return out.logits.float()


class LastStates(nn.Module):
    """What stands in a classifier in its encoder's place: it returns the states that it is given.

    pooler: the encoder's, which is a part of the head.
    """

    def __init__(self, pooler: nn.Module | None) -> None:
        super().__init__()
        self.pooler = pooler

    def forward(
        self, *arguments: Any, inputs_embeds: Tensor, **options: Any
    ) -> BaseModelOutputWithPooling:
        """Return finished states (batch, length, hidden), `inputs_embeds`, as an encoder does."""
        pooled = None if self.pooler is None else self.pooler(inputs_embeds)
        return BaseModelOutputWithPooling(last_hidden_state=inputs_embeds, pooler_output=pooled)


class NoPooler(nn.Module):
    """What stands in an encoder in its pooler's place: some call it without asking for one."""

    def forward(self, hidden: Tensor) -> None:
        """Return nothing for states (batch, length, hidden)."""


def hf_backbone(config: PreTrainedConfig, has_pooler: bool) -> tuple[HfBackbone, HfHead | None]:
    """Make an encoder by the configuration of an ELBERT, and the classifier's head if it is kept.

    has_pooler: whether exits share a pooler.
    """
    elbert: Any = config
    classifier = AutoModelForSequenceClassification.from_config(encoder_config(config))
    model: Any = classifier.base_model
    pooler = getattr(model, "pooler", None)
    if pooler is not None:
        model.pooler = NoPooler()
    setattr(classifier, classifier.base_model_prefix, LastStates(pooler))
    head = HfHead(classifier) if elbert.keep_head else None
    return HfBackbone(config, model, has_pooler), head


def signature_of(model: PreTrainedModel) -> Any:
    """Return the arguments of an encoder, by name."""
    return inspect.signature(model.forward).parameters
