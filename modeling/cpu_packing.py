"""Inference on a CPU with packed weights: oneDNN's blocked layout, GELU and sums fused into maps.

`packed_copy` makes a model of its own, whose layers and poolers are the classes of this file. They
run the operations that torch.compile generates when it freezes weights, without a compiler, and
plain products where oneDNN's are slower. torch's operators for it are private: they stand in this
file alone, and where they do not serve, models run as they are.
"""

import sys
from collections.abc import Callable
from typing import Any, Self, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .encoder import Pooler
from .errors import UserError
from .hf_layers.backbone import HfBackbone
from .layer import (
    KEY_VALUE,
    QUERY,
    QUERY_KEY_VALUE,
    AlbertLayer,
    AttentionHeads,
    SelfAttention,
)

ModelT = TypeVar("ModelT", bound=nn.Module)


def packable_types() -> tuple[torch.dtype, ...]:
    """List the types whose weights this machine's oneDNN can pack."""
    if not torch.backends.mkldnn.is_available():
        return ()
    ops = torch.ops.mkldnn
    halves = {
        torch.bfloat16: ops._is_mkldnn_bf16_supported(),
        torch.float16: ops._is_mkldnn_fp16_supported(),
    }
    return torch.float32, *(dtype for dtype, is_usable in halves.items() if is_usable)


PACKABLE = packable_types()
if PACKABLE:  # looked up once, not at every map of every layer
    LINEAR = torch.ops.mkldnn._linear_pointwise.default
    LINEAR_AND_SUM = torch.ops.mkldnn._linear_pointwise.binary
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

# On x86 processors without AVX-512, oneDNN's GELU is slower than torch's, and plain products of so
# many rows are faster than packed ones (docs/contributing.md).
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
    capabilities = torch.cpu.get_capabilities()
    names = " ".join(name for name, is_there in capabilities.items() if is_there is True)
    return not any(part in names for part in INSTRUCTIONS[dtype])


def dtype_of(name: str, device: torch.device | str) -> torch.dtype:
    """Return the type of that name.

    `auto` is bf16 where the device has instructions for it, otherwise float32. AVX-512's bf16
    instructions suffice: no matrix units are needed (docs/speed.md).
    """
    if name != "auto":
        return DTYPES[name]
    if torch.device(device).type == "cuda":
        is_native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        is_native = torch.bfloat16 in PACKABLE and not is_emulated(torch.bfloat16, device)
    return torch.bfloat16 if is_native else torch.float32


def cast_layers(model: nn.Module, dtype: torch.dtype) -> None:
    """Change the number type of the layers' linear maps and of the poolers, in place.

        elbert.cast_layers(model, torch.bfloat16)

    States, sums, norms, embeddings and the exits' own linear maps stay in float32. Rounding the
    states as well would carry the error of each pass into the next: it saves no time and moves more
    exits. transformers' own layers run under torch's autocast. Raises UserError for a packed model
    (`packed_copy`).
    """
    for layer in model.modules():
        if isinstance(layer, PackedPart):
            refuse()
        if isinstance(layer, AlbertLayer):
            for linear in layer.linear_maps:
                linear.to(dtype)
        elif isinstance(layer, HfBackbone):
            layer.cast_layers(dtype)
        elif isinstance(layer, Pooler):  # its weights are read anew after every layer pass
            layer.to(dtype)


def packed_copy(model: ModelT) -> ModelT:
    """Copy a model for faster inference on a CPU, with packed layers and poolers.

        fast = elbert.packed_copy(model)
        with torch.inference_mode():
            out = fast(**inputs)

    Packed weights have the layout in which oneDNN multiplies. The copy shares everything else with
    `model`: configuration, embeddings, exit classifiers. Later changes to the layers of `model` do
    not reach the copy. Training the copy, loading weights into it, saving it, changing its type or
    device, or calling it within torch.autocast raises UserError. On another device, and for a type
    that oneDNN does not pack, for eager attention or PEFT's adapters, or when it is made within
    torch.autocast, the copy runs as `model` does.
    """
    with torch.no_grad():
        return copy_modules(model, {}, lambda part: packed_part(part) if can_pack(part) else None)


def copy_modules(
    module: nn.Module,
    copies: dict[nn.Module, nn.Module],
    replacement: Callable[[nn.Module], nn.Module | None],
) -> Any:
    """Copy a tree of modules, sharing their parameters.

    copies: what was made so far, by its original: a module that stands in two places stays one.
    replacement: makes what stands in a module's place, or returns None for a plain copy.
    """
    if module not in copies:
        twin = replacement(module)
        if twin is None:
            # Not by copy.copy, which a parametrised module refuses.
            twin = object.__new__(type(module))
            vars(twin).update(vars(module))
            children = module._modules.items()
            twin._modules = {
                name: child and copy_modules(child, copies, replacement) for name, child in children
            }
        copies[module] = twin
    return copies[module]


