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
# SmoothQuant's α: how much of the range of an input's channels is moved into the weights.
EXPONENTS = (0.5, 0.6, 0.7, 0.8, 0.9)
ROWS_A_TEXT = 3  # on which α is chosen

Feed = Mapping[str, np.ndarray]  # a file's inputs by name


class InputSample(NamedTuple):
    """A product's input over all texts and layer passes: each channel's range, and some rows."""

    lowest: np.ndarray  # (channels,) float32, at most 0
    highest: np.ndarray  # (channels,) float32, at least 0
    rows: list[np.ndarray]  # of each text (up to ROWS_A_TEXT, channels) float32


def to_int8(model: ir.Model, narrowest: int, feeds: Iterable[Feed]) -> ir.Model:
    """Quantise the layer passes' products, poolers and word embeddings of an exported model.

    Args:
        model: of `to_onnx`; it is changed and returned.
        narrowest: the model's hidden size, see `products_by_input`.
        feeds: calibration texts, see `calibrate`.
    """
    for _, body in loop_bodies(model):
        split_gemms(model.graph, body, narrowest)
    samples = iter(calibrate(model, narrowest, feeds))
    for _, body in loop_bodies(model):
        for value, products in products_by_input(body, narrowest).items():
            quantise_products(model.graph, body, value, products, next(samples))
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


def calibrate(model: ir.Model, narrowest: int, feeds: Iterable[Feed]) -> list[InputSample]:
    """Run texts, and return a sample of every product's input, in the order of the graph.

    Args:
        model: of `to_onnx`; a copy of it is run.
        narrowest: the model's hidden size, see `products_by_input`.
        feeds: inputs of one text each, without padding.
    """
    watched = ir.from_proto(ir.to_proto(model))
    names = []
    samples = []
    for loop, body in loop_bodies(watched):
        run_all_layers(loop, body)
        for value, products in products_by_input(body, narrowest).items():
            name = f"watched_{len(names)}"
            add_loop_output(watched.graph, loop, body, value, name)
            names.append(name)
            channels = products[0].inputs[1].const_value.shape[0]
            zeros = np.zeros(channels, np.float32)
            samples.append(InputSample(lowest=zeros, highest=zeros.copy(), rows=[]))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    content = ir.to_proto(watched).SerializeToString()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    generator = np.random.default_rng(0)
    for feed in feeds:
        for sample, values in zip(samples, session.run(names, feed), strict=True):
            rows = values.reshape(-1, values.shape[-1])  # (layers · tokens, channels)
            np.minimum(sample.lowest, rows.min(0), out=sample.lowest)
            np.maximum(sample.highest, rows.max(0), out=sample.highest)
            some = min(ROWS_A_TEXT, len(rows))
            sample.rows.append(rows[generator.choice(len(rows), some, replace=False)])
    return samples


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


class Scale(NamedTuple):
    """How whole numbers stand for a product's input: x ≈ smoothing · step · (integer − zero)."""

    smoothing: np.ndarray  # (channels,) float32
    step: np.float32
    zero: np.uint8

    def rounded(self, rows: np.ndarray) -> np.ndarray:
        """Return rows (rows, channels) as the file sees them."""
        integers = np.rint(rows / self.smoothing / self.step) + np.float32(self.zero)
        integers = integers.clip(0, LARGEST_ACTIVATION)
        return (integers - np.float32(self.zero)) * self.step * self.smoothing


def quantise_products(
    graph: ir.Graph,
    body: ir.Graph,
    value: ir.Value,
    products: list[ir.Node],
    sample: InputSample,
) -> None:
    """Smooth and quantise `value` once, and the matrices (in, out) that it is multiplied by."""
    # Products of one input (queries, keys and values) share its scale, so that it is quantised
    # once: the factors are of all their matrices side by side, (in, sum of out).
    matrices = [node.inputs[1].const_value.numpy() for node in products]
    scale = choose_scale(sample, np.concatenate(matrices, axis=1))
    restored = quantise_input(graph, body, value, products[0], scale)
    for node, matrix in zip(products, matrices, strict=True):
        exact_weight = node.inputs[1]
        name = f"{node.outputs[0].name}_weight"
        weight = store_weights(graph, name, matrix * scale.smoothing[:, None])
        body.insert_before(node, [weight])
        node.replace_input_with(0, restored)
        node.replace_input_with(1, weight.outputs[0])
        forget_unused(graph, body, exact_weight)


def choose_scale(sample: InputSample, matrix: np.ndarray) -> Scale:
    """Choose the exponent of the smoothing by the product's error on the sample's rows.

    Some networks answer a few channels with values that are a hundred times those of the others,
    as MPNet does after its activation. With α = 0.5, the numbers of ordinary words then round to
    a few steps. What is minimised is each row's error in proportion to the row's own product: in
    absolute terms, the few rows with large values would hide all others.

    matrix: (in, out).
    """
    rows = np.concatenate(sample.rows)
    exact = rows @ matrix
    sizes = np.maximum(np.square(exact).sum(1), 1e-12)

    def error(scale: Scale) -> float:
        smoothed = matrix * scale.smoothing[:, None]
        integers, steps = round_weights(smoothed)
        weights = integers * steps / scale.smoothing[:, None]
        rounded = scale.rounded(rows) @ weights
        return float((np.square(rounded - exact).sum(1) / sizes).mean())

    scales = [scale_of(sample, smoothing_factors(sample, matrix, alpha)) for alpha in EXPONENTS]
    return min(scales, key=error)


