"""ONNX Runtime and OpenVINO, which a user on CPUs would pick instead, and our exported file there.

Needs requirements-bench.txt. All have as many threads as torch has.
"""

import itertools
import logging
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from benchmarks.contenders import BASE, HAS_BF16, NEVER, ForcedExits, exits_of, padded
from modeling import ElbertConfig
from modeling.albert import attention_mask_of
from modeling.depth import layer_states
from modeling.export.loops import DepthLoop, ExportLoop, Tensors

Feed = dict[str, np.ndarray]
Session = Callable[[Feed], np.ndarray]  # what a file reads -> logits (batch, labels)


class PlainGraph(ExportLoop):
    """All layers one after the other and the last one's exit: what exporters make of ALBERT."""

    outputs = ("logits",)

    @property
    def keys(self) -> dict:
        return {}

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor,
        own: Tensors,
        settings: Tensors,
    ) -> tuple[torch.Tensor]:
        model, mask = self.model, attention_mask_of(attention_mask)
        hidden = model.embed(input_ids, token_type_ids)
        *_, last = layer_states(model, hidden, mask)
        weights = model.param_index(model.config.num_hidden_layers - 1)
        rule = model.config.exit_rule()
        state = model.start(rule, input_ids.shape[0], own)
        return (model.check_exit(rule, last, mask, weights, state).answer,)


def write_files(folder: Path, base: Mapping = BASE) -> None:
    """Write plain.onnx and loop.onnx, with random weights, and both with -int8."""
    import onnx
    import onnx_ir
    from onnxruntime.quantization import quantize_dynamic

    from modeling.export.graph import to_onnx
    from modeling.export.quantise import to_int8

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    torch.manual_seed(0)
    model = ForcedExits(ElbertConfig(**{**base, **NEVER, "cnt_thres": base["num_hidden_layers"]}))
    model.eval()
    for name, loop in (("plain", PlainGraph(model)), ("loop", DepthLoop(model, ["target"]))):
        exported = to_onnx(loop, {})
        onnx_ir.save(exported, folder / f"{name}.onnx")
    # The plain graph by ONNX Runtime's own tool, the loop as export_onnx.py does.
    plain = onnx.load(folder / "plain.onnx")
    del plain.graph.value_info[:]  # the tool stops at shapes that it infers otherwise
    quantize_dynamic(plain, folder / "plain-int8.onnx", per_channel=True, reduce_range=True)
    quantised = to_int8(exported, model.config.hidden_size, random_feeds(model.config))
    onnx_ir.save(quantised, folder / "loop-int8.onnx")


def random_feeds(config: ElbertConfig) -> list[Feed]:
    """Make up examples that run all layers, to calibrate on."""
    rng, feeds = np.random.default_rng(0), []
    for length in (8, 16, 32):
        ids = rng.integers(5, config.vocab_size, (1, length))
        feed = {"input_ids": ids, "attention_mask": ids**0, "token_type_ids": ids * 0}
        feeds.append({**feed, "target": np.full(1, config.num_hidden_layers, np.float32)})
    return feeds


def in_onnxruntime(path: Path) -> Session:
    """Load a file, without a fusion that slows plain graphs by a tenth."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    fused = ["SkipLayerNormFusion"]
    session = onnxruntime.InferenceSession(path, options, disabled_optimizers=fused)
    return lambda feed: session.run(["logits"], feed)[0]


def in_openvino(path: Path, precision: str) -> Session:
    import openvino

    options = {
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "INFERENCE_PRECISION_HINT": precision,
        "PERFORMANCE_HINT": "LATENCY",
    }
    compiled = openvino.Core().compile_model(path, "CPU", options)
    return lambda feed: compiled(feed)["logits"]


def makers(folder: Path) -> dict[str, Callable[[], Session]]:
    """Return what the processes make of the files in `folder`; nothing without the runtimes."""
    made = {}
    if find_spec("onnxruntime") and find_spec("onnxscript"):
        for name, file in itertools.product(("plain", "loop"), ("", "-int8")):
            made[f"ort {name}{file}"] = partial(in_onnxruntime, folder / f"{name}{file}.onnx")
        if find_spec("openvino"):
            precisions = ("f32", "bf16") if HAS_BF16 else ("f32",)
            for name, precision in itertools.product(("plain", "loop"), precisions):
                path = folder / f"{name}.onnx"
                made[f"openvino {name} {precision}"] = partial(in_openvino, path, precision)
            made["openvino loop-int8"] = partial(in_openvino, folder / "loop-int8.onnx", "f32")
    return made


def feed_of(texts: list[list[int]]) -> Feed:
    feed = {name: tensor.cpu().numpy() for name, tensor in padded(texts).items()}
    return feed | {"token_type_ids": np.zeros_like(feed["input_ids"])}


def run_plain(batch: int, cost: float, session: Session, texts: list[list[int]]) -> None:
    """Run a graph without exits, whatever the cost."""
    for start in range(0, len(texts), batch):
        session(feed_of(texts[start : start + batch])).argmax(-1).tolist()


def run_loop(batch: int, cost: float, session: Session, texts: list[list[int]]) -> None:
    """Run our exported file, told where to exit."""
    exits = exits_of(cost)
    for start in range(0, len(texts), batch):
        feed = feed_of(texts[start : start + batch])
        layers = list(itertools.islice(exits, len(feed["input_ids"])))
        session({**feed, "target": np.array(layers, np.float32)}).argmax(-1).tolist()


# Named as in the table: process, run, cost.
ROWS = (
    ("ONNX Runtime fp32", "ort plain", run_plain, 1.0),
    ("ONNX Runtime int8", "ort plain-int8", run_plain, 1.0),
    ("OpenVINO fp32", "openvino plain f32", run_plain, 1.0),
    ("OpenVINO bf16", "openvino plain bf16", run_plain, 1.0),
    ("our file, ONNX Runtime fp32", "ort loop", run_loop, 1.0),
    ("our file, ONNX Runtime int8", "ort loop-int8", run_loop, 1.0),
    ("our file, OpenVINO fp32", "openvino loop f32", run_loop, 1.0),
    ("our file, OpenVINO bf16", "openvino loop bf16", run_loop, 1.0),
    ("our file, ONNX Runtime fp32, c = 0.5", "ort loop", run_loop, 0.5),
    ("our file, ONNX Runtime int8, c = 0.5", "ort loop-int8", run_loop, 0.5),
    ("our file, OpenVINO int8", "openvino loop-int8", run_loop, 1.0),
    ("our file, OpenVINO int8, c = 0.5", "openvino loop-int8", run_loop, 0.5),
)


def rows(batch: int) -> list[tuple[str, str, Callable, float]]:
    """Return name, process, run and cost of each; exits one by one only, as a batch of our file
    goes on until its last text has exited."""
    return [
        (name, process, partial(run, batch, cost), cost)
        for name, process, run, cost in ROWS
        if batch == 1 or cost == 1
    ]