def can_pack(module: nn.Module) -> bool:
    """Tell whether `module` is a layer or a pooler whose weights can be packed now."""
    if isinstance(module, AlbertLayer):
        maps, config = module.linear_maps, module.attention.config
        if not all(isinstance(linear, nn.Linear) for linear in maps):
            return False  # an adapter's map is more than its weight
        weight = module.ffn.weight
    elif isinstance(module, Pooler):
        weight, config = module.weight, module.config
    else:
        return False
    return (
        weight.device.type == "cpu"
        and weight.dtype in PACKABLE
        and config._attn_implementation != "eager"
        and not torch.is_autocast_enabled("cpu")
    )


def packed_part(module: nn.Module) -> "PackedPart":
    """Pack a layer, one of Adaptive Depth, or a pooler; see `can_pack`."""
    if isinstance(module, Pooler):
        return PackedPooler(module)
    layer = cast(AlbertLayer, module)
    return PackedLayer(layer) if layer.halting_head is None else PackedActLayer(layer)


def scatter_rows(states: Tensor, rows: Tensor, count: int) -> Tensor:
    """Put the first of `states` at `rows`, and 0 elsewhere: (count, size)."""
    return states.new_zeros(count, states.shape[1]).index_copy_(0, rows, states[: len(rows)])


def with_common_count(rows: Tensor) -> Tensor:
    """Repeat the last of the rows until their number is one that other batches have, too.

    For every number of rows oneDNN keeps a program of up to a megabyte, a thousand of them. At most
    a sixteenth of the rows is added, from 512 on.
    """
    step = max(32, 1 << max(0, len(rows).bit_length() - 5))
    return torch.cat([rows, rows[-1:].expand(-len(rows) % step)])


class PackedLinear:
    """A linear map whose weight stands in oneDNN's blocked layout.

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
        weight = weight.detach().contiguous()
        self.dtype, self.bias = weight.dtype, bias.detach().clone()
        self.function, self.fused = function, fused
        self.blocked = torch.ops.mkldnn._reorder_linear_weight(weight)
        plain_pays = weight.dtype == torch.float32 and not HAS_AVX512
        self.plain = weight.clone() if plain_pays else None
        self.unpacked_min_rows = UNPACKED_MIN_ROWS if plain_pays else sys.maxsize

    def __call__(self, states: Tensor) -> Tensor:
        states = states.to(self.dtype)
        if self.plain is not None and len(states) >= self.unpacked_min_rows:
            product = F.linear(states, self.plain, self.bias)
        elif self.fused:
            name, variant = self.fused
            return LINEAR(states, self.blocked, self.bias, name, [], variant)
        else:
            product = LINEAR(states, self.blocked, self.bias, "none", [], "")
        return self.function(product) if self.function else product

    def plus(self, states: Tensor, residual: Tensor) -> Tensor:
        """Map `states` and add `residual`: one operation where oneDNN may add them."""
        same_type = states.dtype == residual.dtype == self.dtype
        if not same_type or len(states) >= self.unpacked_min_rows:
            return residual + self(states)
        return LINEAR_AND_SUM(states, residual, self.blocked, self.bias, "add")


def refuse(*arguments: Any, **options: Any) -> Any:
    """Raise UserError: what was called would change, save, move or train packed weights."""
    raise UserError(
        "this model is packed for inference: its weights cannot be changed, saved or moved. Do "
        "that with the model that it was made of, then pack again; for another type or device, "
        "make Classifier(folder, dtype=..., device=...)"
    )


def refuse_autocast() -> None:
    """Raise UserError within torch.autocast, which would reach only what is not packed."""
    if torch.is_autocast_enabled("cpu"):
        raise UserError(
            "this model is packed for inference, with number types of its own: call it outside of "
            "torch.autocast; for bfloat16, cast_layers(model, torch.bfloat16) before packed_copy"
        )


class Unreachable(dict[str, Any]):
    """The parameters of a packed part: asking for all of a model's raises UserError.

    Without this, `for parameter in model.parameters()` would pass over the packed weights, and an
    optimiser or an edit would change half of a model without a word.
    """

    items = keys = values = __iter__ = refuse


class PackedPart(nn.Module):
    """A part of a packed model. Its weights cannot be reached, so they cannot change unnoticed."""

    _apply = _save_to_state_dict = _load_from_state_dict = refuse

    def close(self) -> None:
        """End the construction: evaluation mode, and parameters out of reach."""
        super().train(False)
        vars(self)["_parameters"] = Unreachable()

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode; raises UserError for training."""
        return refuse() if mode else super().train(mode)


