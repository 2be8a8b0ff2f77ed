"""Inference on a CPU with packed weights: oneDNN's blocked layout, GELU and sums fused into maps.

The same operations that torch.compile generates when it freezes weights, without a compiler; plain
products where oneDNN's are slower. No linear map works on padding. torch's operators for it are
private: they stand in this file alone, and where they do not serve, models run as they are.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .albert import Pooler
from .layer import QUERY_KEY_VALUE, AlbertLayer


def packable_types() -> tuple[torch.dtype, ...]:
    """The types whose weights this machine's oneDNN can pack."""
    if not torch.backends.mkldnn.is_available():
        return ()
    ops = torch.ops.mkldnn
    halves = {
        torch.bfloat16: ops._is_mkldnn_bf16_supported(),
        torch.float16: ops._is_mkldnn_fp16_supported(),
    }
    return torch.float32, *(dtype for dtype, is_usable in halves.items() if is_usable)


PACKABLE = packable_types()
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

# On x86 processors without AVX-512, oneDNN's GELU is slower than torch's, and plain products of so
# many rows are faster than packed ones (docs/speed_internals.md).
HAS_AVX512 = torch.cpu.get_capabilities().get("avx512_f", True)
UNPACKED_MIN_ROWS = 224

EMULATED = "this processor has no instructions for that type, so it takes longer than float32"
# Parts of the names of instructions for products of a type, as torch has them.
INSTRUCTIONS = {
    torch.bfloat16: ("bf16",),
    torch.float16: ("fp16",),
    torch.int8: ("vnni", "int8", "dot"),
}


def is_emulated(dtype: torch.dtype, device: torch.device | str) -> bool:
    """Tell whether `device` is a CPU without half-precision or int8 products.

    Half precision then goes through float32 and takes longer than float32 (docs/speed.md).
    """
    if dtype not in INSTRUCTIONS or torch.device(device).type != "cpu":
        return False
    there = [name for name, has in torch.cpu.get_capabilities().items() if has is True]
    return not any(part in name for part in INSTRUCTIONS[dtype] for name in there)


def dtype_of(name: str, device: torch.device | str) -> torch.dtype:
    """The type of that name; `auto` is bf16 where the device has instructions for it, or float32.

    AVX-512's bf16 instructions suffice: no matrix units are needed (docs/speed.md).
    """
    if name != "auto":
        return DTYPES[name]
    if torch.device(device).type == "cuda":
        is_native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        is_native = torch.bfloat16 in PACKABLE and not is_emulated(torch.bfloat16, device)
    return torch.bfloat16 if is_native else torch.float32


StandIns = dict[nn.Module, Callable]  # layers and poolers, and what runs instead of `forward`


@contextmanager
def packed_weights(model: nn.Module, stand_ins: StandIns | None = None) -> Iterator[None]:
    """Inference mode in which the layers and poolers of `model` run with packed weights.

    They are packed on entering, so weights must not change inside, nor the model be copied. Where
    packing does not serve (another device, a type that oneDNN does not pack, eager attention,
    autocast, PEFT's adapters), this is inference mode alone. stand_ins: what `pack` made of the
    model; None to make them anew.
    """
    with torch.inference_mode():
        stand_ins = pack(model) if stand_ins is None else stand_ins
        try:
            for module, forward in stand_ins.items():
                vars(module)["forward"] = forward  # as setattr, in a tenth of its time
            yield
        finally:
            for module in stand_ins:
                vars(module).pop("forward", None)


def pack(model: nn.Module) -> StandIns:
    """The forward with packed weights of each layer and pooler that can have one."""
    return {
        module: PackedLinear(module.weight, module.bias, torch.tanh, ("tanh", ""))
        if isinstance(module, Pooler)
        else PackedLayer(module)
        for module in model.modules()
        if can_pack(module)
    }


def stand_in_of(module: nn.Module) -> Callable | None:
    """What runs packed instead of the module's own `forward`; None where it does."""
    forward = vars(module).get("forward")
    return forward if isinstance(forward, (PackedLayer, PackedLinear)) else None


def can_pack(module: nn.Module) -> bool:
    """Can `module` run packed, and does it not yet?"""
    if not isinstance(module, (AlbertLayer, Pooler)) or stand_in_of(module):
        return False
    is_layer = isinstance(module, AlbertLayer)
    maps = module.linear_maps if is_layer else ()
    weight = module.ffn.weight if is_layer else module.weight
    config = module.attention.config if is_layer else module.config
    return (
        all(isinstance(x, nn.Linear) for x in maps)  # an adapter's map is more than its weight
        and weight.device.type == "cpu"
        and weight.dtype in PACKABLE
        and config._attn_implementation != "eager"
        and not torch.is_autocast_enabled("cpu")
    )


