"""Adaptive Depth ALBERT: every token decides how often the shared layer updates it.

After each update a token gives a halting probability. It stops when these add up to 1 − ε, or at
`num_hidden_layers` updates. A token that has stopped keeps its state, which others still read.

Sources: adaptive computation time, Graves (2016); "How Many Layers and Why? An Analysis of the
Model Depth in Transformers", Simoulin and Crabbé (2021), whose state-dict names these are.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AutoModel
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple

from ..albert import AlbertEmbeddings, AlbertPreTrainedModel, attention_mask_of
from ..configuration import AlbertActConfig
from ..loading.weights import ACT_NAMES
from .encoder import AlbertActEncoder


class AlbertActPreTrainedModel(AlbertPreTrainedModel):
    """Loading, saving and initialisation, as HF ALBERT's."""

    config_class = AlbertActConfig
    config: AlbertActConfig
    accepts_loss_kwargs = False  # of HF's Trainer; `forward` hands what it does not know on

    @classmethod
    def from_pretrained(
        cls, *args: Any, key_mapping: dict[str, str] | None = None, **kwargs: Any
    ) -> "AlbertActPreTrainedModel":
        """HF's `from_pretrained`, of an ACT model, or of an ALBERT: its halting head is new."""
        names = ACT_NAMES | (key_mapping or {})
        return super().from_pretrained(*args, key_mapping=names, **kwargs)

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """HF's `save_pretrained`, under the names here, whatever names the weights came under."""
        super().save_pretrained(*args, **{"save_original_format": False, **kwargs})


@dataclass
class AlbertActModelOutput(ModelOutput):
    """What the encoder answers.

    last_hidden_state: (batch, length, hidden).
    pooler_output: (batch, hidden), of the first token; None without a pooler.
    updates: (batch, 1, 1, length), how often each token was updated; 0 on padding.
    ponder_cost: (batch,), Σ over real tokens of updates + remainder (`Halting`).
    hidden_states: if asked for, the states (batch, length, hidden) before the first update and
        after each until all tokens had halted: at most num_hidden_layers + 1 of them.
    attentions: if asked for, each of these updates' attention weights, (batch, heads, length,
        length): what every token read of each.
    """

    last_hidden_state: torch.Tensor | None = None
    pooler_output: torch.Tensor | None = None
    updates: torch.Tensor | None = None
    ponder_cost: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None


class AlbertActModel(AlbertActPreTrainedModel):
    """The encoder: embeddings, the shared layer, and a pooler unless `add_pooling_layer` is off."""

    def __init__(self, config: AlbertActConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        self.embeddings = AlbertEmbeddings(config)
        self.encoder = AlbertActEncoder(config)
        self.pooler = None
        if add_pooling_layer:
            self.pooler = nn.Linear(config.hidden_size, config.hidden_size)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
    ) -> AlbertActModelOutput:
        """Encode a batch, as HF ALBERT does; `return_dict=False` answers with a tuple.

        Args:
            input_ids, attention_mask, token_type_ids, position_ids: (batch, length) int64.
            inputs_embeds: (batch, length, embedding), in place of input_ids.
            output_hidden_states: return the states of every depth; None is the configuration's.
            output_attentions: return the attention weights of every pass; likewise.
        """
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        if output_attentions is None:
            output_attentions = self.config.output_attentions
        trail, attentions = [] if output_hidden_states else None, [] if output_attentions else None
        mask = attention_mask_of(attention_mask)
        embedded = self.embeddings(input_ids, token_type_ids, position_ids, inputs_embeds)
        hidden, halting = self.encoder(embedded, mask, trail, attentions)
        return AlbertActModelOutput(
            last_hidden_state=hidden,
            pooler_output=None if self.pooler is None else self.pooler(hidden[:, 0]).tanh(),
            updates=halting.updates[:, None, None],
            ponder_cost=(halting.updates + halting.remainder).sum(1),
            hidden_states=None if trail is None else tuple(trail),
            attentions=None if attentions is None else tuple(attentions),
        )


AutoModel.register(AlbertActConfig, AlbertActModel, exist_ok=True)
