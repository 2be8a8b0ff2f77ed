"""Run an ONNX file in place of its model, and write and check what it says of itself.

A file of export_onnx.py stores, in its metadata, the model that it was exported from. `OnnxFile`
compares this with the model at hand, so that a file never answers for another model.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from modeling.configuration import AdaptiveConfig, EarlyExitConfig
from modeling.errors import UserError
from modeling.files import check_file
from modeling.loading.configs import label_names

Result = TypeVar("Result")

# What is compared with the model, and what an error calls it.
OTHER = {
    "weights": "other weights",
    "tokenizer": "another tokenizer",
    "configuration": "another configuration",
}
EXPORT_AGAIN = "export it again with export_onnx.py"


def describe_model(model: PreTrainedModel) -> dict[str, Any]:
    """Describe a model for the metadata of its file, by name; the values are JSON in the file."""
    config: Any = model.config
    return {
        "model_type": config.model_type,
        "labels": label_names(config),
        "problem_type": config.problem_type,
        "rule": config.exit_keys(),
        "num_hidden_layers": config.num_hidden_layers,
        "max_position_embeddings": config.max_position_embeddings,
        "cls_tokens": 1 + config.extra_tokens,
        "versions": {name: version(name) for name in ("torch", "transformers", "onnxscript")},
    }


@dataclass(frozen=True)
class FileMetadata:
    """What a file says of the model that it was exported from.

    Attributes:
        model_type: of its configuration.
        num_hidden_layers: of its configuration.
        labels: names of its classes, in the order of the logits.
        rule: its exit keys, by name.
        dtype: number type of the file's matrix products: fp32, or int8.
        hashes: of its weights, tokenizer and configuration, as far as the file says them.
    """

    model_type: Any
    num_hidden_layers: Any
    labels: list[Any]
    rule: dict[str, Any]
    dtype: Any
    hashes: dict[str, Any]

    @classmethod
    def from_json(cls, texts: Mapping[str, str]) -> "FileMetadata":
        """Read the metadata of a file.

        Raises KeyError, TypeError, ValueError or RecursionError for a file of another program.
        """
        return cls(
            model_type=json.loads(texts["model_type"]),
            num_hidden_layers=json.loads(texts["num_hidden_layers"]),
            labels=list(json.loads(texts["labels"])),
            rule={**json.loads(texts["rule"])},
            dtype=json.loads(texts["dtype"]),
            hashes={name: json.loads(texts[name]) for name in OTHER if name in texts},
        )


class OnnxFile:
    """A file of export_onnx.py, which is called as its model is.

        file = OnnxFile("out/reviews.onnx", model.config)
        out = file(ids, attention_mask=mask, token_type_ids=types)
        out.logits, out.exit_layer

    The exit keys that are inputs of the file are the configuration's at every call.

    Args:
        path: the file.
        config: the configuration of the model that it stands for.
        model_hashes: hashes of that model's weights, tokenizer and configuration, by these names;
            one that is left out is not compared.

    Attributes:
        depth_output: name of the output that says how deep an example went: its exit layer, or the
            updates of its tokens.
        outputs: names of all outputs.
        settings: the number type of each exit key that is an input.
        inputs: names of the other inputs, in order.
        dtype: number type of the file's matrix products: fp32, or int8.
        provenance: the path and the runtime's version, for a report.

    It may be called from several threads, and after a fork, where it opens the file again.

    Raises:
        UserError: the file is missing, is not one of export_onnx.py, or was exported from a model
            of other weights, another tokenizer or another configuration, or one that differs in
            what no input of the file sets.
    """

    def __init__(
        self, path: str | Path, config: AdaptiveConfig, model_hashes: Mapping[str, str] = {}
    ) -> None:
        self.path = path
        self.config = config
        self.depth_output = "exit_layer" if isinstance(config, EarlyExitConfig) else "updates"
        self.session = open_session(str(path))
        self.process = os.getpid()  # where the session's threads are
        metadata = self.read_metadata()
        self.metadata = metadata
        self.dtype = metadata.dtype
        self.outputs = self.read_outputs()
        number_types = self.read_number_types()
        self.settings = {name: x for name, x in number_types.items() if name in metadata.rule}
        self.inputs = [name for name in number_types if name not in self.settings]
        self.provenance = {"onnx": str(path), "onnxruntime": version("onnxruntime")}
        self.check_config()
        self.check_hashes(model_hashes)

    def read_metadata(self) -> FileMetadata:
        """Read what the file says of its model; raises UserError for another program's file."""
        texts = self.session.get_modelmeta().custom_metadata_map
        try:
            return FileMetadata.from_json(texts)
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise self.not_exported(repr(error)[:200]) from error

    def read_outputs(self) -> list[str]:
        """List the outputs' names; raises UserError where the answers are not among them."""
        types = {value.name: value.type for value in self.session.get_outputs()}
        expected_types = {"logits": "tensor(float)", self.depth_output: "tensor(int64)"}
        for name, expected in expected_types.items():
            if types.get(name) != expected:
                raise self.not_exported(f"its output {name} is {types.get(name)}, not {expected}")
        return list(types)

    def read_number_types(self) -> dict[str, type]:
        """Return the number type of each input, those with a default among them."""
        values = [*self.session.get_inputs(), *self.session.get_overridable_initializers()]
        types: dict[str, type] = {}
        for value in values:
            types[value.name] = np.float32 if "float" in value.type else np.int64
        return types

    def check_hashes(self, model_hashes: Mapping[str, str]) -> None:
        """Raise UserError for a file of another model than the one with these hashes."""
        for name, exported in self.metadata.hashes.items():
            if model_hashes.get(name, exported) != exported:
                raise UserError(
                    f"{self.path}: exported from {OTHER[name]} than the model now has; "
                    f"{EXPORT_AGAIN}"
                )

    def check_config(self) -> None:
        """Raise UserError where the model answers otherwise now, for a key that no input sets."""
        config = self.config
        metadata = self.metadata
        exit_keys = config.table.exit_keys
        exported = {
            "model_type": metadata.model_type,
            "num_hidden_layers": metadata.num_hidden_layers,
            "labels": metadata.labels,
            # A file that is older than a key runs as with the key's default.
            **{name: key.initial(config.num_hidden_layers) for name, key in exit_keys.items()},
            **metadata.rule,
        }
        current: dict[str, Any] = {
            "model_type": config.model_type,
            "num_hidden_layers": config.num_hidden_layers,
        }
        idle_keys = config.idle_keys(exit_keys)
        for name, value in config.exit_keys().items():
            if name not in self.settings and name not in idle_keys:
                current[name] = value
        current["labels"] = label_names(config)
        for name, value in current.items():
            if exported.get(name) != value:
                raise UserError(
                    f"{self.path}: exported with {name} = {exported.get(name)}, the model now has "
                    f"{value}; {EXPORT_AGAIN}"
                )

    def __call__(self, input_ids: Tensor, **inputs: Tensor) -> SimpleNamespace:
        """Answer a batch: return the file's outputs as tensors, by the names of its model's.

        Args:
            input_ids: (batch, length) int64.
            inputs: the file's other inputs. Without an attention mask nothing is padding.

        Raises:
            UserError: an input is missing, the configuration has a value now that the file cannot
                take, or the answers are not such as the model's can be.
        """
        self.check_config()
        if self.process != os.getpid():  # a fork has none of its parent's threads
            self.lost_session = self.session  # closing it would wait for those threads
            self.session = open_session(str(self.path))
            self.process = os.getpid()
        mask = inputs.get("attention_mask", torch.ones_like(input_ids))
        tensors = {**inputs, "input_ids": input_ids, "attention_mask": mask}
        missing = [name for name in self.inputs if name not in tensors]
        if missing:
            raise self.not_exported(f"it has inputs that no model has: {', '.join(missing)[:200]}")
        feed = {name: tensors[name].cpu().numpy() for name in self.inputs}
        for name, number_type in self.settings.items():
            feed[name] = np.array(getattr(self.config, name), number_type)
        arrays = with_user_errors(self.path, lambda: self.session.run(self.outputs, feed))
        answers = {}
        for name, array in zip(self.outputs, arrays, strict=True):
            answers[name] = torch.as_tensor(array)
        self.check_answers(answers, mask.bool().cpu())
        return SimpleNamespace(**answers)

    def check_answers(self, answers: Mapping[str, Tensor], is_real: Tensor) -> None:
        """Raise UserError for answers that the model cannot have given.

        answers: the file's outputs, by name. is_real: (batch, length) bool, the tokens that are
        not padding.
        """
        logits = answers["logits"]
        depth = answers[self.depth_output]
        batch = len(is_real)
        counts_tokens = self.depth_output == "updates"
        self.check_shape("logits", logits, (batch, self.config.label_count))
        self.check_shape(
            self.depth_output, depth, tuple(is_real.shape) if counts_tokens else (batch,)
        )
        if not logits.isfinite().all():
            raise self.not_exported("its logits are NaN or infinite")
        lowest, highest = (depth[is_real] if counts_tokens else depth).aminmax()
        if lowest < 1 or highest > self.config.num_hidden_layers:
            raise self.not_exported(
                f"{self.depth_output} is from {lowest} to {highest}: allowed is 1 to "
                f"num_hidden_layers = {self.config.num_hidden_layers}"
            )

    def check_shape(self, name: str, answer: Tensor, expected: tuple[int, ...]) -> None:
        """Raise UserError for an output of another shape than the model's."""
        if tuple(answer.shape) != expected:
            raise self.not_exported(f"{name} has shape {tuple(answer.shape)}, not {expected}")

    def not_exported(self, reason: str) -> UserError:
        """Make the error for a file that export_onnx.py did not write."""
        return UserError(f"{self.path}: not a file of export_onnx.py: {reason}")


