"""An exported file in place of its model: what it says of itself, and running it."""

import json
import os
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from transformers import AlbertConfig, PreTrainedModel

from elbert.configuration import EarlyExitConfig
from elbert_base.errors import UserError

FIXED = ("model_type", "num_hidden_layers")  # what no input of a file sets


def labels_in(config: AlbertConfig) -> list[str]:
    """List the names of a model's classes, in the order of its logits."""
    names: Any = config.id2label
    return [names[number] for number in sorted(names)]


def description(model: PreTrainedModel) -> dict[str, Any]:
    """Describe a model for the metadata of its file, by name; JSON in the file."""
    config: Any = model.config
    return {
        "model_type": config.model_type,
        "labels": labels_in(config),
        "problem_type": config.problem_type,
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

    def __init__(self, path: str | Path, config: AlbertConfig, weights: str = "") -> None:
        self.path, self.config, self.session = path, config, session_of(str(path))
        session = self.session
        stored = session.get_modelmeta().custom_metadata_map
        try:
            there = {name: json.loads(stored[name]) for name in (*FIXED, "labels", "rule", "dtype")}
            rule, dtype = there["rule"], there["dtype"]
            there |= {**rule, "labels": list(there["labels"])}
            exported = json.loads(stored.get("weights", "null"))
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise self.foreign(repr(error)[:200]) from error
        # What says how deep an example went: its layer, or its tokens' updates.
        self.depth = "exit_layer" if isinstance(config, EarlyExitConfig) else "updates"
        types = {value.name: value.type for value in session.get_outputs()}
        for name, kind in (("logits", "tensor(float)"), (self.depth, "tensor(int64)")):
            if types.get(name) != kind:
                raise self.foreign(f"its output {name} is {types.get(name)}, not {kind}")
        self.outputs = list(types)
        values = (*session.get_inputs(), *session.get_overridable_initializers())
        kinds = {value.name: np.float32 if "float" in value.type else np.int64 for value in values}
        self.settings = {name: kind for name, kind in kinds.items() if name in rule}
        self.inputs = [name for name in kinds if name not in self.settings]
        again = "export it again with export_onnx.py"
        if weights and exported not in (None, weights):
            raise UserError(f"{path}: exported from other weights than the model now has; {again}")
        fixed = [key for key in config.exit_keys() if key not in self.settings]
        now = {name: getattr(config, name) for name in (*FIXED, *fixed)}
        for name, value in {**now, "labels": labels_in(config)}.items():
            if there.get(name) != value:
                raise UserError(
                    f"{path}: exported with {name} = {there.get(name)}, the model now has {value}; "
                    f"{again}"
                )
        self.dtype = dtype
        # What a report tells of it beside its type.
        self.about = {"onnx": str(path), "onnxruntime": version("onnxruntime")}

    def __call__(self, input_ids: torch.Tensor, **more: torch.Tensor) -> SimpleNamespace:
        """The file's outputs as tensors by name, as its model's output has them."""
        given = {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids), **more}
        if unknown := [name for name in self.inputs if name not in given]:
            raise self.foreign(f"it has inputs that no model has: {', '.join(unknown)[:200]}")
        feed = {name: given[name].cpu().numpy() for name in self.inputs}
        for name, kind in self.settings.items():
            feed[name] = np.array(getattr(self.config, name), kind)
        arrays = one_line(self.path, self.session.run, self.outputs, feed)
        found = dict(zip(self.outputs, map(torch.as_tensor, arrays), strict=True))
        self.check(found, given["attention_mask"].bool().cpu())
        return SimpleNamespace(**found)

    def check(self, found: Mapping[str, torch.Tensor], real: torch.Tensor) -> None:
        """Raise UserError for what the model cannot have answered to texts whose tokens are `real`,
        bool (batch, length)."""
        config, logits, depth = self.config, found["logits"], found[self.depth]
        per_text = self.depth == "exit_layer"
        shapes = {
            "logits": (len(real), config.label_count),
            self.depth: tuple(real.shape[:1] if per_text else real.shape),
        }
        for name, shape in shapes.items():
            if tuple(found[name].shape) != shape:
                raise self.foreign(f"{name} has shape {tuple(found[name].shape)}, not {shape}")
        if not logits.isfinite().all():
            raise self.foreign("its logits are NaN or infinite")
        low, high = (depth if per_text else depth[real]).aminmax()
        if low < 1 or high > config.num_hidden_layers:
            allowed = f"1 to num_hidden_layers = {config.num_hidden_layers}"
            raise self.foreign(f"{self.depth} is from {low} to {high}: allowed is {allowed}")

    def foreign(self, reason: str) -> UserError:
        return UserError(f"{self.path}: not a file of export_onnx.py: {reason}")


def one_line(path: str | Path, action: Callable, *given: Any, **more: Any) -> Any:
    """Call a runtime's function; raise its errors, which have no common class, as UserError."""
    try:
        return action(*given, **more)
    except UserError:
        raise
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"{path}: {reason[:300]}") from error


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
    more["providers"] = ["CPUExecutionProvider"]
    return one_line(path, onnxruntime.InferenceSession, path, options, **more)