def smoothing_factors(sample: InputSample, matrix: np.ndarray, alpha: float) -> np.ndarray:
    """Compute SmoothQuant's factor of each input channel, (in,), for a matrix (in, out).

    s = max|X|^α / max|W|^(1 − α): Xiao et al. (2023), eq. 4. The input is divided by s, and the
    matrix's rows are multiplied by it. Here the factors are divided by their geometric mean.
    """
    largest_inputs = np.maximum(np.maximum(-sample.lowest, sample.highest), 1e-5)
    largest_weights = np.maximum(np.abs(matrix).max(1), 1e-5)
    factors = largest_inputs**alpha / largest_weights ** (1 - alpha)
    geometric_mean = np.exp(np.log(factors).mean())
    return (factors / geometric_mean).astype(np.float32)


def scale_of(sample: InputSample, smoothing: np.ndarray) -> Scale:
    """Find the one scale of all channels, for their ranges after smoothing."""
    # One scale for all channels, as a fused product needs: a channel's own could not be taken out
    # of the sum over channels. Smoothing has made the channels alike, so little is lost. The range
    # holds 0 (`InputSample`), which the zero point stands for exactly.
    lowest = (sample.lowest / smoothing).min()
    highest = (sample.highest / smoothing).max()
    step = np.float32(max(highest - lowest, 1e-6) / LARGEST_ACTIVATION)
    zero = np.uint8(np.clip(round(-lowest / step), 0, LARGEST_ACTIVATION))
    return Scale(smoothing, step, zero)


def quantise_input(
    graph: ir.Graph, body: ir.Graph, value: ir.Value, first_product: ir.Node, scale: Scale
) -> ir.Value:
    """Smooth the input of products, and quantise it with one scale; returns the restored value."""
    scaling = [
        constant(graph, f"{value.name}_scale", np.asarray(scale.step)),
        constant(graph, f"{value.name}_zero", np.asarray(scale.zero)),
    ]
    inverse = constant(graph, f"{value.name}_smoothing", 1 / scale.smoothing)
    smooth = named_node("Mul", [value, inverse], f"{value.name}_smooth")
    quantised = named_node("QuantizeLinear", [smooth.outputs[0], *scaling], f"{value.name}_int8")
    restored = named_node(
        "DequantizeLinear", [quantised.outputs[0], *scaling], f"{value.name}_restored"
    )
    body.insert_before(first_product, [smooth, quantised, restored])
    return restored.outputs[0]


def round_weights(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Round a matrix (in, out) to 7 bits: the integers, and the scale of every output channel."""
    # A scale for each output channel can be taken out of the sum over inputs, so it costs nothing.
    scale = np.maximum(np.abs(matrix).max(0), 1e-12).astype(np.float32) / LARGEST_WEIGHT  # (out,)
    return np.rint(matrix / scale).astype(np.int8), scale


def store_weights(graph: ir.Graph, name: str, matrix: np.ndarray) -> ir.Node:
    """Store a matrix (in, out) in 7 bits, with a scale for every output channel.

    Returns the node that restores it, which is not yet in a graph.
    """
    # Weights lie around 0, so their zero point is 0.
    integers, scale = round_weights(matrix)
    stored = [
        constant(graph, f"{name}_int8", integers),
        constant(graph, f"{name}_scale", scale),
        constant(graph, f"{name}_zero", np.zeros(len(scale), np.int8)),
    ]
    return named_node("DequantizeLinear", stored, f"{name}_restored", axis=1)


def quantise_embeddings(graph: ir.Graph) -> None:
    """Store the word embeddings (vocabulary, width) in 8 bits, with a scale for every word."""
    lookup = word_lookup(graph)
    table, ids = lookup.inputs
    values = table.const_value.numpy()
    scale = np.maximum(np.abs(values).max(1, keepdims=True), 1e-12) / np.float32(127)
    stored = np.rint(values / scale).astype(np.int8)
    lookup.replace_input_with(0, constant(graph, f"{table.name}_int8", stored))
    rows = lookup.outputs[0]
    rows.dtype = ir.DataType.INT8
    scales = constant(graph, f"{table.name}_scale", scale)  # (vocabulary, 1)
    cast = named_node("Cast", [rows], f"{table.name}_integers", to=ir.DataType.FLOAT.value)
    lookup_of_scales = named_node("Gather", [scales, ids], f"{table.name}_scales")
    factors = [cast.outputs[0], lookup_of_scales.outputs[0]]  # (batch, length, width), (…, 1)
    restored = named_node("Mul", factors, f"{table.name}_restored")
    graph.insert_after(lookup, [cast, lookup_of_scales, restored])
    for user, index in tuple(rows.uses()):
        if user is not cast:
            user.replace_input_with(index, restored.outputs[0])
    # The float32 table goes: it is most of a small model's file.
    del graph.initializers[table.name]


def word_lookup(graph: ir.Graph) -> ir.Node:
    """Find the node that looks up the words' embeddings."""
    for node in graph:
        if node.op_type == "Gather" and node.inputs[1].name == "input_ids":
            return node
    raise ValueError("the graph looks up no word embeddings")
