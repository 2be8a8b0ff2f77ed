"""Quantise an ONNX file: static 8-bit products, whose scales are constants of a calibration.

A product X·W of the layer pass becomes Dequantize(Quantize(X))·Dequantize(W₈), which runtimes fuse
into one product of whole numbers; so does the pooler's, whose weights every exit check reads. As no
scale depends on the input, an answer depends neither on the batch nor on padding. Exit classifiers,
attention, softmax and norms stay in float32.

Shapes of matrices are (in, out). SmoothQuant (Xiao et al., 2023) is the source of the smoothing.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import onnx_ir as ir
import onnxruntime

# Weights have 7 bits. A processor without VNNI adds pairs of products in 16 bits and saturates:
# 2 · 255 · 63 fits, 2 · 255 · 127 does not.
LARGEST_WEIGHT = 63
LARGEST_ACTIVATION = 255

Feed = Mapping[str, np.ndarray]  # a file's inputs by name


class InputRange(NamedTuple):
    """The range of a product's input over all texts and layer passes, for each channel."""

    lowest: np.ndarray  # (channels,) float32, at most 0
    highest: np.ndarray  # (channels,) float32, at least 0


def to_int8(model: ir.Model, narrowest: int, feeds: Iterable[Feed]) -> ir.Model:
    """Quantise the layer passes' products, poolers and word embeddings of an exported model.

    Args:
        model: of `to_onnx`; it is changed and returned.
        narrowest: the model's hidden size, see `products_by_input`.
        feeds: calibration texts, see `calibrate`.
    """
    for _, body in loop_bodies(model):
        split_gemms(model.graph, body, narrowest)
    ranges = iter(calibrate(model, narrowest, feeds))
    for _, body in loop_bodies(model):
        for value, products in products_by_input(body, narrowest).items():
            quantise_products(model.graph, body, value, products, next(ranges))
    quantise_embeddings(model.graph)
    model.metadata_props.update(dtype=json.dumps("int8"), calibration=json.dumps("static"))
    return model


def loop_bodies(model: ir.Model) -> Iterator[tuple[ir.Node, ir.Graph]]:
    """Yield each loop over layers, and the graph that it repeats."""
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
        name = node.outputs[0].name
        transposed = weight.const_value.numpy().T
        matrix = constant(graph, f"{name}_matrix", np.ascontiguousarray(transposed))
        axis = constant(graph, f"{name}_axis", np.array([1]))
        new_nodes = [named_node("Unsqueeze", [rows, axis], f"{name}_rows")]
        new_nodes.append(named_node("MatMul", [output_of(new_nodes), matrix], f"{name}_product"))
        if bias:
            new_nodes.append(named_node("Add", [output_of(new_nodes), *bias], f"{name}_sum"))
        new_nodes.append(named_node("Squeeze", [output_of(new_nodes), axis], f"{name}_squeezed"))
        ir.convenience.replace_nodes_and_values(
            body,
            insertion_point=node,
            old_nodes=[node],
            new_nodes=new_nodes,
            old_values=node.outputs,
            new_values=new_nodes[-1].outputs,
        )
        forget_unused(graph, body, weight)


def output_of(nodes: list[ir.Node]) -> ir.Value:
    """Return the output of the last of a chain of nodes."""
    return nodes[-1].outputs[0]


def forget_unused(graph: ir.Graph, body: ir.Graph, value: ir.Value) -> None:
    """Remove a constant that no node reads any more.

    It is the main graph's, or the loop's where it was computed, as a corrected matrix is.
    """
    if not value.uses():
        owner = graph if value.name in graph.initializers else body
        del owner.initializers[value.name]


def products_by_input(body: ir.Graph, narrowest: int) -> dict[ir.Value, list[ir.Node]]:
    """Find the layer pass's products with constant matrices (in, out), by the input they share.

    A product of constants alone, as of DeBERTa's relative positions, is left out: ONNX Runtime
    computes it once, when it opens the file.

    narrowest: least size of either dimension; a halting head's product, (hidden, 1), is left out.
    """
    products: dict[ir.Value, list[ir.Node]] = {}
    for node in body:
        if node.op_type != "MatMul" or is_constant(node.inputs[0]):
            continue
        matrix = node.inputs[1].const_value
        if matrix is not None and len(matrix.shape) == 2 and min(matrix.shape) >= narrowest:
            products.setdefault(node.inputs[0], []).append(node)
    return products


