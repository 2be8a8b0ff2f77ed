"""Static 8-bit products in an exported file: scales are constants, fixed by calibration.

A product X·W of the layer pass becomes Dequantize(Quantize(X))·Dequantize(W₈), which runtimes fuse
into one product of whole numbers; so does the pooler's, whose weights every exit check reads. As no
scale depends on the input, an answer depends neither on the batch nor on padding. Exit classifiers,
attention, softmax and norms stay in float32.
"""

import json
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import onnx_ir as ir
import onnxruntime

# Weights have 7 bits. A processor without VNNI adds pairs of products in 16 bits and saturates:
# 2 · 255 · 63 fits, 2 · 255 · 127 does not.
LARGEST_WEIGHT = 63
LARGEST_ACTIVATION = 255

Feed = Mapping[str, np.ndarray]


def loop_bodies(model: ir.Model) -> Iterator[tuple[ir.Node, ir.Graph]]:
    for node in model.graph:
        if node.op_type == "Loop":
            yield node, node.attributes["body"].as_graph()


def split_gemms(graph: ir.Graph, body: ir.Graph, narrowest: int) -> None:
    """Write wide maps X·Wᵀ + b of rows (an exit's pooler) as a product with (in, out) and a sum.

    The rows, (batch, 1, in), have three dimensions: ONNX Runtime would make a Gemm of two, and
    compute it in float32.
    """
    for node in tuple(body):
        if node.op_type != "Gemm" or min(node.inputs[1].shape) < narrowest:
            continue
        rows, weight, *bias = node.inputs  # a bias of zeros is left out
        name, transposed = node.outputs[0].name, weight.const_value.numpy().T
        matrix = constant(graph, f"{name}_matrix", np.ascontiguousarray(transposed))
        axis = constant(graph, f"{name}_axis", np.array([1]))
        parts = [named_node("Unsqueeze", [rows, axis], f"{name}_rows")]
        parts.append(named_node("MatMul", [*parts[-1].outputs, matrix], f"{name}_product"))
        if bias:
            parts.append(named_node("Add", [*parts[-1].outputs, *bias], f"{name}_sum"))
        parts.append(named_node("Squeeze", [*parts[-1].outputs, axis], f"{name}_squeezed"))
        old, new = node.outputs, parts[-1].outputs
        ir.convenience.replace_nodes_and_values(body, node, [node], parts, old, new)
        forget_unused(graph, body, weight)


def forget_unused(graph: ir.Graph, body: ir.Graph, value: ir.Value) -> None:
    """Remove a constant that nothing reads; a computed one, a corrected matrix, is the loop's."""
    if not value.uses():
        owner = graph if value.name in graph.initializers else body
        del owner.initializers[value.name]


def products_by_input(body: ir.Graph, narrowest: int) -> dict[ir.Value, list[ir.Node]]:
    """Find the layer pass's products with constant matrices (in, out), by the input they share.

    narrowest: least size of either dimension; a halting head's product (hidden, 1) is left out.
    """
    found: dict[ir.Value, list[ir.Node]] = {}
    for node in body:
        weight = node.inputs[1].const_value if node.op_type == "MatMul" else None
        if weight is not None and len(weight.shape) == 2 and min(weight.shape) >= narrowest:
            found.setdefault(node.inputs[0], []).append(node)
    return found


def calibrate(model: ir.Model, narrowest: int, feeds: Iterable[Feed]) -> list[np.ndarray]:
    """Run `feeds`; returns the range of every product's input over all layer passes.

    In the order of the graph: (2, channels), the least and the greatest values.

    feeds: inputs of one text each, without padding, with rule settings that run all layers.
    """
    watched = ir.from_proto(ir.to_proto(model))
    ranges, names = [], []
    for loop, body in loop_bodies(watched):
        for value, users in products_by_input(body, narrowest).items():
            names.append(f"watched_{len(names)}")
            copy = named_node("Identity", [value], f"{names[-1]}_in_loop")
            body.append(copy)
            body.outputs.append(copy.outputs[0])
            loop.resize_outputs(len(loop.outputs) + 1)
            loop.outputs[-1].name = names[-1]
            loop.outputs[-1].dtype = copy.outputs[0].dtype = ir.DataType.FLOAT
            watched.graph.outputs.append(loop.outputs[-1])
            ranges.append(np.zeros((2, users[0].inputs[1].const_value.shape[0]), np.float32))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    content = ir.to_proto(watched).SerializeToString()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    for feed in feeds:
        for found, values in zip(ranges, session.run(names, feed), strict=True):
            rows = values.reshape(-1, values.shape[-1])
            np.minimum(found[0], rows.min(0), out=found[0])
            np.maximum(found[1], rows.max(0), out=found[1])
    return ranges


