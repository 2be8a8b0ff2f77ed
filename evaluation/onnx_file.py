"""An exported file in place of its model: what it says of itself, and running it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from transformers import AlbertConfig, PreTrainedModel

from modeling.errors import UserError

Run = Callable[[Sequence[str], Mapping[str, np.ndarray]], Sequence[np.ndarray]]  # of a session
FIXED = ("model_type", "num_hidden_layers")  # what no input of a file sets


def description(model: PreTrainedModel) -> dict[str, Any]:
    """What a file says of its model, by name; JSON in the file."""
    config = model.config
    return {
        "model_type": config.model_type,
        "labels": [config.id2label[i] for i in range(config.num_labels)],
        "rule": config.exit_keys(),
        "num_hidden_layers": config.num_hidden_layers,
        "max_position_embeddings": config.max_position_embeddings,
        "cls_tokens": 1 + config.extra_tokens,
        "versions": {name: version(name) for name in ("torch", "transformers", "onnxscript")},
    }


class OnnxFile:
    """A file of export_onnx.py, called as its model is; the exit keys are `config`'s at every call.

    weights: the model's hash. Raises UserError for a file that is none, for one of other weights,
    and for one that differs from the model in what no input sets.
    """

    def __init__(
        self,
        path: str | Path,
        config: AlbertConfig,
        weights: str = "",
        runtime: str = "onnxruntime",
    ) -> None:
        self.config, session = config, session_of(str(path))
        stored = session.get_modelmeta().custom_metadata_map
        try:
            there = {name: json.loads(stored[name]) for name in (*FIXED, "labels", "rule", "dtype")}
            rule, dtype = there["rule"], there["dtype"]
            there |= {**rule, "num_labels": len(there["labels"])}
            exported = json.loads(stored.get("weights", "null"))
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            reason = repr(error)[:200]
            raise UserError(f"{path}: not a file of export_onnx.py: {reason}") from error
        self.outputs = [value.name for value in session.get_outputs()]
        values = (*session.get_inputs(), *session.get_overridable_initializers())
        kinds = {value.name: np.float32 if "float" in value.type else np.int64 for value in values}
        self.settings = {name: kind for name, kind in kinds.items() if name in rule}
        self.inputs = [name for name in kinds if name not in self.settings]
        again = "export it again with export_onnx.py"
        if weights and exported not in (None, weights):
            raise UserError(f"{path}: exported from other weights than the model now has; {again}")
        fixed = [key for key in config.exit_keys() if key not in self.settings]
        for name in (*FIXED, "num_labels", *fixed):
            value = getattr(config, name)
            if there.get(name) != value:
                raise UserError(
                    f"{path}: exported with {name} = {there.get(name)}, the model now has {value}; "
                    f"{again}"
                )
        is_openvino = runtime == "openvino"
        self.run = openvino_runner(path, self.settings) if is_openvino else session.run
        # What a report tells of it.
        self.about = {"dtype": dtype, "onnx": str(path), runtime: version(runtime)}

    def __call__(self, input_ids: torch.Tensor, **more: torch.Tensor) -> SimpleNamespace:
        """The file's outputs as tensors by name, as its model's output has them."""
        given = {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids), **more}
        feed = {name: given[name].cpu().numpy() for name in self.inputs}
        for name, kind in self.settings.items():
            feed[name] = np.array(getattr(self.config, name), kind)
        arrays = zip(self.outputs, self.run(self.outputs, feed), strict=True)
        return SimpleNamespace(**{name: torch.as_tensor(array) for name, array in arrays})


def session_of(path: str, **more: Any) -> Any:
    """An ONNX Runtime session with as many threads as torch has; more: its options."""
    try:
        import onnxruntime
    except ImportError as error:
        raise UserError("--onnx needs: pip install -r requirements-onnx.txt") from error
    if not os.path.isfile(path):
        raise UserError(f"{path}: no such file, or no regular one")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # it warns of inputs that have defaults
    try:
        cpu = ["CPUExecutionProvider"]
        return onnxruntime.InferenceSession(path, options, providers=cpu, **more)
    except Exception as error:  # its errors have no common class
        raise UserError(f"{path}: {str(error).splitlines()[0]}") from error


def openvino_runner(path: str | Path, given: Collection[str] = ()) -> Run:
    """Load a file in OpenVINO, on as many threads as torch has; products as the file has them.

    given: the inputs with defaults that callers give. OpenVINO takes an initialiser for a
    constant, so theirs are left out.
    """
    try:
        import onnx
        import openvino
    except ImportError as error:
        raise UserError(f"{error}; pip install -r requirements-bench.txt") from error
    proto = onnx.load(path)
    constants = proto.graph.initializer
    for number in reversed(range(len(constants))):
        if constants[number].name in given:
            del constants[number]
    options = {
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
    }
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(proto.SerializeToString()), "CPU", options)

    known = {name for port in compiled.inputs for name in port.names}  # unused ones are dropped

    def run(outputs: Sequence[str], feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        found = compiled({name: array for name, array in feed.items() if name in known})
        return [found[name] for name in outputs]

    return run