def with_user_errors(path: str | Path, action: Callable[[], Result]) -> Result:
    """Call a runtime's function, and raise its errors as a UserError of one line.

    They have no class in common.
    """
    try:
        return action()
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"{path}: {reason[:300]}") from error


def find_onnx_file(folder: str | Path, name: str | Path) -> Path:
    """Return the path of an ONNX file that stands here, or else in its model's folder.

    Raises UserError where it stands in neither, or is not all there.
    """
    for path in (Path(os.path.expanduser(name)), Path(folder) / name):
        check_file(path)
        if path.is_file():
            return path
    raise UserError(f"onnx = {name}: no such file, neither here nor in {folder}")


def open_session(path: str, **options: Any) -> Any:
    """Open an ONNX Runtime session with as many threads as torch has.

    options: arguments of onnxruntime.InferenceSession. Raises UserError where there is no such
    file, the runtime is not installed, or it cannot read the file.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise UserError("an ONNX file needs: pip install -r requirements/onnx.txt") from error
    check_file(path)
    if not os.path.isfile(path):
        raise UserError(f"{path}: no such file, or no regular one")
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = torch.get_num_threads()
    settings.log_severity_level = 3  # below that it warns of every input that has a default
    try:
        return with_user_errors(
            path,
            lambda: onnxruntime.InferenceSession(
                path, settings, providers=["CPUExecutionProvider"], **options
            ),
        )
    except UserError as error:
        raise UserError(f"{error}; fetch the file again if it was cut") from error