def scatter_rows(states: Tensor, rows: Tensor | None, count: int) -> Tensor:
    """(count, size): the first of `states` at `rows`, 0 elsewhere; `states` for None."""
    if rows is None:
        return states
    return states.new_zeros(count, states.shape[1]).index_copy_(0, rows, states[: len(rows)])


def pad_row_count(rows: Tensor) -> Tensor:
    """The rows, and the last of them again, up to a number that other batches have, too.

    For every number of rows oneDNN keeps a program of up to a megabyte, a thousand of them. At most
    a sixteenth of the rows is added, from 512 on.
    """
    step = max(32, 1 << max(0, len(rows).bit_length() - 5))
    return torch.cat([rows, rows[-1:].expand(-len(rows) % step)])


class PackedLinear:
    """A linear map whose weight stands in oneDNN's blocked layout, and as it was.

    Shapes are (rows, in) -> (rows, out), in the type of the weight. What follows the product is
    `function`, which oneDNN fuses into it where it has the name and variant `fused` there.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor,
        function: Callable[[Tensor], Tensor] | None = None,
        fused: tuple[str, str] | None = None,
    ) -> None:
        self.weight, self.bias = weight.detach().contiguous(), bias.detach()
        self.function, self.fused = function, fused
        self.blocked = torch.ops.mkldnn._reorder_linear_weight(self.weight)
        plain_pays = weight.dtype == torch.float32 and not HAS_AVX512
        self.unpacked_min_rows = UNPACKED_MIN_ROWS if plain_pays else sys.maxsize

    def __call__(self, states: Tensor) -> Tensor:
        states = states.to(self.weight.dtype)
        linear = torch.ops.mkldnn._linear_pointwise
        if len(states) >= self.unpacked_min_rows:
            product = F.linear(states, self.weight, self.bias)
        elif self.fused:
            name, variant = self.fused
            return linear(states, self.blocked, self.bias, name, [], variant)
        else:
            product = linear(states, self.blocked, self.bias, "none", [], "")
        return self.function(product) if self.function else product

    def plus(self, states: Tensor, residual: Tensor) -> Tensor:
        """The map of `states` plus `residual`: one operation where oneDNN may add them."""
        same_type = states.dtype == residual.dtype == self.weight.dtype
        if not same_type or len(states) >= self.unpacked_min_rows:
            return residual + self(states)
        product = torch.ops.mkldnn._linear_pointwise.binary
        return product(states, residual, self.blocked, self.bias, "add")


class PackedLayer:
    """A layer's linear maps packed, with GELU and residual sums fused into them."""

    def __init__(self, layer: AlbertLayer) -> None:
        attention = layer.attention
        name = attention.config.hidden_act
        self.layer = layer
        self.projections: dict[tuple[int, int], PackedLinear] = {}
        self.dense = PackedLinear(attention.dense.weight, attention.dense.bias)
        variants = {"gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu": "none"}
        fused = ("gelu", variants[name]) if HAS_AVX512 and name in variants else None
        self.ffn = PackedLinear(layer.ffn.weight, layer.ffn.bias, layer.activation, fused)
        self.ffn_output = PackedLinear(layer.ffn_output.weight, layer.ffn_output.bias)

    def __call__(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        """Run AlbertLayer's forward, with states of 0 for padding: no map works on them."""
        attention, shape = self.layer.attention, hidden.shape
        flat = hidden.reshape(-1, shape[-1])  # (tokens, hidden)
        real = None if mask is None else mask.flatten().nonzero()[:, 0]
        padded_rows = None if real is None else pad_row_count(real)
        tokens = flat if mask is None else flat.index_select(0, padded_rows)
        qkv = scatter_rows(self.project(tokens, QUERY_KEY_VALUE), real, len(flat))
        parts = attention.split_heads(qkv.view(*shape[:2], -1))
        context = attention.attend(*parts, mask)
        context = context.transpose(1, 2).reshape(flat.shape)
        context = context if mask is None else context.index_select(0, padded_rows)
        return scatter_rows(self.finish(tokens, context), real, len(flat)).view(shape)

    def project(self, flat: Tensor, parts: slice) -> Tensor:
        """(tokens, hidden) -> (tokens, parts·hidden), as `SelfAttention.project`."""
        key = (parts.start, parts.stop)  # before Python 3.12 a slice has no hash
        if key not in self.projections:
            maps = self.layer.attention.projections[parts]
            weight = torch.cat([linear.weight for linear in maps])
            bias = torch.cat([linear.bias for linear in maps])
            self.projections[key] = PackedLinear(weight, bias)
        return self.projections[key](flat)

    def finish(self, flat: Tensor, context: Tensor) -> Tensor:
        """The pass after attention: states and contexts (tokens, hidden) -> new states."""
        layer = self.layer
        attended = layer.attention_norm(self.dense.plus(context, flat))
        ffn_out = self.ffn_output.plus(self.ffn(attended), attended)
        return layer.full_layer_layer_norm(ffn_out)
