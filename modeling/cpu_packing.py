"""Inference on a CPU with packed weights: oneDNN's blocked layout, GELU and sums fused into maps.

The same operations that torch.compile generates when it freezes weights, without a compiler; plain
products where oneDNN's are slower. No linear map works on padding. torch's operators for it are
private: they stand in this file alone, and without them, or where they do not serve, models run as
they are.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from .albert import Pooler
from .errors import UserError
from .layer import QUERY_KEY_VALUE, AlbertLayer


class Fused(NamedTuple):
    """What becomes of a product's outcome: oneDNN's name and variant of it, and the function."""

    name: str
    variant: str
    function: Callable[[torch.Tensor], torch.Tensor]


NOTHING = Fused("none", "", lambda made: made)
TANH = Fused("tanh", "", torch.tanh)

NEEDED = (
    "_reorder_linear_weight",
    "_linear_pointwise",
    "_is_mkldnn_bf16_supported",
    "_is_mkldnn_fp16_supported",
)


def packable_types() -> tuple[torch.dtype, ...]:
    """The types whose weights this machine's oneDNN packs."""
    ops = torch.ops.mkldnn
    if not torch.backends.mkldnn.is_available() or not all(hasattr(ops, name) for name in NEEDED):
        return ()
    if not hasattr(ops._linear_pointwise, "binary"):
        return ()
    usable = {
        torch.float32: True,
        torch.bfloat16: ops._is_mkldnn_bf16_supported(),
        torch.float16: ops._is_mkldnn_fp16_supported(),
    }
    return tuple(dtype for dtype, is_usable in usable.items() if is_usable)


PACKABLE = packable_types()

# On x86 processors without AVX-512, oneDNN's GELU is slower than torch's, and plain products of so
# many rows are faster than packed ones (docs/speed.md).
HAS_AVX512 = torch.cpu.get_capabilities().get("avx512_f", True)
PLAIN_FROM = 224

EMULATED = "this processor has no instructions for that type, so it takes longer than float32"


