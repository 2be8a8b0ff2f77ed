"""ALBERT's embeddings and its one shared layer pass.

This is the only attention and feed-forward code of the project. Depth is a run-time choice: the
callers decide how often `layer_pass` runs, and for whom.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F
from transformers import AlbertConfig
from transformers.activations import ACT2FN
from transformers.models.albert import modeling_albert as hf_albert

AlbertPreTrainedModel = hf_albert.AlbertPreTrainedModel


def activation_function(name: str) -> nn.Module:
    """HF's activation of that name; `gelu_new` as PyTorch's one-op tanh GELU, the same formula."""
    return ACT2FN["gelu_pytorch_tanh" if name == "gelu_new" else name]


class AlbertEmbeddings(hf_albert.AlbertEmbeddings):
    """HF's embeddings, summed in the published order: float32 sums depend on it in the last bit."""

    def forward(
        self, input_ids: torch.Tensor, token_type_ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(batch, length) ids -> (batch, length, embedding)."""
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)
        positions = self.position_embeddings(self.position_ids[:, : input_ids.shape[1]])
        words = self.word_embeddings(input_ids)
        embedded = words + positions + self.token_type_embeddings(token_type_ids)
        return self.dropout(self.LayerNorm(embedded))


class FusedQKV:
    """Query, key and value projections in one, kept while the weights stay as they are."""

    def __init__(self) -> None:
        self.stamp: tuple = ()
        self.tensors: tuple[torch.Tensor, torch.Tensor] = ()

    def __call__(self, *layers: nn.Linear) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns weight (3·hidden, hidden) and bias (3·hidden,)."""
        parameters = [p for layer in layers for p in (layer.weight, layer.bias)]
        if torch.is_grad_enabled() and any(p.requires_grad for p in parameters):
            return self.concatenate(layers)
        # An optimiser step or a loaded checkpoint raises _version; a move changes the address.
        stamp = tuple((p.data_ptr(), p._version) for p in parameters)
        if stamp != self.stamp:
            self.stamp, self.tensors = stamp, self.concatenate(layers)
        return self.tensors

    @staticmethod
    def concatenate(layers: tuple[nn.Linear, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.cat([x.weight for x in layers]), torch.cat([x.bias for x in layers])


# Which of the fused projections: `parts` of SelfAttention.project.
QUERY, KEY_VALUE, QUERY_KEY_VALUE = slice(0, 1), slice(1, 3), slice(0, 3)


class SelfAttention(nn.Module):
    """Multi-head self-attention up to its output projection, in pieces.

    A caller that keeps keys and values needs queries for some tokens only; `AlbertAttention` runs
    all pieces for all tokens.
    """

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.config = config
        self.num_heads = config.num_attention_heads
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.dense = nn.Linear(hidden, hidden)
        self.attention_dropout = config.attention_probs_dropout_prob
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.fused_qkv = FusedQKV()

    def project(self, hidden: torch.Tensor, parts: slice = QUERY_KEY_VALUE) -> torch.Tensor:
        """(..., hidden) -> (..., parts·hidden): the projections asked for, side by side."""
        weight, bias = self.fused_qkv(self.query, self.key, self.value)
        size = self.query.out_features
        rows = slice(parts.start * size, parts.stop * size)
        return F.linear(hidden, weight[rows], bias[rows])

    def split_heads(self, projected: torch.Tensor) -> torch.Tensor:
        """(batch, length, parts·hidden) -> (parts, batch, heads, length, head_size)."""
        head_size = self.query.out_features // self.num_heads
        parts = projected.unflatten(-1, (-1, self.num_heads, head_size))
        return parts.permute(2, 0, 3, 1, 4)

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        """What each query reads: (batch, heads, queries, head_size), as `query`.

        key, value (batch, heads, length, head_size); mask (batch, 1, 1, length) bool or None.
        """
        dropout = self.attention_dropout if self.training else 0.0
        if self.config._attn_implementation == "eager":
            return eager_attention(query, key, value, mask, dropout)
        return F.scaled_dot_product_attention(query, key, value, mask, dropout)

    def output(self, context: torch.Tensor) -> torch.Tensor:
        """The heads' contexts projected and dropped out: (batch, queries, hidden)."""
        if self.config._attn_implementation == "eager":
            return self.dropout(self.project_as_published(context))
        return self.dropout(self.dense(context.transpose(1, 2).flatten(2)))

    def project_as_published(self, context: torch.Tensor) -> torch.Tensor:
        """(batch, heads, length, head_size) -> (batch, length, hidden), summed head by head."""
        heads, head_size = context.shape[1], context.shape[3]
        weight = self.dense.weight.t().view(heads, head_size, -1)
        return torch.einsum("bnfd,ndh->bfh", context, weight) + self.dense.bias


class AlbertAttention(SelfAttention):
    """Self-attention with its residual connection and layer norm."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__(config)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        query, key, value = self.split_heads(self.project(hidden))
        return self.LayerNorm(hidden + self.output(self.attend(query, key, value, mask)))


def eager_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
) -> torch.Tensor:
    """softmax(QKᵀ/√d)V in the published order of operations, all (batch, heads, length, d).

    Chosen by `attn_implementation="eager"`: the same formula as the default, bit for bit what the
    published code computed, and slower.
    """
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return F.dropout(scores.softmax(-1), dropout) @ value


class AlbertLayer(nn.Module):
    """One layer pass: attention and feed-forward, each with residual connection and norm."""

    attention_class: type[SelfAttention] = AlbertAttention

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.attention = self.attention_class(config)
        self.ffn = nn.Linear(config.hidden_size, config.intermediate_size)
        self.ffn_output = nn.Linear(config.intermediate_size, config.hidden_size)
        self.full_layer_layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.activation = activation_function(config.hidden_act)

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """hidden (batch, length, hidden), mask (batch, 1, 1, length) bool or None (no padding)."""
        attended = self.attention(hidden, mask)
        return self.full_layer_layer_norm(self.feed_forward(attended) + attended)

    def feed_forward(self, attended: torch.Tensor) -> torch.Tensor:
        """The feed-forward part before its residual connection, (..., hidden)."""
        return self.ffn_output(self.activation(self.ffn(attended)))


class AlbertLayerGroup(nn.Module):
    """The layers that one pass applies in a row (`inner_group_num` of them, one as published)."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.albert_layers = nn.ModuleList(
            AlbertLayer(config) for _ in range(config.inner_group_num)
        )

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        for layer in self.albert_layers:
            hidden = layer(hidden, mask)
        return hidden


class AlbertEncoder(nn.Module):
    """The mapping from embedding to hidden size, and the shared layer groups."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.embedding_hidden_mapping_in = nn.Linear(config.embedding_size, config.hidden_size)
        self.albert_layer_groups = nn.ModuleList(
            AlbertLayerGroup(config) for _ in range(config.num_hidden_groups)
        )


class AlbertBackbone(nn.Module):
    """Embeddings, encoder and pooler under HF ALBERT's names; `layer_pass` is one step of depth."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.num_layers = config.num_hidden_layers
        self.embeddings = AlbertEmbeddings(config)
        self.encoder = AlbertEncoder(config)
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size)

    def embed(
        self, input_ids: torch.Tensor, token_type_ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(batch, length) ids -> (batch, length, hidden), the state at depth 0."""
        embedded = self.embeddings(input_ids, token_type_ids)
        return self.encoder.embedding_hidden_mapping_in(embedded)

    def group_of(self, layer: int) -> int:
        """Which group's weights layer `layer` (0-based) uses: groups share the depth evenly."""
        return layer * len(self.encoder.albert_layer_groups) // self.num_layers

    def layer_pass(
        self, hidden: torch.Tensor, mask: torch.Tensor | None, layer: int
    ) -> torch.Tensor:
        """State after layer `layer` (0-based) from the state before it, (batch, length, hidden)."""
        return self.encoder.albert_layer_groups[self.group_of(layer)](hidden, mask)


def attention_mask_of(attention_mask: torch.Tensor | None) -> torch.Tensor | None:
    """(batch, length) of 1 for real tokens -> (batch, 1, 1, length) bool; None without padding."""
    return None if attention_mask is None else attention_mask.bool()[:, None, None, :]
