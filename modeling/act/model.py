"""Adaptive Depth ALBERT: every token decides how often the shared layer updates it.

After each update a token gives a halting probability. It stops when these add up to 1 − ε, or at
`num_hidden_layers` updates. A token that has stopped keeps its state, which others still read.

Sources: adaptive computation time, Graves (2016); "How Many Layers and Why? An Analysis of the
Model Depth in Transformers", Simoulin and Crabbé (2021), whose state-dict names these are.
"""

from typing import Any

import torch
from torch import nn
from transformers import AutoModel
from transformers.utils.generic import can_return_tuple

from ..albert import AlbertEmbeddings, AlbertPreTrainedModel, attention_mask_of
from ..configuration import AlbertActConfig
from .encoder import AlbertActEncoder
from .outputs import AlbertActModelOutput


class AlbertActPreTrainedModel(AlbertPreTrainedModel):
    """Loading, saving and initialisation, as HF ALBERT's."""

    config_class = AlbertActConfig
    config: AlbertActConfig
    # Published checkpoints hold the position numbers 0, 1, 2, …, too.
    _keys_to_ignore_on_load_unexpected = (r"embeddings\.position_ids$",)


def drop_position_ids(
    module: nn.Module, state_dict: dict[str, torch.Tensor], prefix: str, *_: Any
) -> None:
    """Lets `load_state_dict` take a published checkpoint as it is."""
    state_dict.pop(f"{prefix}embeddings.position_ids", None)


class AlbertActModel(AlbertActPreTrainedModel):
    """The encoder: embeddings, the shared layer, and a pooler unless `add_pooling_layer` is off."""

    def __init__(self, config: AlbertActConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        self.embeddings = AlbertEmbeddings(config)
        self.encoder = AlbertActEncoder(config)
        self.pooler = None
        if add_pooling_layer:
            self.pooler = nn.Linear(config.hidden_size, config.hidden_size)
        self.register_load_state_dict_pre_hook(drop_position_ids)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        output_hidden_states: bool | None = None,
    ) -> AlbertActModelOutput:
        """Encode a batch, as HF ALBERT does; `return_dict=False` answers with a tuple.

        Args:
            input_ids, attention_mask, token_type_ids: (batch, length) int64.
            inputs_embeds: (batch, length, embedding), in place of input_ids.
            output_hidden_states: return the states of every depth; None is the configuration's.
        """
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        trail = [] if output_hidden_states else None
        embedded = self.embeddings(input_ids, token_type_ids, inputs_embeds)
        hidden, halting = self.encoder(embedded, attention_mask_of(attention_mask), trail)
        return AlbertActModelOutput(
            last_hidden_state=hidden,
            pooler_output=None if self.pooler is None else self.pooler(hidden[:, 0]).tanh(),
            updates=halting.updates[:, None, None],
            ponder_cost=(halting.updates + halting.remainder).sum(1),
            hidden_states=None if trail is None else tuple(trail),
        )


AutoModel.register(AlbertActConfig, AlbertActModel, exist_ok=True)