def is_emulated(dtype: torch.dtype, device: torch.device | str) -> bool:
    """Is `device` a CPU without instructions for half precision `dtype`?

    Products then go through float32 and take longer than in float32 (docs/speed.md).
    """
    name = {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(dtype)
    if name is None or torch.device(device).type != "cpu":
        return False
    return not any(has for key, has in torch.cpu.get_capabilities().items() if name in key)


@contextmanager
def packed_weights(model: nn.Module) -> Iterator[None]:
    """Inference mode in which the layers and poolers of `model` run with packed weights.

    They are packed on entering, so weights must not change inside; what is compiled, and copies of
    the model, run unpacked. Where packing does not serve (another device, a type that oneDNN does
    not pack, eager attention, autocast), this is inference mode alone.

    Raises UserError for a model in train mode.
    """
    if model.training:
        raise UserError("packed weights are for inference: call model.eval() first")
    with torch.inference_mode():
        chosen = [module for module in model.modules() if packs(module)]
        try:
            for module in chosen:
                kind = PackedPooler if isinstance(module, Pooler) else PackedLayer
                module.packed = kind(module)
            yield
        finally:
            for module in chosen:
                module.packed = None


def packs(module: nn.Module) -> bool:
    """Can `module` run packed, and does it not yet?"""
    if isinstance(module, AlbertLayer):
        weight, config = module.ffn.weight, module.attention.config
    elif isinstance(module, Pooler):
        weight, config = module.weight, module.config
    else:
        return False
    return (
        module.packed is None
        and weight.device.type == "cpu"
        and weight.dtype in PACKABLE
        and config._attn_implementation != "eager"
        and not torch.is_autocast_enabled("cpu")
    )


def side_by_side(linears: Sequence[nn.Linear]) -> tuple[torch.Tensor, torch.Tensor]:
    """Several maps of one input as one: weight (sum of outs, in), bias (sum of outs,)."""
    return torch.cat([x.weight for x in linears]), torch.cat([x.bias for x in linears])


def take(states: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
    """The given rows of (tokens, size); all of them for None."""
    return states if rows is None else states.index_select(0, rows)


def put(states: torch.Tensor, rows: torch.Tensor | None, count: int) -> torch.Tensor:
    """The inverse of `take`: (count, size) with the first `states` at the given rows, else 0."""
    if rows is None:
        return states
    return states.new_zeros(count, states.shape[1]).index_copy_(0, rows, states[: len(rows)])


def filled_up(rows: torch.Tensor) -> torch.Tensor:
    """The rows, and the last of them again, up to a number that other batches have, too.

    For every number of rows oneDNN keeps a program of up to a megabyte, a thousand of them. At most
    a sixteenth of the rows is added, from 512 on.
    """
    step = max(32, 1 << max(0, len(rows).bit_length() - 5))
    return torch.cat([rows, rows[-1:].expand(-len(rows) % step)])


class Uncopied:
    """Packed weights are this process's alone: where a model is copied or pickled, None is."""

    def __reduce__(self) -> tuple:
        return type(None), ()


class PackedLinear(Uncopied):
    """A linear map whose weight stands in oneDNN's blocked layout, and as it was.

    Shapes are (rows, in) -> (rows, out), in the type of the weight.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        self.weight, self.bias = weight.detach().contiguous(), bias.detach()
        self.blocked = torch.ops.mkldnn._reorder_linear_weight(self.weight)
        plain_pays = weight.dtype == torch.float32 and not HAS_AVX512
        self.plain_from = PLAIN_FROM if plain_pays else sys.maxsize

    def __call__(self, states: torch.Tensor, fused: Fused = NOTHING) -> torch.Tensor:
        states = states.to(self.weight.dtype)
        if len(states) >= self.plain_from:
            return fused.function(F.linear(states, self.weight, self.bias))
        product = torch.ops.mkldnn._linear_pointwise
        return product(states, self.blocked, self.bias, fused.name, [], fused.variant)

    def plus(self, states: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """The map of `states` plus `residual`: one operation where oneDNN may add them."""
        same_type = states.dtype == residual.dtype == self.weight.dtype
        if not same_type or len(states) >= self.plain_from:
            return residual + self(states)
        product = torch.ops.mkldnn._linear_pointwise.binary
        return product(states, residual, self.blocked, self.bias, "add")


class PackedPooler(Uncopied):
    """A pooler whose weights, which come from memory, all threads read."""

    def __init__(self, pooler: Pooler) -> None:
        self.linear = PackedLinear(pooler.weight, pooler.bias)

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        return self.linear(states, TANH)


class PackedLayer(Uncopied):
    """A layer's linear maps packed, with GELU and residual sums fused into them."""

    def __init__(self, layer: AlbertLayer) -> None:
        attention = layer.attention
        self.layer = layer
        self.projections: dict[tuple[int, int], PackedLinear] = {}
        self.dense = PackedLinear(attention.dense.weight, attention.dense.bias)
        self.ffn = PackedLinear(layer.ffn.weight, layer.ffn.bias)
        self.ffn_output = PackedLinear(layer.ffn_output.weight, layer.ffn_output.bias)
        # oneDNN's names of the two GELUs; other activations run on their own.
        name = attention.config.hidden_act
        tanh = name in ("gelu_new", "gelu_pytorch_tanh")
        self.activation = Fused("gelu", "tanh" if tanh else "none", layer.activation)
        self.fuses_activation = HAS_AVX512 and (tanh or name == "gelu")

    def __call__(self, hidden: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """As AlbertLayer's forward, but that the states of padding are 0: no map works on them."""
        attention, shape = self.layer.attention, hidden.shape
        flat = hidden.reshape(-1, shape[-1])  # (tokens, hidden)
        real = None if mask is None else mask.flatten().nonzero()[:, 0]
        filled = None if real is None else filled_up(real)
        mine = take(flat, filled)
        qkv = put(self.project(mine, QUERY_KEY_VALUE), real, len(flat)).view(*shape[:2], -1)
        context = attention.attend(*attention.split_heads(qkv), mask)
        context = take(context.transpose(1, 2).reshape(flat.shape), filled)
        return put(self.finish(mine, context), real, len(flat)).view(shape)

    def project(self, flat: torch.Tensor, parts: slice) -> torch.Tensor:
        """(tokens, hidden) -> (tokens, parts·hidden), as `SelfAttention.project`."""
        key = (parts.start, parts.stop)  # before Python 3.12 a slice has no hash
        if key not in self.projections:
            maps = side_by_side(self.layer.attention.projections[parts])
            self.projections[key] = PackedLinear(*maps)
        return self.projections[key](flat)

    def finish(self, flat: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        """The pass after attention: states and contexts (tokens, hidden) -> new states."""
        layer = self.layer
        attended = layer.attention_norm(self.dense.plus(context, flat))
        if self.fuses_activation:
            inner = self.ffn(attended, self.activation)
        else:
            inner = layer.activation(self.ffn(attended))
        return layer.full_layer_layer_norm(self.ffn_output.plus(inner, attended))