class PackedPooler(PackedPart):
    """A pooler with packed weights: (rows, hidden) -> (rows, size)."""

    def __init__(self, pooler: Pooler) -> None:
        super().__init__()
        activation = pooler.activation
        fused = ("tanh", "") if activation is torch.tanh else None
        self.linear = PackedLinear(pooler.weight, pooler.bias, activation, fused)
        self.close()

    def forward(self, states: Tensor) -> Tensor:
        """Pool states as the original does."""
        return self.linear(states)


class PackedLayer(PackedPart):
    """The layer pass with packed weights, with GELU and residual sums fused into its maps.

    No linear map works on padding. Layer norms are the original's own modules.
    """

    def __init__(self, layer: AlbertLayer) -> None:
        super().__init__()
        attention = layer.attention
        activation = attention.config.hidden_act
        variants = {"gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu": "none"}
        can_fuse = HAS_AVX512 and activation in variants
        fused = ("gelu", variants[activation]) if can_fuse else None
        self.attention = AttentionHeads(attention.config)
        self.query_key_value = packed_projections(attention, QUERY_KEY_VALUE)
        self.dense = PackedLinear(attention.dense.weight, attention.dense.bias)
        self.ffn = PackedLinear(layer.ffn.weight, layer.ffn.bias, layer.activation, fused)
        self.ffn_output = PackedLinear(layer.ffn_output.weight, layer.ffn_output.bias)
        self.attention_norm = layer.attention_norm
        self.full_layer_layer_norm = layer.full_layer_layer_norm
        self.close()

    def forward(
        self, hidden: Tensor, mask: Tensor | None = None, score_bias: Tensor | None = None
    ) -> Tensor:
        """Run the pass: (batch, length, hidden) -> the same shape, with states of 0 for padding.

        Arguments are as `AlbertLayer.forward`'s.
        """
        refuse_autocast()
        shape = hidden.shape
        flat = hidden.reshape(-1, shape[-1])  # (tokens, hidden)
        if mask is None:
            projected = self.query_key_value(flat)  # (tokens, 3·hidden)
            context = self.attend(projected.view(*shape[:2], -1), score_bias)
            return self.finish(flat, context).view(shape)
        real = mask.flatten().nonzero()[:, 0]
        rows = with_common_count(real)
        tokens = flat.index_select(0, rows)
        projected = scatter_rows(self.query_key_value(tokens), real, len(flat))
        attention_mask = mask if score_bias is None else score_bias
        context = self.attend(projected.view(*shape[:2], -1), attention_mask)
        finished = self.finish(tokens, context.index_select(0, rows))
        return scatter_rows(finished, real, len(flat)).view(shape)

    def attend(self, projected: Tensor, mask: Tensor | None) -> Tensor:
        """Attend: projections (batch, length, 3·hidden) -> contexts (tokens, hidden)."""
        query, key, value = self.attention.split_heads(projected)
        # (batch, heads, length, head_size); the layer never trains, so nothing is dropped out.
        if mask is not None and mask.dtype != torch.bool:
            mask = mask.to(query.dtype)
        context = F.scaled_dot_product_attention(query, key, value, mask)
        return context.transpose(1, 2).reshape(-1, projected.shape[-1] // 3)

    def finish(self, flat: Tensor, context: Tensor) -> Tensor:
        """Run the pass after attention: states and contexts (tokens, hidden) -> new states."""
        attended = self.attention_norm(self.dense.plus(context, flat))
        ffn_out = self.ffn_output.plus(self.ffn(attended), attended)
        return self.full_layer_layer_norm(ffn_out)


class PackedActLayer(PackedLayer):
    """Adaptive Depth's layer with packed weights: it also projects some tokens alone."""

    def __init__(self, layer: AlbertLayer) -> None:
        super().__init__(layer)
        self.act = cast(nn.Module, layer.halting_head)
        self.query = packed_projections(layer.attention, QUERY)
        self.key_value = packed_projections(layer.attention, KEY_VALUE)

    def project(self, flat: Tensor, parts: slice) -> Tensor:
        """Project (tokens, hidden) to (tokens, parts·hidden), as `SelfAttention.project`."""
        refuse_autocast()
        return self.query(flat) if parts == QUERY else self.key_value(flat)


def packed_projections(attention: SelfAttention, parts: slice) -> PackedLinear:
    """Pack some of the projections side by side as one map, (tokens, hidden) -> parts·hidden."""
    maps = attention.projections[parts]
    weight = torch.cat([linear.weight for linear in maps])
    return PackedLinear(weight, torch.cat([linear.bias for linear in maps]))
