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
from typing import Any, NamedTuple

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
from .tensorflow_names import (
    KERAS_EPSILON,
    OBJECT_GRAPH,
    TO_HIDDEN,
    VALUE,
    Renaming,
    place,
)
from .weights import abbreviate

OWN = "give the albert_config.json that came with the checkpoint"
# The models of each set of heads.


class Classes(NamedTuple):
    """What has the same heads on a dense ALBERT and on one whose tokens stop."""

    dense: type[PreTrainedModel]
    adaptive: type[PreTrainedModel]


MODELS = {
    (): Classes(AlbertModel, AlbertActModel),
    ("predictions",): Classes(AlbertForMaskedLM, AlbertActForMaskedLM),
    ("predictions", "sop_classifier"): Classes(AlbertForPreTraining, AlbertActForPreTraining),
    ("classifier",): Classes(AlbertForSequenceClassification, AlbertActForSequenceClassification),
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
        placed, ignored = place(source.names())
        config = tf_config(Path(config_file), values, source, placed)
        for key, rule in placed.values():
            check_shape(key, source.shapes[key], rule, config)
        tensors = {
            name: source.tensor(key).t() if rule.transposed else source.tensor(key)
            for name, (key, rule) in placed.items()
        }
        model = build(config, tensors)
    except UserError as error:
        raise UserError(f"{source.prefix}, with {config_file}: {error}") from error
    return model, TFReport(source.prefix, [key for key, _ in placed.values()], ignored)


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

    def tensor(self, key: str) -> torch.Tensor:
        """The variable, float32, in TensorFlow's layout."""
        with self.damage_named(key):
            return torch.from_numpy(self.reader.get_tensor(key).astype("float32"))


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


def tf_config(
    path: Path,
    values: dict[str, Any],
    source: TFCheckpoint,
    placed: dict[str, tuple[str, Renaming]],
) -> AlbertConfig:
    """The configuration of `values`, read from `path`, completed by what the checkpoint shows.

    Google's code and Keras have constants that their configuration files leave unsaid.
    """
    if any("layer_normalization" in key for key, _ in placed.values()):
        values.setdefault("layer_norm_eps", KERAS_EPSILON)
    if str(values.get("hidden_act")).lower() == "gelu":
        values["hidden_act"] = "gelu_new"  # the GELU by tanh, in Google's code
    if "classifier.bias" in placed and not values.keys() & {"num_labels", "id2label"}:
        values["num_labels"] = max(source.shapes[placed["classifier.bias"][0]], default=0)
    if "albert.encoder.albert_layer.act.dense.weight" in placed:
        return make_config(path, values, AlbertActConfig)
    config = make_config(path, values, AlbertConfig)
    check_layers(config, list(placed))
    return config


def check_layers(config: AlbertConfig, names: list[str]) -> None:
    """Raise UserError unless the tensors are of the layers that the configuration asks for."""
    for key, module in (
        ("num_hidden_groups", "albert_layer_groups"),
        ("inner_group_num", "albert_layers"),
    ):
        numbers = re.findall(rf"\.{module}\.(\d+)\.", " ".join(names))
        count = 1 + max(map(int, numbers), default=-1)
        if count != getattr(config, key):
            raise UserError(
                f"{key} = {getattr(config, key)}, but the checkpoint has {count}; {OWN}"
            )


def check_shape(key: str, found: list[int], rule: Renaming, config: AlbertConfig) -> None:
    """Raise UserError naming the keys of the configuration that a variable's shape contradicts."""
    expected = [x if isinstance(x, int) else getattr(config, x) for x in rule.sizes]
    if list(found) != expected:
        keys = [x for x in dict.fromkeys(rule.sizes) if isinstance(x, str)]
        said = ", ".join(f"{x} = {getattr(config, x)}" for x in keys)
        raise UserError(
            f"{key} has shape {tuple(found)}; with {said} it would be {tuple(expected)}; {OWN}"
        )


def build(config: AlbertConfig, tensors: dict[str, torch.Tensor]) -> PreTrainedModel:
    """The model of the heads that are there; raises UserError unless the tensors are all of it."""
    heads = tuple(sorted({name.split(".")[0] for name in tensors} - {"albert"}))
    if heads not in MODELS:
        raise UserError(f"no model has these heads, and no others: {', '.join(heads)}")
    classes = MODELS[heads]
    adaptive = isinstance(config, AlbertActConfig)
    model = (classes.adaptive if adaptive else classes.dense)(config)
    encoder = model.base_model
    if encoder.pooler is None and "albert.pooler.weight" in tensors:
        # A masked language model has no use for it, but what is fine-tuned from one does.
        encoder.pooler = nn.Linear(config.hidden_size, config.hidden_size)
    if f"{TO_HIDDEN}.weight" not in tensors and config.embedding_size == config.hidden_size:
        # Google's code then leaves the mapping out.
        tensors[f"{TO_HIDDEN}.weight"] = torch.eye(config.hidden_size)
        tensors[f"{TO_HIDDEN}.bias"] = torch.zeros(config.hidden_size)
    outer = "albert." if encoder is model else ""
    parameters = {f"{outer}{name}": p for name, p in model.named_parameters()}
    difference = parameters.keys() ^ tensors.keys()
    if difference:
        raise UserError(
            f"the checkpoint and a {type(model).__name__} differ in {abbreviate(difference)}; is "
            "the checkpoint whole, and an ALBERT's?"
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])
    return model.eval()
