"""Static 8-bit products in an exported file: scales are constants, fixed by calibration.

A product X·W of the layer pass becomes Dequantize(Quantize(X))·Dequantize(W₈), which runtimes fuse
into one product of whole numbers. As no scale depends on the input, an answer depends neither on
the batch nor on padding. Exit classifiers, attention, softmax and norms stay in float32.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
import onnxruntime

# Weights have 7 bits. A processor without VNNI adds pairs of products in 16 bits and saturates:
# 2 · 255 · 63 fits, 2 · 255 · 127 does not.
LARGEST_WEIGHT = 63
LARGEST_ACTIVATION = 255
DAMPING = 0.01  # of the Gram matrix's mean diagonal: GPTQ's own
BLOCK = 128  # columns whose errors are spread together

Feed = Mapping[str, np.ndarray]


@dataclass
class Activation:
    """The input X of some products, over all calibration tokens and layer passes."""

    width: int
    lowest: float = 0.0
    highest: float = 0.0

    def __post_init__(self) -> None:
        self.gram = np.zeros((self.width, self.width), np.float32)  # XᵀX

    def add(self, values: np.ndarray) -> None:
        """Count values (…, width) in."""
        rows = values.reshape(-1, self.width)
        self.lowest = min(self.lowest, float(rows.min(initial=0)))
        self.highest = max(self.highest, float(rows.max(initial=0)))
        self.gram += rows.T @ rows

    @property
    def scale(self) -> np.float32:
        return np.float32(max(self.highest - self.lowest, 1e-6) / LARGEST_ACTIVATION)

    @property
    def zero_point(self) -> np.uint8:
        return np.uint8(np.clip(round(-self.lowest / self.scale), 0, LARGEST_ACTIVATION))


def loop_bodies(model: ir.Model) -> Iterator[tuple[ir.Node, ir.Graph]]:
    for node in model.graph:
        if node.op_type == "Loop":
            yield node, node.attributes["body"].as_graph()


def products_by_input(body: ir.Graph, narrowest: int) -> dict[ir.Value, list[ir.Node]]:
    """Find the layer pass's products with constant matrices (in, out), by the input they share.

    narrowest: least size of either dimension; a halting head's product (hidden, 1) is left out.
    """
    found: dict[ir.Value, list[ir.Node]] = {}
    for node in body:
        if node.op_type == "MatMul" and (weight := node.inputs[1].const_value) is not None:
            if len(weight.shape) == 2 and min(weight.shape) >= narrowest:
                found.setdefault(node.inputs[0], []).append(node)
    return found


def calibrate(model: ir.Model, narrowest: int, feeds: Iterable[Feed]) -> list[Activation]:
    """Run `feeds` and measure every product's input, in the order of the graph.

    feeds: inputs of one text each, without padding, with rule settings that run all layers.
    """
    watched, activations, names = ir.from_proto(ir.to_proto(model)), [], []
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
            activations.append(Activation(users[0].inputs[1].const_value.shape[0]))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    content = ir.to_proto(watched).SerializeToString()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    for feed in feeds:
        for activation, values in zip(activations, session.run(names, feed), strict=True):
            activation.add(values)
    return activations


def round_weight(weight: np.ndarray, gram: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Round a matrix (in, out) to 7 bits so that X·W changes least.

    Each row's rounding error is made up for by the rows after it (GPTQ, Frantar et al., 2023).

    Returns the whole numbers (in, out) int8, and a scale for every output channel (out,).
    """
    weight, size = weight.astype(np.float64), len(weight)
    scale = np.maximum(np.abs(weight).max(0), 1e-12) / LARGEST_WEIGHT
    damped = gram + np.eye(size) * (DAMPING * np.diag(gram).mean() + 1e-12)
    spread = np.linalg.cholesky(np.linalg.inv(damped)).T
    rounded = np.empty(weight.shape, np.int8)
    for begin in range(0, size, BLOCK):
        end = min(begin + BLOCK, size)
        errors = np.empty((end - begin, weight.shape[1]))
        for i in range(begin, end):
            whole = np.clip(np.rint(weight[i] / scale), -LARGEST_WEIGHT, LARGEST_WEIGHT)
            rounded[i] = whole
            errors[i - begin] = (weight[i] - whole * scale) / spread[i, i]
            weight[i + 1 : end] -= np.outer(spread[i, i + 1 : end], errors[i - begin])
        weight[end:] -= spread[begin:end, end:].T @ errors
    return rounded, scale.astype(np.float32)


def to_int8(model: ir.Model, narrowest: int, feeds: Iterable[Feed]) -> ir.Model:
    """Quantise the layer passes' products and the word embeddings of an exported model.

    Args:
        model: of `to_onnx`; it is changed and returned.
        narrowest: the model's hidden size.
        feeds: calibration texts, see `calibrate`.
    """
    activations = iter(calibrate(model, narrowest, feeds))
    for _, body in loop_bodies(model):
        for value, users in products_by_input(body, narrowest).items():
            quantise_products(model.graph, body, value, users, next(activations))
    quantise_embeddings(model.graph)
    model.metadata_props["dtype"] = json.dumps("int8")
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
    graph: ir.Graph, body: ir.Graph, value: ir.Value, users: list[ir.Node], seen: Activation
) -> None:
    """Quantise `value` once, and the matrices that it is multiplied by."""
    limits = [
        constant(graph, f"{value.name}_scale", np.asarray(seen.scale)),
        constant(graph, f"{value.name}_zero", np.asarray(seen.zero_point)),
    ]
    quantised = named_node("QuantizeLinear", [value, *limits], f"{value.name}_int8")
    restored = named_node(
        "DequantizeLinear", [quantised.outputs[0], *limits], f"{value.name}_restored"
    )
    body.insert_before(users[0], [quantised, restored])
    for node in users:
        weight, name = node.inputs[1], f"{node.outputs[0].name}_weight"
        whole, scale = round_weight(weight.const_value.numpy(), seen.gram)
        parts = [
            constant(graph, f"{name}_int8", whole),
            constant(graph, f"{name}_scale", scale),
            constant(graph, f"{name}_zero", np.zeros(len(scale), np.int8)),
        ]
        matrix = named_node("DequantizeLinear", parts, f"{name}_restored", axis=1)
        body.insert_before(node, [matrix])
        node.replace_input_with(0, restored.outputs[0])
        node.replace_input_with(1, matrix.outputs[0])
        if not weight.uses():
            del graph.initializers[weight.name]


def quantise_embeddings(graph: ir.Graph) -> None:
    """Keep the word embeddings (vocabulary, width) in 8 bits, with one scale."""
    lookup = next(n for n in graph if n.op_type == "Gather" and "word_embeddings" in n.inputs[0].name)
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