def is_constant(value: ir.Value) -> bool:
    """Tell whether a value follows from constants alone."""
    if value.const_value is not None:
        return True
    node = value.producer()
    return node is not None and all(x is None or is_constant(x) for x in node.inputs)


def calibrate(model: ir.Model, narrowest: int, feeds: Iterable[Feed]) -> list[InputRange]:
    """Run texts, and return the range of every product's input, in the order of the graph.

    Args:
        model: of `to_onnx`; a copy of it is run.
        narrowest: the model's hidden size, see `products_by_input`.
        feeds: inputs of one text each, without padding.
    """
    watched = ir.from_proto(ir.to_proto(model))
    names = []
    ranges = []
    for loop, body in loop_bodies(watched):
        run_all_layers(loop, body)
        for value, products in products_by_input(body, narrowest).items():
            name = f"watched_{len(names)}"
            add_loop_output(watched.graph, loop, body, value, name)
            names.append(name)
            channels = products[0].inputs[1].const_value.shape[0]
            zeros = np.zeros(channels, np.float32)
            ranges.append(InputRange(lowest=zeros, highest=zeros.copy()))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    content = ir.to_proto(watched).SerializeToString()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    for feed in feeds:
        for input_range, values in zip(ranges, session.run(names, feed), strict=True):
            rows = values.reshape(-1, values.shape[-1])  # (layers · tokens, channels)
            np.minimum(input_range.lowest, rows.min(0), out=input_range.lowest)
            np.maximum(input_range.highest, rows.max(0), out=input_range.highest)
    return ranges


def run_all_layers(loop: ir.Node, body: ir.Graph) -> None:
    """Let a loop go on to its last layer, also where all examples have exited.

    No setting of a rule promises that: `optimal_stopping` may exit at the first layer even where
    computation is free. A loop goes on while any example is active *and* a layer is left
    (`is_unfinished`); the second part stays.
    """
    # Both conditions are And(any example active, layer < end): the second input is taken alone.
    before_the_loop = loop.inputs[1].producer()
    loop.replace_input_with(1, before_the_loop.inputs[1])
    after_a_layer = body.outputs[0].producer()
    body.outputs[0] = after_a_layer.inputs[1]


def add_loop_output(
    graph: ir.Graph, loop: ir.Node, body: ir.Graph, value: ir.Value, name: str
) -> None:
    """Make a value within a loop an output of the file: its value in all passes, stacked."""
    # A loop's outputs beyond the values that it carries are stacked over its passes: (layers, …).
    # The copy has a name and a type of its own; the value itself stays as its readers know it.
    copy = named_node("Identity", [value], f"{name}_in_loop")
    body.append(copy)
    in_loop = copy.outputs[0]
    in_loop.dtype = ir.DataType.FLOAT
    body.outputs.append(in_loop)
    loop.resize_outputs(len(loop.outputs) + 1)
    stacked = loop.outputs[-1]
    stacked.name = name
    stacked.dtype = ir.DataType.FLOAT
    graph.outputs.append(stacked)


def named_node(op_type: str, inputs: list[ir.Value], output: str, **attributes: int) -> ir.Node:
    """Make a node whose output has a name that no other value of the file has."""
    return ir.node(op_type, inputs, attributes or None, outputs=[ir.Value(name=output)])


def constant(graph: ir.Graph, name: str, array: np.ndarray) -> ir.Value:
    """Add a constant to the main graph, where the loops see it."""
    value = ir.Value(name=name, const_value=ir.tensor(array, name=name))
    graph.register_initializer(value)
    return value


def quantise_products(
    graph: ir.Graph,
    body: ir.Graph,
    value: ir.Value,
    products: list[ir.Node],
    input_range: InputRange,
) -> None:
    """Smooth and quantise `value` once, and the matrices (in, out) that it is multiplied by."""
    # Products of one input (queries, keys and values) share its scale, so that it is quantised
    # once: the factors are of all their matrices side by side, (in, sum of out).
    matrices = [node.inputs[1].const_value.numpy() for node in products]
    smoothing = smoothing_factors(input_range, np.concatenate(matrices, axis=1))  # (in,)
    restored = quantise_input(graph, body, value, products[0], input_range, smoothing)
    for node, matrix in zip(products, matrices, strict=True):
        exact_weight = node.inputs[1]
        name = f"{node.outputs[0].name}_weight"
        weight = quantise_matrix(graph, name, matrix * smoothing[:, None])
        body.insert_before(node, [weight])
        node.replace_input_with(0, restored)
        node.replace_input_with(1, weight.outputs[0])
        forget_unused(graph, body, exact_weight)


