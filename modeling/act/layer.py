"""The layer of Adaptive Depth that updates every token, with its halting head."""

import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from modeling.albert import AlbertLayer, SelfAttention
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

    def feed_forward(self, attended: torch.Tensor) -> torch.Tensor:
        return self.dropout(super().feed_forward(attended))

    def project(self, flat: torch.Tensor, parts: slice) -> torch.Tensor:
        """(tokens, hidden) -> (tokens, parts·hidden), as `SelfAttention.project`."""
        return self.attention.project(flat, parts)

    def finish(self, flat: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        """The pass after attention: states and contexts (tokens, hidden) -> new states."""
        (context,) = self.attention.split_heads(context[None])
        return self.complete(flat, self.attention.output(context)[0])
