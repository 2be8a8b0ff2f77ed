"""Export the loop of a model over its layers as an ONNX graph in float32.

`torch.export` and `torch.onnx` translate it. This file adds what makes the result as fast as a
graph without a loop.
"""

import json
from collections.abc import Mapping
from typing import Any

import onnx
import onnx_ir as ir
import torch
from onnx_ir.passes.common import ClearMetadataAndDocStringPass, RemoveUnusedNodesPass
from onnxscript import BOOL, FLOAT, INT64, opset20 as op
from onnxscript.optimizer import fold_constants

from ..errors import UserError
from ..hf_layers.check import faults_as_reasons
from ..loading.weights import TensorDict
from .loops import ExportLoop

OPSET = 20  # the first with Gelu
TEXT_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
DIMENSIONS = ("batch", "length")  # of the text inputs
FOLD_LIMIT = 2**40  # bytes; constants of any size are folded


def entropy_terms(probabilities: FLOAT) -> FLOAT:
    """Compute −p·log p of each element, as torch's `entr` does for p ≥ 0, in four operations."""
    tiny = op.Constant(value_float=torch.finfo(torch.float).tiny)
    return op.Mul(op.Neg(probabilities), op.Log(op.Max(probabilities, tiny)))


def attention(
    query: FLOAT, key: FLOAT, value: FLOAT, mask: BOOL, scale: float | None = None
) -> FLOAT:
    """Compute softmax(s·QKᵀ)V, (batch, heads, length, d), in operations that ONNX Runtime fuses.

    mask: (batch, 1, 1 or length, length) bool. A token that sees no other gets 0, as in torch.
    scale: s; by default 1/√d.

    A masked score gets the lowest number added, which takes less time than choosing between two
    scores. OpenVINO would take a mask written as arithmetic, (1 − mask) · lowest, for a
    dequantisation, and move it.
    """
    factor = op.Constant(value_float=query.shape[-1] ** -0.5 if scale is None else scale)
    lowest = op.Constant(value_float=torch.finfo(torch.float).min)
    penalty = op.Where(mask, op.Constant(value_float=0.0), lowest)
    real = op.Cast(mask, to=onnx.TensorProto.FLOAT)
    scores = op.MatMul(op.Mul(query, factor), op.Transpose(key, perm=[0, 1, 3, 2]))
    weights = op.Softmax(op.Add(scores, penalty), axis=-1)
    has_real_tokens = op.ReduceMax(real, op.Constant(value_ints=[-1]), keepdims=1)
    return op.Mul(op.MatMul(weights, value), has_real_tokens)


def contiguous_stride(tensor: FLOAT, dim: int) -> INT64:
    """Compute the step between neighbours along `dim` of a tensor that lies as its shape says.

    The exporter writes a size as a stride where the two are equal.
    """
    return op.ReduceProd(op.Shape(tensor, start=dim + 1), keepdims=0)


# Leaner than torch.onnx's own translations, which provide for cases that do not occur here.
TRANSLATIONS: dict[Any, Any] = {
    torch.ops.aten.special_entr.default: entropy_terms,
    torch.ops.aten.scaled_dot_product_attention.default: attention,
    torch.ops.aten.sym_stride.int: contiguous_stride,
}


@torch.no_grad()
def to_onnx(loop: ExportLoop, metadata: Mapping[str, str], has_defaults: bool = True) -> ir.Model:
    """Export the model with its exit rule, weights included, in one graph.

    Args:
        loop: the model and its mode's loop.
        metadata: texts that are stored in the file, by name.
        has_defaults: whether a caller may leave out the rule's numbers, which then are the model's.

    Raises UserError for transformers' own layers that torch's exporter does not take.
    """
    stored = getattr(loop.model.config, "encoder_config", None)
    onnx_program = translate_general(loop, stored) if stored else translate(loop)
    exported = onnx_program.model
    onnx_program.rename_axes(dict(zip(exported.graph.inputs[0].shape, DIMENSIONS, strict=True)))
    # torch.onnx leaves a constant as large as the fused attention weights to be made at every pass.
    fold_constants(exported, input_size_limit=FOLD_LIMIT, output_size_limit=FOLD_LIMIT)
    RemoveUnusedNodesPass()(exported)
    if has_defaults:
        add_defaults(exported.graph, loop.settings())
    forget_loop_shapes(exported.graph)
    ClearMetadataAndDocStringPass()(exported)  # stack traces with this machine's paths
    exported.metadata_props.update({**metadata, "dtype": json.dumps("fp32")})
    return exported


