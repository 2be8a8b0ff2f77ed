"""ALBERT's embeddings and its one shared layer pass.

This is the only attention and feed-forward code of the project. Depth is a run-time choice: the
callers decide how often `layer_pass` runs, and for whom.

A linear map takes its input in the type of its weights, and a sum has the wider type of its two
parts. So a model whose layers alone are cast (`cast_layers`) keeps states, sums and norms in
float32 while the matrix products run in half precision.
"""

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import AlbertConfig
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.models.albert import modeling_albert as hf_albert

from .errors import UserError

if TYPE_CHECKING:
    from .cpu_packing import PackedLayer, PackedPooler


class AlbertPreTrainedModel(hf_albert.AlbertPreTrainedModel):
    """HF's loading, saving and initialisation; embeddings are in `albert` or the model itself."""

    supports_gradient_checkpointing = True
    # Published checkpoints hold the position numbers 0, 1, 2, …, too.
    _keys_to_ignore_on_load_unexpected = [r"embeddings\.position_ids$"]  # noqa: RUF012 (HF's own)

    def get_input_embeddings(self) -> nn.Embedding:
        return getattr(self, "albert", self).embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        getattr(self, "albert", self).embeddings.word_embeddings = value


def the_input(input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None) -> torch.Tensor:
    """Whichever of a model's two inputs is given; raises UserError for both and for neither."""
    if (input_ids is None) == (inputs_embeds is None):
        raise UserError("a model takes input_ids or inputs_embeds, one of the two")
    return inputs_embeds if input_ids is None else input_ids


def drop_position_ids(
    embeddings: nn.Module, state_dict: dict[str, torch.Tensor], prefix: str, *_: Any
) -> None:
    """Lets `load_state_dict` take a published checkpoint as it is."""
    state_dict.pop(f"{prefix}position_ids", None)


class AlbertEmbeddings(hf_albert.AlbertEmbeddings):
    """HF's embeddings, summed in the published order: float32 sums depend on it in the last bit."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__(config)
        end = config.eos_token_id
        self.separator = end if isinstance(end, int) else None  # [SEP]; HF admits lists, too
        self.register_load_state_dict_pre_hook(drop_position_ids)

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Ids (batch, length) or their words (batch, length, embedding) -> the latter's shape.

        Without `token_type_ids`, ids are in the second segment from behind their first [SEP] on,
        as ALBERT's pairs are, and words are in the first.

        Raises UserError for a text of more tokens than there are positions.
        """
        shape = the_input(input_ids, inputs_embeds).shape[:2]
        if shape[1] > self.position_embeddings.num_embeddings:
            raise UserError(
                f"{shape[1]} tokens in a text: allowed are at most max_position_embeddings"
                f" = {self.position_embeddings.num_embeddings}; cut it, with the tokenizer's"
                " truncation=True and max_length"
            )
        words = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        if token_type_ids is None:
            token_type_ids = self.segments(input_ids, words)
        positions = self.position_embeddings(self.position_ids[:, : shape[1]])
        embedded = words + positions + self.token_type_embeddings(token_type_ids)
        return self.dropout(self.LayerNorm(embedded))

    def segments(self, input_ids: torch.Tensor | None, words: torch.Tensor) -> torch.Tensor:
        """Segment ids (batch, length): 1 behind the first [SEP] of a text, 0 before."""
        if input_ids is None or self.separator is None:
            return torch.zeros(words.shape[:2], dtype=torch.long, device=words.device)
        ends = (input_ids == self.separator).long()
        before = ends.cumsum(1) - ends  # how many [SEP] stand before each token
        return before.clamp(max=self.token_type_embeddings.num_embeddings - 1)


# Which of the projections: `parts` of SelfAttention.project.
QUERY, QUERY_KEY, KEY_VALUE = slice(0, 1), slice(0, 2), slice(1, 3)
QUERY_KEY_VALUE = slice(0, 3)


class SelfAttention(nn.Module):
    """Multi-head self-attention up to its residual connection.

    `forward` runs all pieces for all tokens; a caller that keeps keys and values runs some pieces
    for some tokens.
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

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """What every token reads of its text: (batch, length, hidden) -> the same shape."""
        states = hidden.to(self.query.weight.dtype)
        parts = (self.split_heads(linear(states)) for linear in self.projections)
        query, key, value = (part.squeeze(0) for part in parts)  # [0] copies in an ONNX file
        return self.output(self.attend(query, key, value, mask))

    @property
    def projections(self) -> tuple[nn.Linear, nn.Linear, nn.Linear]:
        return self.query, self.key, self.value

    def project(self, hidden: torch.Tensor, parts: slice) -> torch.Tensor:
        """(..., hidden) -> (..., parts·hidden): the projections asked for, side by side."""
        states = hidden.to(self.query.weight.dtype)
        return torch.cat([linear(states) for linear in self.projections[parts]], -1)

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

    def weights(self, hidden: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """What every token reads of each, (batch, heads, length, length), without dropout."""
        query, key = self.split_heads(self.project(hidden, QUERY_KEY))
        return attention_weights(query, key, mask)

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
    """Self-attention beside the layer norm of its residual connection, as HF names the two."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__(config)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)


