"""Reading TensorFlow checkpoints: Google's ALBERT, and Adaptive Depth.

Checkpoints may be name-based, as TensorFlow 1 writes them, or object-based, as TensorFlow 2 does.
TensorFlow is imported only here, and only when a checkpoint is read: requirements-tf.txt.
"""

import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from google.protobuf.message import DecodeError
from torch import nn
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    AlbertForPreTraining,
    AlbertForSequenceClassification,
    AlbertModel,
    PreTrainedModel,
)

from ..act.heads import (
    AlbertActForMaskedLM,
    AlbertActForPreTraining,
    AlbertActForSequenceClassification,
    AlbertActModel,
)
from ..configuration import AlbertActConfig
from ..errors import UserError
from .configs import make_config
from .files import read_json
from .names import Tensors
from .tensorflow_names import (
    AS_IN_PYTORCH,
    KERAS_EPSILON,
    OBJECT_GRAPH,
    TO_HIDDEN,
    VALUE,
    sort_variables,
)
from .weights import abbreviate, load_into

# The heads of a checkpoint -> the dense ALBERT with these heads, and the one whose tokens stop.
MODELS = {
    (): (AlbertModel, AlbertActModel),
    ("predictions",): (AlbertForMaskedLM, AlbertActForMaskedLM),
    ("predictions", "sop_classifier"): (AlbertForPreTraining, AlbertActForPreTraining),
    ("classifier",): (AlbertForSequenceClassification, AlbertActForSequenceClassification),
}


@dataclass
class TFReport:
    """What became of a checkpoint's variables."""

    prefix: str
    loaded: list[str]
    ignored: dict[str, str]  # variables, and the names of their rules

    def lines(self) -> list[str]:
        """Two lines for the user."""
        counts = Counter(self.ignored.values())
        ignored = ", ".join(f"{rule} ({count})" for rule, count in counts.items())
        return [
            f"Variables loaded from {self.prefix}: {len(self.loaded)}",
            f"Variables ignored: {ignored or 'none'}",
        ]


def load_tf_checkpoint(
    checkpoint: str | Path, config_file: str | Path
) -> tuple[PreTrainedModel, TFReport]:
    """The HF ALBERT or Adaptive Depth model with a checkpoint's weights and heads, in eval mode.

    Args:
        checkpoint: its prefix (albert_base/model.ckpt-best), or the folder of a TF-Hub export.
        config_file: Google's albert_config.json, or a config.json.

    Raises:
        UserError: TensorFlow is missing, the checkpoint is damaged or not one, it has a variable
            that no rule knows, or the configuration is another model's.
    """
    values = read_json(config_file)
    source = TFCheckpoint(checkpoint)
    try:
        keys, ignored = sort_variables(source.names())
        tensors = {
            name: source.tensor(key, transposed=not re.fullmatch(AS_IN_PYTORCH, name))
            for name, key in keys.items()
        }
        keras = any("layer_normalization" in key for key in keys.values())
        config = tf_config(Path(config_file), values, tensors, keras)
        model = build(config, tensors)
    except UserError as error:
        raise UserError(f"{source.prefix}, with {config_file}: {error}") from error
    return model, TFReport(source.prefix, list(keys.values()), ignored)


class TFCheckpoint:
    """A checkpoint under TensorFlow's own reader; `shapes` are its variables', by key."""

    def __init__(self, path: str | Path) -> None:
        self.prefix = checkpoint_prefix(Path(path))
        tensorflow = import_tensorflow()
        # Whatever a damaged file makes the reader raise.
        python = (IndexError, RuntimeError, TypeError, ValueError)
        self.errors = (tensorflow.errors.OpError, DecodeError, *python)
        with self.damage_named(f"{self.prefix}.index"):
            self.reader = tensorflow.train.load_checkpoint(self.prefix)
            self.shapes: dict[str, list[int]] = self.reader.get_variable_to_shape_map()

    @contextmanager
    def damage_named(self, what: str) -> Iterator[None]:
        """Raises UserError naming `what` when the block cannot read it."""
        try:
            yield
        except self.errors as error:
            reason = " ".join(str(error).split())
            raise UserError(
                f"cannot read {what} ({reason}): the checkpoint is damaged, or one of its files is "
                "missing; fetch all of them again"
            ) from error

    def names(self) -> dict[str, tuple[str, ...]]:
        """The names that a variable goes by, for each key.

        Keys of object-based checkpoints are paths of attributes; the graph of objects beside them
        has the names that the variables were made with, too.
        """
        keys = sorted(self.shapes)
        if OBJECT_GRAPH not in keys:
            return {key: (key,) for key in keys}
        from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

        with self.damage_named(OBJECT_GRAPH):
            graph = TrackableObjectGraph.FromString(self.reader.get_tensor(OBJECT_GRAPH))
        made = {x.checkpoint_key: x.full_name for node in graph.nodes for x in node.attributes}
        return {key: (object_path(key), made.get(key, "")) for key in keys}

    def tensor(self, key: str, transposed: bool) -> torch.Tensor:
        """Read a variable in float32; TensorFlow's kernels are (inputs, outputs)."""
        with self.damage_named(key):
            tensor = torch.from_numpy(self.reader.get_tensor(key).astype("float32"))
            return tensor.t() if transposed else tensor