def translate(loop: ExportLoop) -> Any:
    """Trace the loop and translate it; returns torch's ONNXProgram."""
    longest = loop.model.config.max_position_embeddings
    batch = torch.export.Dim("batch")
    length = torch.export.Dim("length", max=longest)
    settings = loop.settings()
    example_inputs: dict[str, Any] = {
        # Tensors of their own: one tensor given three times would be exported as one input.
        **{name: torch.ones(2, 3, dtype=torch.long) for name in TEXT_INPUTS},
        "own_inputs": {name: torch.rand(2) for name in loop.own_inputs},
        "settings": settings,
    }
    # The dimensions of each input that a caller may choose.
    free_dimensions: dict[str, Any] = {
        **{name: {0: batch, 1: length} for name in TEXT_INPUTS},
        "own_inputs": {name: {0: batch} for name in loop.own_inputs},
        "settings": dict.fromkeys(settings),
    }
    program = torch.export.export(
        loop, args=(), kwargs=example_inputs, dynamic_shapes=free_dimensions, strict=False
    )
    write_out_constants(program.graph_module)
    return torch.onnx.export(
        program,
        dynamo=True,
        opset_version=OPSET,
        input_names=[*TEXT_INPUTS, *loop.own_inputs, *settings],
        output_names=loop.outputs,
        custom_translation_table=TRANSLATIONS,
        verbose=False,
    )


def translate_general(loop: ExportLoop, encoder_config: Mapping[str, Any]) -> Any:
    """Translate a model with transformers' own layers; UserError where that cannot be done."""
    try:
        with faults_as_reasons():
            return translate(loop)
    except UserError as error:
        raise UserError(
            "torch's exporter cannot take the layers of model_type = "
            f"{encoder_config.get('model_type')!r}: {error}. Serve the model in PyTorch, or start "
            "from an encoder that docs/encoders.md lists with ONNX"
        ) from error


def write_out_constants(traced: torch.fx.GraphModule) -> None:
    """Replace numbers that layers turn into tensors by operations that make them.

    `torch.onnx` traces the bodies of loops again, which PyTorch 2.13 cannot with tensors in them.
    """
    bodies = [module for module in traced.modules() if isinstance(module, torch.fx.GraphModule)]
    for body in bodies[1:]:  # the first is the whole
        replaced: set[str] = set()
        for node in body.graph.find_nodes(op="get_attr"):
            name = str(node.target)
            tensor = getattr(body, name)
            if not isinstance(tensor, torch.Tensor) or tensor.dim():
                continue
            replaced.add(name)
            with body.graph.inserting_before(node):
                number = body.graph.call_function(
                    torch.ops.aten.scalar_tensor.default, (tensor.item(),), {"dtype": tensor.dtype}
                )
            node.replace_all_uses_with(number)
            body.graph.erase_node(node)
        for name in replaced:
            delattr(body, name)
        body.recompile()


def add_defaults(graph: ir.Graph, settings: TensorDict) -> None:
    """Give the inputs of the rule's numbers their configured values as defaults."""
    for value in graph.inputs:
        if value.name in settings:
            value.const_value = ir.tensor(settings[value.name].numpy(), name=value.name)
            graph.register_initializer(value)


def forget_loop_shapes(graph: ir.Graph) -> None:
    """Replace the shapes of all values in the loops by their ranks.

    Where ONNX Runtime knows that two states have equal shapes, it fuses their sum and layer norm
    into one operation, which takes four times as long as the two on a CPU (onnxruntime 1.31).
    """
    for node in graph.all_nodes():
        for value in node.outputs:
            if node.graph is not graph and value.shape is not None:
                value.shape = ir.Shape([None] * value.shape.rank())
        if node.op_type == "Loop":
            for value in node.attributes["body"].as_graph().inputs:
                value.shape = ir.Shape([None] * value.shape.rank())