def smoothing_factors(input_range: InputRange, matrix: np.ndarray) -> np.ndarray:
    """Compute SmoothQuant's factor of each input channel, (in,), for a matrix (in, out).

    s = √(max|X| / max|W|): Xiao et al. (2023), eq. 4, with α = 0.5. The input is divided by s, and
    the matrix's rows are multiplied by it. Here the factors are divided by their geometric mean.
    """
    largest_inputs = np.maximum(np.maximum(-input_range.lowest, input_range.highest), 1e-5)
    largest_weights = np.maximum(np.abs(matrix).max(1), 1e-5)
    factors = np.sqrt(largest_inputs / largest_weights)
    geometric_mean = np.exp(np.log(factors).mean())
    return (factors / geometric_mean).astype(np.float32)


def quantise_input(
    graph: ir.Graph,
    body: ir.Graph,
    value: ir.Value,
    first_product: ir.Node,
    input_range: InputRange,
    smoothing: np.ndarray,
) -> ir.Value:
    """Smooth the input of products, and quantise it with one scale; returns the restored value."""
    # One scale for all channels, as a fused product needs: a channel's own could not be taken out
    # of the sum over channels. Smoothing has made the channels alike, so little is lost. The range
    # holds 0 (`InputRange`), which the zero point stands for exactly.
    lowest = (input_range.lowest / smoothing).min()
    highest = (input_range.highest / smoothing).max()
    scale = np.float32(max(highest - lowest, 1e-6) / LARGEST_ACTIVATION)
    zero_point = np.uint8(np.clip(round(-lowest / scale), 0, LARGEST_ACTIVATION))
    scaling = [
        constant(graph, f"{value.name}_scale", np.asarray(scale)),
        constant(graph, f"{value.name}_zero", np.asarray(zero_point)),
    ]
    inverse = constant(graph, f"{value.name}_smoothing", 1 / smoothing)
    smooth = named_node("Mul", [value, inverse], f"{value.name}_smooth")
    quantised = named_node("QuantizeLinear", [smooth.outputs[0], *scaling], f"{value.name}_int8")
    restored = named_node(
        "DequantizeLinear", [quantised.outputs[0], *scaling], f"{value.name}_restored"
    )
    body.insert_before(first_product, [smooth, quantised, restored])
    return restored.outputs[0]


def quantise_matrix(graph: ir.Graph, name: str, matrix: np.ndarray) -> ir.Node:
    """Store a matrix (in, out) in 7 bits, with a scale for every output channel.

    Returns the node that restores it, which is not yet in a graph.
    """
    # A scale for each output channel can be taken out of the sum over inputs, so it costs nothing.
    # Weights lie around 0, so their zero point is 0.
    scale = np.maximum(np.abs(matrix).max(0), 1e-12).astype(np.float32) / LARGEST_WEIGHT  # (out,)
    stored = [
        constant(graph, f"{name}_int8", np.rint(matrix / scale).astype(np.int8)),
        constant(graph, f"{name}_scale", scale),
        constant(graph, f"{name}_zero", np.zeros(len(scale), np.int8)),
    ]
    return named_node("DequantizeLinear", stored, f"{name}_restored", axis=1)


def quantise_embeddings(graph: ir.Graph) -> None:
    """Store the word embeddings (vocabulary, width) in 8 bits, with one scale."""
    lookup = word_lookup(graph)
    table = lookup.inputs[0]
    values = table.const_value.numpy()
    scale = np.float32(np.abs(values).max() / 127)
    stored = np.rint(values / scale).astype(np.int8)
    lookup.replace_input_with(0, constant(graph, f"{table.name}_int8", stored))
    rows = lookup.outputs[0]
    rows.dtype = ir.DataType.INT8
    scale_value = constant(graph, f"{table.name}_scale", np.asarray(scale))
    restored = named_node("DequantizeLinear", [rows, scale_value], f"{table.name}_restored")
    graph.insert_after(lookup, [restored])
    for user, index in tuple(rows.uses()):
        if user is not restored:
            user.replace_input_with(index, restored.outputs[0])
    # The float32 table goes: it is most of a small model's file.
    del graph.initializers[table.name]


def word_lookup(graph: ir.Graph) -> ir.Node:
    """Find the node that looks up the words' embeddings."""
    for node in graph:
        if node.op_type == "Gather" and node.inputs[1].name == "input_ids":
            return node
    raise ValueError("the graph looks up no word embeddings")
