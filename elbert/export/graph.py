"""The loop of a model over its layers as an ONNX graph in float32.

`torch.export` and `torch.onnx` translate it. What they leave to be done, so that the file is as
fast as a plain graph, is here.
"""

import json
from typing import Any

import onnx
import onnx_ir as ir
import torch
from onnx_ir.passes.common import ClearMetadataAndDocStringPass, RemoveUnusedNodesPass
from onnxscript import BOOL, FLOAT
from onnxscript import opset20 as op
from onnxscript.optimizer import fold_constants

from .loops import ExportLoop

OPSET = 20  # the first with Gelu
TEXT_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
DIMENSIONS = ("batch", "length")  # of the text inputs
LARGEST = 2**40  # bytes of a constant to fold: all


def entropy_terms(probabilities: FLOAT) -> FLOAT:
    """Compute −p·log p by element, as torch's `entr` does for p ≥ 0, in four operations."""
    tiny = op.Constant(value_float=torch.finfo(torch.float).tiny)
    return op.Mul(op.Neg(probabilities), op.Log(op.Max(probabilities, tiny)))


def attention(query: FLOAT, key: FLOAT, value: FLOAT, mask: BOOL) -> FLOAT:
    """Compute softmax(QKᵀ/√d)V, (batch, heads, length, d), in operations that ONNX Runtime fuses.

    mask: (batch, 1, 1, length). A text without a real token reads 0, as in torch. A score that is
    left out gets the lowest number added, which takes less time than a choice between two scores.
    A mask in arithmetic, (1 - mask) · lowest, is a dequantisation to OpenVINO, which then moves it.
    """
    scale = op.Constant(value_float=query.shape[-1] ** -0.5)
    lowest = op.Constant(value_float=torch.finfo(torch.float).min)
    left_out = op.Where(mask, op.Constant(value_float=0.0), lowest)
    real = op.Cast(mask, to=onnx.TensorProto.FLOAT)
    scores = op.MatMul(op.Mul(query, scale), op.Transpose(key, perm=[0, 1, 3, 2]))
    weights = op.Softmax(op.Add(scores, left_out), axis=-1)
    has_real_tokens = op.ReduceMax(real, op.Constant(value_ints=[-1]), keepdims=1)
    return op.Mul(op.MatMul(weights, value), has_real_tokens)


# Leaner than torch.onnx's own, which provide for what does not occur here.
TRANSLATIONS: dict[Any, Any] = {
    torch.ops.aten.special_entr.default: entropy_terms,
    torch.ops.aten.scaled_dot_product_attention.default: attention,
}


@torch.no_grad()
def to_onnx(loop: ExportLoop, about: dict[str, str], defaults: bool = True) -> ir.Model:
    """Export the model with its exit rule, weights included, in one graph.

    about: its metadata. defaults: may a caller leave out the rule's numbers?
    """
    # Inputs to trace with, and which of their dimensions are free.
    longest = loop.model.config.max_position_embeddings
    text = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=longest)}
    settings = loop.settings()
    inputs: dict[str, Any] = {
        # Tensors of their own: one tensor given three times would be exported as one input.
        **{name: torch.ones(2, 3, dtype=torch.long) for name in TEXT_INPUTS},
        "own": {name: torch.rand(2) for name in loop.own},
        "settings": settings,
    }
    free: dict[str, Any] = {
        **dict.fromkeys(TEXT_INPUTS, text),
        "own": {name: {0: text[0]} for name in loop.own},
        "settings": dict.fromkeys(settings),
    }
    program = torch.export.export(loop, (), kwargs=inputs, dynamic_shapes=free, strict=False)
    onnx_program: Any = torch.onnx.export(
        program,
        dynamo=True,
        opset_version=OPSET,
        input_names=[*TEXT_INPUTS, *loop.own, *settings],
        output_names=loop.outputs,
        custom_translation_table=TRANSLATIONS,
        verbose=False,
    )
    exported = onnx_program.model
    onnx_program.rename_axes(dict(zip(exported.graph.inputs[0].shape, DIMENSIONS, strict=True)))
    # torch.onnx leaves a constant as large as the fused attention weights to be made at every pass.
    fold_constants(exported, input_size_limit=LARGEST, output_size_limit=LARGEST)
    RemoveUnusedNodesPass()(exported)
    for value in exported.graph.inputs:
        if defaults and value.name in settings:
            value.const_value = ir.tensor(settings[value.name].numpy(), name=value.name)
            exported.graph.register_initializer(value)
    forget_loop_shapes(exported.graph)
    ClearMetadataAndDocStringPass()(exported)  # stack traces with this machine's paths
    exported.metadata_props.update({**about, "dtype": json.dumps("fp32")})
    return exported


def forget_loop_shapes(graph: ir.Graph) -> None:
    """Leave only ranks in the loop.

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