def checkpoint_prefix(path: Path) -> str:
    """The prefix of a checkpoint's files, given as such, as one of the files, or as an export."""
    for export in (path / "variables/variables", path / "variables"):
        if Path(f"{export}.index").is_file():
            return str(export)
    if path.is_dir():
        found = sorted(str(index.with_suffix("")) for index in path.glob("*.index"))
        raise UserError(
            f"{path} is a directory; give the checkpoint in it: "
            + (" or ".join(found) or "but it holds none (no .index file)")
        )
    prefix = re.sub(r"\.(index|meta|data-\d{5}-of-\d{5})$", "", str(path))
    if not Path(f"{prefix}.index").is_file():
        raise UserError(
            f"{prefix} is no TensorFlow checkpoint: there is no {prefix}.index. Give the part that "
            "the names of its files share, such as albert_base/model.ckpt-best"
        )
    return prefix


def import_tensorflow() -> ModuleType:
    for name, value in (("TF_CPP_MIN_LOG_LEVEL", "3"), ("TF_ENABLE_ONEDNN_OPTS", "0")):
        os.environ.setdefault(name, value)  # no notes about the processor, which only reads
    try:
        import tensorflow
    except ImportError as error:
        raise UserError(
            "reading TensorFlow checkpoints needs TensorFlow: pip install -r requirements-tf.txt"
        ) from error
    return tensorflow


def object_path(key: str) -> str:
    """A key without TensorFlow's suffix and escapes: `.S` is a slash in a name, `..` a dot."""
    path = key.removesuffix(VALUE)
    return re.sub(r"\.([S.])", lambda escape: "/" if escape[1] == "S" else ".", path)


def tf_config(path: Path, values: dict[str, Any], tensors: Tensors, keras: bool) -> AlbertConfig:
    """Complete the configuration `values`, read from `path`, by what the checkpoint shows.

    Google's code and Keras have constants that their configuration files leave unsaid.
    """
    if keras:
        values.setdefault("layer_norm_eps", KERAS_EPSILON)
    if str(values.get("hidden_act")).lower() == "gelu":
        values["hidden_act"] = "gelu_new"  # the GELU by tanh, in Google's code
    if "classifier.bias" in tensors and not values.keys() & {"num_labels", "id2label"}:
        values["num_labels"] = tensors["classifier.bias"].numel()
    adaptive = "albert.encoder.albert_layer.act.dense.weight" in tensors
    return make_config(path, values, AlbertActConfig if adaptive else AlbertConfig)


def build(config: AlbertConfig, tensors: Tensors) -> PreTrainedModel:
    """Build the model of the heads that are there; raises UserError unless it has every tensor."""
    heads = tuple(sorted({name.split(".")[0] for name in tensors} - {"albert"}))
    if heads not in MODELS:
        raise UserError(f"no model has these heads, and no others: {', '.join(heads)}")
    model = MODELS[heads][isinstance(config, AlbertActConfig)](config)
    encoder = model.base_model
    if encoder.pooler is None and "albert.pooler.weight" in tensors:
        # A masked language model has no use for it, but what is fine-tuned from one does.
        encoder.pooler = nn.Linear(config.hidden_size, config.hidden_size)
    if f"{TO_HIDDEN}.weight" not in tensors and config.embedding_size == config.hidden_size:
        # Google's code then leaves the mapping out.
        tensors[f"{TO_HIDDEN}.weight"] = torch.eye(config.hidden_size)
        tensors[f"{TO_HIDDEN}.bias"] = torch.zeros(config.hidden_size)
    if encoder is model:
        tensors = {name.removeprefix("albert."): tensor for name, tensor in tensors.items()}
    # The decoder shares the word embeddings.
    report = load_into(model, tensors, type(model).__name__, heads=("predictions.decoder.",))
    if report.ignored:
        raise UserError(
            f"a {type(model).__name__} of this configuration has no {abbreviate(report.ignored)}; "
            "give the albert_config.json that came with the checkpoint"
        )
    return model.eval()
