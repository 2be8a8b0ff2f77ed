"""The layer of Adaptive Depth that updates every token, with its halting head."""

import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from modeling.albert import QUERY_KEY_VALUE, AlbertLayer, SelfAttention
from modeling.configuration import AlbertActConfig
from modeling.cpu_packing import PackedLayer


class AlbertAct(nn.Module):
    """The halting head."""

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, 1)

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        """New states (..., hidden) -> halting probabilities (...), at least float32.

        Probabilities are added up to a threshold, which half precision is too coarse for.
        """
        score = self.dense(state).squeeze(-1)
        return score.to(torch.promote_types(score.dtype, torch.float)).sigmoid()


class AlbertActLayer(GradientCheckpointingLayer, AlbertLayer):
    """The shared layer under the published names, with the halting head."""

    attention_class = SelfAttention

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__(config)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.act = AlbertAct(config)

    @property
    def attention_norm(self) -> nn.LayerNorm:
        return self.LayerNorm

    def pieces(self) -> "AlbertActLayer | PackedLayer":
        """What runs `project` and `finish`: packed weights inside `packed_weights`."""
        return self if torch.compiler.is_compiling() else self.packed or self

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """New states of all tokens, (batch, length, hidden), before they are mixed with the old."""
        pieces, flat = self.pieces(), hidden.flatten(0, 1)
        projected = pieces.project(flat, QUERY_KEY_VALUE).view(*hidden.shape[:2], -1)
        context = self.attention.attend(*self.attention.split_heads(projected), mask)
        return pieces.finish(flat, context.transpose(1, 2).reshape(flat.shape)).view_as(hidden)

    def project(self, flat: torch.Tensor, parts: slice) -> torch.Tensor:
        """(tokens, hidden) -> (tokens, parts·hidden), as `SelfAttention.project`."""
        return self.attention.project(flat, parts)

    def finish(self, flat: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        """The pass after attention: states and contexts (tokens, hidden) -> new states."""
        (context,) = self.attention.split_heads(context[None])
        attended = self.LayerNorm(flat + self.attention.output(context)[0])
        return self.full_layer_layer_norm(self.dropout(self.feed_forward(attended)) + attended)
