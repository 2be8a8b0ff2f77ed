"""ALBERT's embeddings and its one shared layer pass.

This is the only attention and feed-forward code of the project. Depth is a run-time choice: the
callers decide how often `layer_pass` runs, and for whom.

A linear map takes its input in the type of its weights, and a sum has the wider type of its two
parts. So a model whose layers alone are cast (`cast_layers`) keeps states, sums and norms in
float32 while the matrix products run in half precision.
"""

import math
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import AlbertConfig
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.models.albert import modeling_albert as hf_albert

from modeling.errors import UserError

AlbertPreTrainedModel = hf_albert.AlbertPreTrainedModel


def activation_function(name: str) -> nn.Module:
    """HF's activation of that name; `gelu_new` as PyTorch's one-op tanh GELU, the same formula."""
    return ACT2FN["gelu_pytorch_tanh" if name == "gelu_new" else name]


def the_input(input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None) -> torch.Tensor:
    """Whichever of a model's two inputs is given; raises UserError for both and for neither."""
    if (input_ids is None) == (inputs_embeds is None):
        raise UserError("a model takes input_ids or inputs_embeds, one of the two")
    return inputs_embeds if input_ids is None else input_ids


class AlbertEmbeddings(hf_albert.AlbertEmbeddings):
    """HF's embeddings, summed in the published order: float32 sums depend on it in the last bit."""

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Ids (batch, length) or their words (batch, length, embedding) -> the latter's shape.

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
            token_type_ids = torch.zeros(shape, dtype=torch.long, device=words.device)
        positions = self.position_embeddings(self.position_ids[:, : shape[1]])
        embedded = words + positions + self.token_type_embeddings(token_type_ids)
        return self.dropout(self.LayerNorm(embedded))


STEADY = threading.local()  # .block: the thread's outermost `steady_weights`, if it is in one


@contextmanager
def steady_weights() -> Iterator[None]:
    """A block, or a decorated function, in which this thread changes no weights.

    There `Derived` looks at them at the first use only: with cold caches, looking at a layer's at
    every pass takes longer than the pass's two layer norms.
    """
    outer = getattr(STEADY, "block", None)
    STEADY.block = outer or object()
    try:
        yield
    finally:
        STEADY.block = outer


