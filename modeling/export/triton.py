"""A model repository of Triton Inference Server: the graph as Triton can batch it, and its config.

Triton puts requests together along the first dimension of every input and output. Its runtime takes
no optional inputs there, and a scalar cannot be divided among requests: numbers of the rule become
constants, and `layers_run` is left out.
"""

import json
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

MAX_BATCH_SIZE = 32
TYPES = {
    ir.DataType.INT64: "TYPE_INT64",
    ir.DataType.FLOAT: "TYPE_FP32",
}
CONFIG = """\
name: {name}
backend: "onnxruntime"
max_batch_size: {max_batch_size}
input [
{inputs}
]
output [
{outputs}
]
dynamic_batching {{ max_queue_delay_microseconds: 1000 }}
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
"""


def fix_settings(exported: ir.Model, settings: Sequence[str]) -> None:
    """Make constants of the rule's numbers, and leave outputs out that no request has a share of.

    settings: names of the inputs that have defaults; see `to_onnx`.
    """
    graph = exported.graph
    for value in list(graph.inputs):
        if value.name in settings:
            graph.inputs.remove(value)
    for value in list(graph.outputs):
        if value.name in ("layers_run", "layer_logits"):
            graph.outputs.remove(value)
    RemoveUnusedNodesPass()(exported)


def model_config(name: str, exported: ir.Model, label_file: str) -> str:
    """Write the config.pbtxt of a model whose settings are fixed.

    label_file: name of a file with a label on each line, for Triton's own ranking of classes.
    """
    inputs = [tensor_config(value) for value in exported.graph.inputs]
    outputs = []
    for value in exported.graph.outputs:
        labels = f' label_filename: "{label_file}"' if value.name == "logits" else ""
        outputs.append(tensor_config(value, labels))
    return CONFIG.format(
        name=json.dumps(name),
        max_batch_size=MAX_BATCH_SIZE,
        inputs=",\n".join(inputs),
        outputs=",\n".join(outputs),
    )


def tensor_config(value: Any, more: str = "") -> str:
    """Describe an input or output, without its first dimension, which is the batch.

    A number for each example has, in Triton's protocol, a dimension of 1.
    """
    sizes = [size if isinstance(size, int) else -1 for size in value.shape[1:]]
    dims = f"dims: {json.dumps(sizes)}" if sizes else "dims: [ 1 ] reshape: { shape: [ ] }"
    return f"  {{ name: {json.dumps(value.name)} data_type: {TYPES[value.dtype]} {dims}{more} }}"
