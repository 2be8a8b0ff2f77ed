"""ONNX Runtime and OpenVINO, which a user on CPUs would pick instead, and our ONNX file there.

Needs requirements/bench.txt. All have as many threads as torch has. Each runtime's own tool makes
an int8 graph of the plain model: ONNX Runtime's quantize_dynamic and OpenVINO's NNCF.
"""

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from benchmarks.contenders import BASE, FORCED, NEVER, ForcedExits, padded
from elbert.onnx_file import open_session
from modeling import ElbertConfig
from modeling.depth import layer_states
from modeling.encoder import attention_mask_of
from modeling.export.loops import DepthLoop, ExportLoop

Feed = dict[str, np.ndarray]
Run = Callable[[Sequence[str], Feed], Sequence[np.ndarray]]  # of a session


class PlainGraph(ExportLoop):
    """The first layers one after the other and one exit: what exporters make of ALBERT or BERT."""

    outputs = ("logits",)
    keys: ClassVar = {}
    layers: int

    def forward(self, input_ids, attention_mask, token_type_ids, own_inputs, settings):
        model, mask = self.model, attention_mask_of(attention_mask)
        hidden = model.embed(input_ids, token_type_ids)
        *_, hidden = itertools.islice(layer_states(model, hidden, mask), self.layers)
        state = model.start(model.config.exit_rule(), input_ids.shape[0], own_inputs)
        seen, _ = model.layer_output(hidden, mask, model.layer_weights(self.layers - 1), state)
        return (seen.logits,)


def write_plain(model, layers: int, path: Path, int8_path: Path) -> None:
    """Write the first layers as a plain graph, in float32 and, by ONNX Runtime's tool, in int8."""
    import onnx
    import onnx_ir
    from onnxruntime.quantization import quantize_dynamic

    from modeling.export.graph import to_onnx

    graph = PlainGraph(model)
    graph.layers = layers
    onnx_ir.save(to_onnx(graph, {}), path)
    plain = onnx.load(path)
    del plain.graph.value_info[:]  # the tool stops at shapes that it infers otherwise
    quantize_dynamic(plain, int8_path, per_channel=True, reduce_range=True)


def write_files(folder: Path, base: Mapping = BASE) -> None:
    """Write plain.onnx and loop.onnx, with random weights, both with -int8, and plain-int8.xml."""
    import nncf
    import onnx_ir
    import openvino

    from modeling.export.graph import to_onnx
    from modeling.export.quantise import to_int8

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    torch.manual_seed(0)
    config = ElbertConfig(**{**base, **NEVER, "cnt_thres": base["num_hidden_layers"]})
    model = ForcedExits(config).eval()
    write_plain(model, config.num_hidden_layers, folder / "plain.onnx", folder / "plain-int8.onnx")
    exported = to_onnx(DepthLoop(model, ["target"]), {})
    onnx_ir.save(exported, folder / "loop.onnx")
    rng = np.random.default_rng(0)
    sizes = [(1, length) for length in (8, 16, 32)]  # of what scales are taken from
    feeds = [feed_of(rng.integers(5, config.vocab_size, size).tolist()) for size in sizes]
    every = {"target": np.full(1, config.num_hidden_layers, np.float32)}
    ours = to_int8(exported, config.hidden_size, [feed | every for feed in feeds])
    onnx_ir.save(ours, folder / "loop-int8.onnx")
    plain, data = openvino.Core().read_model(folder / "plain.onnx"), nncf.Dataset(feeds)
    quantised = nncf.quantize(plain, data, model_type=nncf.ModelType.TRANSFORMER)
    openvino.save_model(quantised, folder / "plain-int8.xml")


def in_onnxruntime(path: Path) -> Run:
    """Load a file, without a fusion that slows plain graphs by a tenth."""
    return open_session(str(path), disabled_optimizers=["SkipLayerNormFusion"]).run


def in_openvino(path: Path) -> Run:
    """Load a file; products as it has them, or as NNCF made them."""
    import openvino

    options = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "PERFORMANCE_HINT": "LATENCY"}
    if path.suffix == ".onnx":
        options["INFERENCE_PRECISION_HINT"] = "f32"
    compiled = openvino.Core().compile_model(path, "CPU", options)
    inputs = set()  # unused ones are dropped
    for port in compiled.inputs:
        inputs |= port.names

    def run(outputs: Sequence[str], feed: Feed) -> list[np.ndarray]:
        arrays = compiled({name: array for name, array in feed.items() if name in inputs})
        return [arrays[name] for name in outputs]

    return run


# The table's rows: the file that each runs, and what loads it from where.
ROWS: dict[str, tuple[str, Callable[[Path], Run]]] = {
    "ONNX Runtime fp32": ("plain.onnx", in_onnxruntime),
    "ONNX Runtime int8": ("plain-int8.onnx", in_onnxruntime),
    "OpenVINO int8 (NNCF)": ("plain-int8.xml", in_openvino),
    "our file, ONNX Runtime fp32": ("loop.onnx", in_onnxruntime),
    "our file, ONNX Runtime int8": ("loop-int8.onnx", in_onnxruntime),
    "our file, OpenVINO int8": ("loop-int8.onnx", in_openvino),
}


def feed_of(texts: list[list[int]]) -> Feed:
    feed = {name: tensor.cpu().numpy() for name, tensor in padded(texts).items()}
    return feed | {"token_type_ids": np.zeros_like(feed["input_ids"])}


def run_file(batch: int, cost: float | None, session: Run, texts: list[list[int]]) -> None:
    """Run a plain graph, for None, or our ONNX file, told where to exit."""
    exits = itertools.cycle(FORCED[cost or 1.0])
    for start in range(0, len(texts), batch):
        feed = feed_of(texts[start : start + batch])
        layers = list(itertools.islice(exits, len(feed["input_ids"])))
        if cost:
            feed["target"] = np.array(layers, np.float32)
        session(["logits"], feed)[0].argmax(-1).tolist()