class Derived:
    """Something computed from parameters, kept while they stay as they are."""

    def __init__(self) -> None:
        self.stamp: tuple = ()
        self.value: Any = None
        self.block: object = None  # the `steady_weights` in which the stamp was last compared

    def __call__(
        self, parameters: Callable[[], Iterable[nn.Parameter]], make: Callable[[], Any]
    ) -> Any:
        """`make()`, or what it gave when the `parameters()` were last the same.

        Writing into `parameter.data` goes unseen; an optimiser step, a loaded checkpoint and a
        move to another device or type do not.
        """
        if torch.compiler.is_compiling():  # the compiler folds constants itself
            return make()
        block = getattr(STEADY, "block", None)
        if block is None or block is not self.block:
            own = list(parameters())
            learning = torch.is_grad_enabled() and any(p.requires_grad for p in own)
            # Tensors made in inference mode count no versions.
            if learning or any(p.is_inference() for p in own):
                return make()
            # What is made in inference mode cannot serve a backward pass outside it.
            stamp = (
                torch.is_inference_mode_enabled(),
                *((p.data_ptr(), p._version) for p in own),
            )
            if stamp != self.stamp:
                self.stamp, self.value = stamp, make()
            self.block = block
        return self.value

    def __reduce__(self) -> tuple:
        """Copies and pickles start empty: packed weights are this process's alone."""
        return Derived, ()


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
        self.fused = Derived()

    def project(self, hidden: torch.Tensor, parts: slice = QUERY_KEY_VALUE) -> torch.Tensor:
        """(..., hidden) -> (..., parts·hidden): the projections asked for, side by side."""
        weight, bias = self.fused_qkv()
        size = self.query.out_features
        rows = slice(parts.start * size, parts.stop * size)
        return F.linear(hidden.to(weight.dtype), weight[rows], bias[rows])

    def fused_qkv(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Query, key and value projections in one: weight (3·hidden, hidden), bias (3·hidden,)."""
        layers = (self.query, self.key, self.value)
        return self.fused(
            lambda: (p for layer in layers for p in layer.parameters()),
            lambda: (torch.cat([x.weight for x in layers]), torch.cat([x.bias for x in layers])),
        )

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


def packs(module: nn.Module, config: AlbertConfig, weight: torch.Tensor) -> bool:
    """Whether `module` can use weights like `weight` in oneDNN's own layout.

    That is inference on a CPU with the default attention, in one of oneDNN's types.
    """
    return (
        weight.device.type == "cpu"
        and not torch.is_grad_enabled()
        and not module.training
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and config._attn_implementation != "eager"
        and weight.dtype in PACKABLE
    )


PACKABLE = (
    tuple(
        dtype
        for dtype, usable in (
            (torch.float32, torch.backends.mkldnn.is_available()),
            (torch.bfloat16, torch.ops.mkldnn._is_mkldnn_bf16_supported()),
            (torch.float16, torch.ops.mkldnn._is_mkldnn_fp16_supported()),
        )
        if usable
    )
    if torch.backends.mkldnn.is_available()
    else ()
)

Packed = tuple[torch.Tensor, torch.Tensor]  # weight in oneDNN's blocked layout, bias
Fused = tuple[str, list, str]  # what oneDNN does to a product's outcome: name, scalars, variant
PLAIN: Fused = ("none", [], "")
TANH: Fused = ("tanh", [], "")


def pack(weight: torch.Tensor, bias: torch.Tensor) -> Packed:
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous()), bias.detach()


def packed_linear(states: torch.Tensor, packed: Packed, fused: Fused = PLAIN) -> torch.Tensor:
    """(..., in) -> (..., out), in the type of the packed weights."""
    return torch.ops.mkldnn._linear_pointwise(states.to(packed[1].dtype), *packed, *fused)


def packed_residual(states: torch.Tensor, packed: Packed, residual: torch.Tensor) -> torch.Tensor:
    """The packed map of `states`, plus `residual`: one operation where their types agree."""
    if states.dtype == residual.dtype == packed[1].dtype:
        return torch.ops.mkldnn._linear_pointwise.binary(states, residual, *packed, "add")
    return residual + packed_linear(states, packed)


def take(states: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
    """The given rows of (tokens, size); all of them for None."""
    return states if rows is None else states.index_select(0, rows)


def put(states: torch.Tensor, rows: torch.Tensor | None, count: int) -> torch.Tensor:
    """The inverse of `take`: (count, size) with `states` at the given rows and 0 elsewhere."""
    if rows is None:
        return states
    return states.new_zeros(count, states.shape[1]).index_copy_(0, rows, states)


class PackedLayer:
    """A layer's linear maps in oneDNN's blocked layout, GELU and residual sums fused into them.

    The same operations that torch.compile generates when it freezes weights, without a compiler.
    """

    def __init__(self, layer: "AlbertLayer") -> None:
        attention = layer.attention
        self.layer = layer
        self.projections: dict[tuple[int, int], Packed] = {}
        self.dense = pack(attention.dense.weight, attention.dense.bias)
        self.ffn = pack(layer.ffn.weight, layer.ffn.bias)
        self.ffn_output = pack(layer.ffn_output.weight, layer.ffn_output.bias)
        # oneDNN's names of the two GELUs; other activations run as they are.
        name = attention.config.hidden_act
        tanh = name in ("gelu_new", "gelu_pytorch_tanh")
        self.activation: Fused = ("gelu", [], "tanh" if tanh else "none")
        self.fuses_activation = tanh or name == "gelu"

    def __call__(self, hidden: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """As AlbertLayer's forward, but that the states of padding are 0: no map works on them."""
        attention, shape = self.layer.attention, hidden.shape
        flat = hidden.reshape(-1, shape[-1])
        real = None if mask is None else mask.flatten().nonzero()[:, 0]
        mine = take(flat, real)
        qkv = put(self.project(mine, QUERY_KEY_VALUE), real, len(flat)).view(*shape[:2], -1)
        context = attention.attend(*attention.split_heads(qkv), mask)
        context = take(context.transpose(1, 2).reshape(flat.shape), real)
        return put(self.finish(mine, context), real, len(flat)).view(shape)

    def project(self, flat: torch.Tensor, parts: slice) -> torch.Tensor:
        """(tokens, hidden) -> (tokens, parts·hidden), as `SelfAttention.project`."""
        key = (parts.start, parts.stop)  # Python 3.10 cannot hash a slice
        if key not in self.projections:
            weight, bias = self.layer.attention.fused_qkv()
            rows = slice(*(x * weight.shape[1] for x in key))
            self.projections[key] = pack(weight[rows], bias[rows])
        return packed_linear(flat, self.projections[key])

    def finish(self, flat: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        """The pass after attention: states and contexts (tokens, hidden) -> new states."""
        layer = self.layer
        attended = layer.attention_norm(packed_residual(context, self.dense, flat))
        if self.fuses_activation:
            inner = packed_linear(attended, self.ffn, self.activation)
        else:
            inner = layer.activation(packed_linear(attended, self.ffn))
        return layer.full_layer_layer_norm(packed_residual(inner, self.ffn_output, attended))


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
        self.packed = Derived()

    def train(self, mode: bool = True) -> "AlbertLayer":
        """As nn.Module; weights written behind the version counter's back are packed anew."""
        self.packed = Derived()
        self.attention.fused = Derived()
        return super().train(mode)

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """hidden (batch, length, hidden), mask (batch, 1, 1, length) bool or None (no padding)."""
        if packs(self, self.attention.config, self.ffn.weight):
            return self.packed(self.parameters, lambda: PackedLayer(self))(hidden, mask)
        attended = self.attention(hidden, mask)
        return self.full_layer_layer_norm(self.feed_forward(attended) + attended)

    @property
    def attention_norm(self) -> nn.LayerNorm:
        """The layer norm between attention and feed-forward."""
        return self.attention.LayerNorm

    @property
    def linear_maps(self) -> tuple[nn.Linear, ...]:
        """All matrix products of a pass but attention's own two."""
        attention = self.attention
        projections = (attention.query, attention.key, attention.value, attention.dense)
        return (*projections, self.ffn, self.ffn_output)

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
    """tanh of a linear map, (..., hidden) -> (..., size), under HF's name for it.

    Packed, as a layer's maps are: all threads read its weights, which come from memory.
    """

    def __init__(self, config: AlbertConfig, size: int) -> None:
        super().__init__(config.hidden_size, size)
        self.config = config
        self.packed = Derived()

    def train(self, mode: bool = True) -> "Pooler":
        """As nn.Module; weights written behind the version counter's back are packed anew."""
        self.packed = Derived()
        return super().train(mode)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        if packs(self, self.config, self.weight):
            packed = self.packed(self.parameters, lambda: pack(self.weight, self.bias))
            return packed_linear(states, packed, TANH)
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
        self, hidden: torch.Tensor, mask: torch.Tensor | None, layer: int
    ) -> torch.Tensor:
        """State after layer `layer` (0-based) from the state before it, (batch, length, hidden)."""
        return self.encoder.albert_layer_groups[self.group_of(layer)](hidden, mask)


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
