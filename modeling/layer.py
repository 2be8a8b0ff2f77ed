"""The layer pass: what ALBERT applies N times, with one set of weights.

`AlbertLayer.forward` is the pass, and `SelfAttention.forward` its first half. For inference on a
CPU, `cpu_packing.PackedLayer` takes the place of a layer: the same formulas with packed weights.
`attn_implementation="eager"` runs attention in the published order of operations, which is slower.
"""

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AlbertConfig
from transformers.activations import ACT2FN

# Which of the projections: `parts` of SelfAttention.project.
QUERY = slice(0, 1)
KEY_VALUE = slice(1, 3)
QUERY_KEY_VALUE = slice(0, 3)


def in_type_of(linear: nn.Module, states: Tensor) -> Tensor:
    """Return states in the number type that a linear map takes: that of its weights.

    A map of torch's quantize_dynamic, whose `weight` is a method, takes float32.
    """
    weight = linear.weight
    return states.to(weight.dtype if isinstance(weight, Tensor) else torch.float32)


class AttentionHeads(nn.Module):
    """What attention does between its linear maps: each head's queries meet its keys and values."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.config = config
        self.num_heads = config.num_attention_heads
        self.head_size = config.hidden_size // config.num_attention_heads
        self.attention_dropout = config.attention_probs_dropout_prob
        self.softmax = nn.Softmax(-1)  # a module, whose outputs HF's `capture_outputs` can read

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """Attend from each query: (batch, heads, queries, head_size), as `query`.

        key, value (batch, heads, length, head_size); mask (batch, 1, 1, length) bool, or what is
        added to the scores, (batch or 1, heads, length, length), or None.
        """
        dropout = self.attention_dropout if self.training else 0.0
        # Within an exported loop, torch's exporter takes any mask of fused attention for bools.
        adds_bias = mask is not None and mask.dtype != torch.bool
        is_plain = adds_bias and torch.compiler.is_exporting()
        if self.config._attn_implementation == "eager" or is_plain:
            scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
            if mask is not None and mask.dtype == torch.bool:
                scores = scores.masked_fill(~mask, -math.inf)
            elif mask is not None:
                scores = scores + mask
            return F.dropout(self.softmax(scores).to(value.dtype), dropout) @ value
        if mask is not None and mask.dtype != torch.bool:
            mask = mask.to(query.dtype)
        return F.scaled_dot_product_attention(query, key, value, mask, dropout)

    def split_heads(self, projected: Tensor) -> Tensor:
        """(batch, length, parts·hidden) -> (parts, batch, heads, length, head_size)."""
        parts = projected.unflatten(-1, (-1, self.num_heads, self.head_size))
        return parts.permute(2, 0, 3, 1, 4)


class SelfAttention(AttentionHeads):
    """Multi-head self-attention up to its residual connection.

    Adaptive depth, which keeps keys and values, calls its parts for some tokens.
    """

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__(config)
        hidden = config.hidden_size
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.dense = nn.Linear(hidden, hidden)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        """Attend over the text: (batch, length, hidden) -> the same shape."""
        states = in_type_of(self.query, hidden)
        parts = (self.split_heads(linear(states)) for linear in self.projections)
        # Each (batch, heads, length, head_size); [0] in place of squeeze copies in an ONNX file.
        query, key, value = (part.squeeze(0) for part in parts)
        context = self.attend(query, key, value, mask)  # (batch, heads, length, head_size)
        return self.output(context)  # (batch, length, hidden)

    def output(self, context: Tensor) -> Tensor:
        """The heads' contexts projected and dropped out: (batch, queries, hidden)."""
        # Summed head by head; an adapter's map, as PEFT's, is more than its weight.
        if self.config._attn_implementation == "eager" and isinstance(self.dense, nn.Linear):
            weight = self.dense.weight.t().view(*context.shape[1::2], -1)
            summed = torch.einsum("bnfd,ndh->bfh", context, weight)
            return self.dropout(summed + self.dense.bias)
        return self.dropout(self.dense(context.transpose(1, 2).flatten(2)))

    @property
    def projections(self) -> tuple[nn.Linear, nn.Linear, nn.Linear]:
        return self.query, self.key, self.value

    def project(self, hidden: Tensor, parts: slice) -> Tensor:
        """(..., hidden) -> (..., parts·hidden): the projections asked for, side by side."""
        states = in_type_of(self.query, hidden)
        return torch.cat([linear(states) for linear in self.projections[parts]], -1)


class AlbertAttention(SelfAttention):
    """Self-attention beside the layer norm of its residual connection, as HF names the two."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__(config)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)


class AlbertLayer(nn.Module):
    """One layer pass: attention and feed-forward, each with residual connection and norm."""

    attention_class: type[SelfAttention] = AlbertAttention

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.attention = self.attention_class(config)
        self.ffn = nn.Linear(config.hidden_size, config.intermediate_size)
        self.ffn_output = nn.Linear(config.intermediate_size, config.hidden_size)
        self.full_layer_layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        # PyTorch's one-op tanh GELU is the same formula as HF's `gelu_new`.
        tanh = config.hidden_act == "gelu_new"
        self.activation = ACT2FN["gelu_pytorch_tanh" if tanh else config.hidden_act]

    def forward(
        self, hidden: Tensor, mask: Tensor | None = None, score_bias: Tensor | None = None
    ) -> Tensor:
        """Run the pass on states (batch, length, hidden), and return its states.

        Args:
            mask: (batch, 1, 1, length) bool, or None without padding.
            score_bias: added to the attention scores, (batch or 1, heads, length, length), also at
                padding: it takes the mask's place. None for encoders without relative positions.
        """
        attention_mask = mask if score_bias is None else score_bias
        return self.feed_forward_block(hidden, self.attention(hidden, attention_mask))

    def feed_forward_block(self, states: Tensor, attn_out: Tensor) -> Tensor:
        """The pass after attention: states and what they read, (..., hidden) -> new states."""
        attended = self.attention_norm(states + attn_out)  # (..., hidden)
        ffn_out = self.feed_forward(attended)  # (..., hidden)
        return self.full_layer_layer_norm(ffn_out + attended)  # (..., hidden)

    def feed_forward(self, attended: Tensor) -> Tensor:
        """The feed-forward part before its residual connection, (..., hidden)."""
        inner = self.activation(self.ffn(in_type_of(self.ffn, attended)))  # (…, intermediate)
        return self.ffn_output(inner)  # (…, hidden)

    @property
    def linear_maps(self) -> tuple[nn.Module, ...]:
        """Nearly all work of a pass."""
        return *self.attention.projections, self.attention.dense, self.ffn, self.ffn_output

    @property
    def halting_head(self) -> nn.Module | None:
        """The head that says how probable it is that a token halts here, in Adaptive Depth."""
        return None

    @property
    def attention_norm(self) -> nn.LayerNorm:
        """The layer norm between attention and feed-forward."""
        return cast(AlbertAttention, self.attention).LayerNorm