def eager_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
) -> torch.Tensor:
    """softmax(QKᵀ/√d)V in the published order of operations, all (batch, heads, length, d).

    Chosen by `attn_implementation="eager"`: the default's formula, step by step as in the
    published code, and slower.
    """
    return F.dropout(attention_weights(query, key, mask), dropout) @ value


def attention_weights(
    query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """softmax(QKᵀ/√d), (batch, heads, queries, length): what a query reads of each token."""
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(-1)


class AlbertLayer(nn.Module):
    """One layer pass: attention and feed-forward, each with residual connection and norm."""

    attention_class: type[SelfAttention] = AlbertAttention
    packed: "PackedLayer | None" = None  # runs in place of `forward`; set by `packed_weights`

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.attention = self.attention_class(config)
        self.ffn = nn.Linear(config.hidden_size, config.intermediate_size)
        self.ffn_output = nn.Linear(config.intermediate_size, config.hidden_size)
        self.full_layer_layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        # PyTorch's one-op tanh GELU is the same formula as HF's `gelu_new`.
        tanh = config.hidden_act == "gelu_new"
        self.activation = ACT2FN["gelu_pytorch_tanh" if tanh else config.hidden_act]

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """hidden (batch, length, hidden), mask (batch, 1, 1, length) bool or None (no padding)."""
        if not torch.compiler.is_compiling() and self.packed is not None:
            return self.packed(hidden, mask)
        return self.complete(hidden, self.attention(hidden, mask))

    def complete(self, states: torch.Tensor, read: torch.Tensor) -> torch.Tensor:
        """The pass after attention: states and what they read, (..., hidden) -> new states."""
        attended = self.attention_norm(states + read)
        return self.full_layer_layer_norm(self.feed_forward(attended) + attended)

    @property
    def attention_norm(self) -> nn.LayerNorm:
        """The layer norm between attention and feed-forward."""
        return self.attention.LayerNorm

    @property
    def linear_maps(self) -> tuple[nn.Linear, ...]:
        """All matrix products of a pass but attention's own two."""
        attention = self.attention
        return (*attention.projections, attention.dense, self.ffn, self.ffn_output)

    def feed_forward(self, attended: torch.Tensor) -> torch.Tensor:
        """The feed-forward part before its residual connection, (..., hidden)."""
        return self.ffn_output(self.activation(self.ffn(attended.to(self.ffn.weight.dtype))))


class AlbertLayerGroup(GradientCheckpointingLayer):
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


class ExitLinear(nn.Linear):
    """A small linear map of an exit, which sees one row of an example: (..., in) -> (..., out).

    A single example's is a matrix-vector product: after a layer pass nothing is in the caches, and
    a matrix product runs more code.
    """

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        states = states.to(self.weight.dtype)
        if states.numel() != self.in_features:
            return super().forward(states)
        row = torch.addmv(self.bias, self.weight, states.reshape(-1))
        return row.view(*states.shape[:-1], -1)


class Pooler(nn.Linear):
    """tanh of a linear map, (..., hidden) -> (..., size), under HF's name for it."""

    packed: "PackedPooler | None" = None  # runs in place of `forward`; set by `packed_weights`

    def __init__(self, config: AlbertConfig, size: int) -> None:
        super().__init__(config.hidden_size, size)
        self.config = config

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling() and self.packed is not None:
            return self.packed(states)
        return super().forward(states.to(self.weight.dtype)).tanh()


class AlbertBackbone(nn.Module):
    """Embeddings, encoder and pooler under HF ALBERT's names; `layer_pass` is one step of depth."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.num_layers = config.num_hidden_layers
        self.embeddings = AlbertEmbeddings(config)
        self.encoder = AlbertEncoder(config)
        self.pooler = Pooler(config, config.hidden_size)

    def embed(
        self, input_ids: torch.Tensor, token_type_ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(batch, length) ids -> (batch, length, hidden), the state at depth 0."""
        embedded = self.embeddings(input_ids, token_type_ids)
        return self.encoder.embedding_hidden_mapping_in(embedded)

    def group_of(self, layer: int) -> int:
        """Which group's weights layer `layer` (0-based) uses: groups share the depth evenly."""
        # In floats, as HF does: for a few odd shapes it rounds differently from whole numbers.
        return int(layer / (self.num_layers / len(self.encoder.albert_layer_groups)))

    def layer_pass(
        self, hidden: torch.Tensor, mask: torch.Tensor | None, group: int
    ) -> torch.Tensor:
        """The next layer's states, (batch, length, hidden), from these; `group` is its group's."""
        return self.encoder.albert_layer_groups[group](hidden, mask)


def cast_layers(model: nn.Module, dtype: torch.dtype) -> None:
    """Put the layers' linear maps into `dtype`; states, sums, norms, embeddings and exits stay.

    Nearly all work of a pass is in these maps. Rounding the states as well would carry the error
    of each pass into the next: it costs as much time and moves more exits (docs/speed.md).
    """
    for layer in model.modules():
        if isinstance(layer, AlbertLayer):
            for linear in layer.linear_maps:
                linear.to(dtype)


def attention_mask_of(attention_mask: torch.Tensor | None) -> torch.Tensor | None:
    """(batch, length) of 1 for real tokens -> (batch, 1, 1, length) bool; None without padding."""
    return None if attention_mask is None else attention_mask.bool()[:, None, None, :]