def to_int8(model: ir.Model, narrowest: int, feeds: Iterable[Feed]) -> ir.Model:
    """Quantise the layer passes' products, poolers and word embeddings of an exported model.

    Args:
        model: of `to_onnx`; it is changed and returned.
        narrowest: the model's hidden size.
        feeds: calibration texts, see `calibrate`.
    """
    for _, body in loop_bodies(model):
        split_gemms(model.graph, body, narrowest)
    ranges = iter(calibrate(model, narrowest, feeds))
    for _, body in loop_bodies(model):
        for value, users in products_by_input(body, narrowest).items():
            quantise_products(model.graph, body, value, users, next(ranges))
    quantise_embeddings(model.graph)
    model.metadata_props.update(dtype=json.dumps("int8"), calibration=json.dumps("static"))
    return model


def named_node(op_type: str, inputs: list[ir.Value], output: str, **attributes: int) -> ir.Node:
    """A node whose output has a name that no other value of the file has."""
    return ir.node(op_type, inputs, attributes or None, outputs=[ir.Value(name=output)])


def constant(graph: ir.Graph, name: str, array: np.ndarray) -> ir.Value:
    """Add a constant to the main graph, where the loops see it."""
    value = ir.Value(name=name, const_value=ir.tensor(array, name=name))
    graph.register_initializer(value)
    return value


def quantise_products(
    graph: ir.Graph, body: ir.Graph, value: ir.Value, users: list[ir.Node], found: np.ndarray
) -> None:
    """Smooth and quantise `value` once, and the matrices (in, out) that it is multiplied by.

    s = √(max|X| / max|W|) for every channel: SmoothQuant (Xiao et al., 2023), eq. 4, α = 0.5.
    """
    matrices = [node.inputs[1].const_value.numpy() for node in users]
    inputs = np.maximum(np.maximum(-found[0], found[1]), 1e-5)
    largest = np.maximum(np.abs(np.concatenate(matrices, 1)).max(1), 1e-5)
    ratio = np.sqrt(inputs / largest)
    smoothing = (ratio / np.exp(np.log(ratio).mean())).astype(np.float32)
    lowest, highest = (found[0] / smoothing).min(), (found[1] / smoothing).max()
    scale = np.float32(max(highest - lowest, 1e-6) / LARGEST_ACTIVATION)
    zero = np.uint8(np.clip(round(-lowest / scale), 0, LARGEST_ACTIVATION))
    limits = [
        constant(graph, f"{value.name}_scale", np.asarray(scale)),
        constant(graph, f"{value.name}_zero", np.asarray(zero)),
    ]
    inverse = constant(graph, f"{value.name}_smoothing", 1 / smoothing)
    smooth = named_node("Mul", [value, inverse], f"{value.name}_smooth")
    quantised = named_node("QuantizeLinear", [smooth.outputs[0], *limits], f"{value.name}_int8")
    restored = named_node(
        "DequantizeLinear", [quantised.outputs[0], *limits], f"{value.name}_restored"
    )
    body.insert_before(users[0], [smooth, quantised, restored])
    for node, matrix in zip(users, matrices, strict=True):
        smoothed, exact = matrix * smoothing[:, None], node.inputs[1]
        # A scale for every output channel.
        scale = np.maximum(np.abs(smoothed).max(0), 1e-12).astype(np.float32) / LARGEST_WEIGHT
        name = f"{node.outputs[0].name}_weight"
        parts = [
            constant(graph, f"{name}_int8", np.rint(smoothed / scale).astype(np.int8)),
            constant(graph, f"{name}_scale", scale),
            constant(graph, f"{name}_zero", np.zeros(len(scale), np.int8)),
        ]
        weight = named_node("DequantizeLinear", parts, f"{name}_restored", axis=1)
        body.insert_before(node, [weight])
        node.replace_input_with(0, restored.outputs[0])
        node.replace_input_with(1, weight.outputs[0])
        forget_unused(graph, body, exact)


def quantise_embeddings(graph: ir.Graph) -> None:
    """Keep the word embeddings (vocabulary, width) in 8 bits, with one scale."""
    lookup = next(
        n for n in graph if n.op_type == "Gather" and "word_embeddings" in n.inputs[0].name
    )
    table = lookup.inputs[0]
    values = table.const_value.numpy()
    scale = np.float32(np.abs(values).max() / 127)
    whole = np.rint(values / scale).astype(np.int8)
    lookup.replace_input_with(0, constant(graph, f"{table.name}_int8", whole))
    lookup.outputs[0].dtype = ir.DataType.INT8
    limits = [lookup.outputs[0], constant(graph, f"{table.name}_scale", np.asarray(scale))]
    restored = named_node("DequantizeLinear", limits, f"{table.name}_restored")
    graph.insert_after(lookup, [restored])
    for user, index in tuple(lookup.outputs[0].uses()):
        if user is not restored:
            user.replace_input_with(index, restored.outputs[0])
    del graph.initializers[table.name]
