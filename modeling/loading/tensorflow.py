"""Reading TensorFlow checkpoints: Google's ALBERT, and Adaptive Depth.

Checkpoints may be name-based, as TensorFlow 1 writes them, or object-based, as TensorFlow 2 does.
Every variable has its tensor by a rule of `MODULES` or `VARIABLES`, is left out by one of
`IGNORED`, or is an error. The names are those of Google's ALBERT (pre-training, fine-tuning and
TF-Hub export) and of the pre-training of Simoulin and Crabbé (2021). TensorFlow is imported only
here, and only when a checkpoint is read: requirements-tf.txt.
"""

import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
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
from .weights import Tensors, abbreviate, load_into

# The heads of a checkpoint -> the dense ALBERT with these heads, and the one whose tokens stop.
MODELS = {
    (): (AlbertModel, AlbertActModel),
    ("predictions",): (AlbertForMaskedLM, AlbertActForMaskedLM),
    ("predictions", "sop_classifier"): (AlbertForPreTraining, AlbertActForPreTraining),
    ("classifier",): (AlbertForSequenceClassification, AlbertActForSequenceClassification),
}


def layer(scope: str, name: str, attention_norm: str) -> dict[str, str]:
    """Name the modules of a shared layer, whose second norm has a number in TensorFlow."""
    attention = {
        f"{scope}/attention_1/self/{x}": f"{name}.attention.{x}" for x in ("query", "key", "value")
    }
    return attention | {
        f"{scope}/attention_1/output/dense": f"{name}.attention.dense",
        f"{scope}/{NORM}": f"{name}.{attention_norm}",
        f"{scope}/ffn_1/intermediate/dense": f"{name}.ffn",
        f"{scope}/ffn_1/intermediate/output/dense": f"{name}.ffn_output",
        f"{scope}/{NORM}_1": f"{name}.full_layer_layer_norm",
    }


# A model may stand within other scopes: TF-Hub's `module`, an object that holds the model.
BERT, HEADS = "(?:.+/)?bert", "(?:.+/)?cls"
# TensorFlow 1's layer norm, and Keras's.
NORM = "(?:LayerNorm|layer_normalization)"
KERAS_EPSILON = 1e-3  # added to the variance by Keras's layer norm; Google's adds 1e-12, as HF's
# Pre-training under TensorFlow 2 makes some variables inside a loop, where outer scopes are lost.
ACT_LAYER = f"(?:{BERT}/encoder/)?transformer"
TO_HIDDEN = "albert.encoder.embedding_hidden_mapping_in"

# The regular expression of a module's scope -> its name here; \\1 and \\2 are the scope's groups.
MODULES = {
    f"{BERT}/embeddings/{NORM}": "albert.embeddings.LayerNorm",
    f"{BERT}/encoder/embedding_hidden_mapping_in": TO_HIDDEN,
    **layer(
        rf"{BERT}/encoder/transformer/group_(\d+)/inner_group_(\d+)",
        r"albert.encoder.albert_layer_groups.\1.albert_layers.\2",
        "attention.LayerNorm",
    ),
    **layer(ACT_LAYER, "albert.encoder.albert_layer", "LayerNorm"),
    f"{ACT_LAYER}/halting/dense": "albert.encoder.albert_layer.act.dense",
    f"{BERT}/pooler/dense": "albert.pooler",
    f"{HEADS}/predictions/transform/dense": "predictions.dense",
    rf"{HEADS}/predictions/transform/{NORM}(?:_\d+)?": "predictions.LayerNorm",
}
PARAMETERS = {"kernel": "weight", "gamma": "weight", "bias": "bias", "beta": "bias"}
# The same of every variable.
VARIABLES = {
    rf"{BERT}/embeddings/(word|position|token_type)_embeddings": (
        r"albert.embeddings.\1_embeddings.weight"
    ),
    f"{HEADS}/predictions/output_bias": "predictions.bias",
    f"{HEADS}/seq_relationship/output_weights": "sop_classifier.classifier.weight",
    f"{HEADS}/seq_relationship/output_bias": "sop_classifier.classifier.bias",
    "output_weights": "classifier.weight",
    "output_bias": "classifier.bias",
} | {
    f"{scope}/{theirs}": f"{name}.{ours}"
    for scope, name in MODULES.items()
    for theirs, ours in PARAMETERS.items()
}
AS_IN_PYTORCH = r".+_embeddings\.weight|(.+\.)?classifier\.weight"  # all others are transposed

OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
# What a checkpoint holds beside the model, and regular expressions of such variables.
IGNORED = {
    "moments of Adam and LAMB": r".+/(adam_[mv]|Adam(_1)?|AdamWeightDecayOptimizer(_1)?)",
    "powers of Adam's decay rates": r"(.+/)?beta[12]_power",
    "training step": r"(.+/)?global_step",
    "accumulated gradients": r".+/accum|local_step|batch_finite",
    "moving averages": r".+/ExponentialMovingAverage",
    "object-based optimizer": r"(.+/)?optimizer/.+|.+/\.OPTIMIZER_SLOT/.+",
    "object-based bookkeeping": rf"{OBJECT_GRAPH}|save_counter{VALUE}|.+/OBJECT_CONFIG_JSON",
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
    """Load the HF ALBERT or Adaptive Depth model with a checkpoint's heads, in eval mode.

    Args:
        checkpoint: its prefix (albert_base/model.ckpt-best), or the folder of a TF-Hub export.
        config_file: Google's albert_config.json, or a config.json.

    Raises:
        UserError: TensorFlow is missing, the checkpoint is damaged or not one, it has a variable
            that no rule knows, or the configuration is another model's.
    """
    values, prefix = read_json(config_file), checkpoint_prefix(Path(checkpoint))
    try:
        tensors, report = read_checkpoint(prefix)
        config = tf_config(Path(config_file), values, tensors, report)
        return build(config, tensors), report
    except UserError as error:
        raise UserError(f"{prefix}, with {config_file}: {error}") from error


def read_checkpoint(prefix: str) -> tuple[Tensors, TFReport]:
    """Read a checkpoint's variables in float32, under the names of the state dict."""
    reader_of = import_tensorflow().train.load_checkpoint
    try:
        reader = reader_of(prefix)
        keys, ignored = sort_variables(variable_names(reader))
        tensors = {}
        for name, key in keys.items():
            tensor = torch.from_numpy(reader.get_tensor(key).astype("float32"))
            # TensorFlow's kernels are (inputs, outputs).
            tensors[name] = tensor if re.fullmatch(AS_IN_PYTORCH, name) else tensor.t()
    except UserError:
        raise
    except Exception as error:  # a damaged file fails in every way
        raise UserError(
            f"cannot read it ({' '.join(str(error).split())}): the checkpoint is damaged, or one "
            "of its files is missing; fetch all of them again"
        ) from error
    return tensors, TFReport(prefix, list(keys.values()), ignored)


def variable_names(reader: Any) -> dict[str, tuple[str, ...]]:
    """Return the names that a variable goes by, for each key.

    Keys of object-based checkpoints are paths of attributes; the graph of objects beside them
    has the names that the variables were made with, too.
    """
    keys = sorted(reader.get_variable_to_shape_map())
    if OBJECT_GRAPH not in keys:
        return {key: (key,) for key in keys}
    from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

    graph = TrackableObjectGraph.FromString(reader.get_tensor(OBJECT_GRAPH))
    made = {x.checkpoint_key: x.full_name for node in graph.nodes for x in node.attributes}
    return {key: (object_path(key), made.get(key, "")) for key in keys}


def checkpoint_prefix(path: Path) -> str:
    """Find the prefix of a checkpoint's files, given it, one of the files, or an export."""
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
    path: Path, values: dict[str, Any], tensors: Tensors, report: TFReport
) -> AlbertConfig:
    """Complete the configuration `values`, read from `path`, by what the checkpoint shows.

    Google's code and Keras have constants that their configuration files leave unsaid.
    """
    if any("layer_normalization" in key for key in report.loaded):  # Keras's
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


def sort_variables(names: dict[str, tuple[str, ...]]) -> tuple[dict[str, str], dict[str, str]]:
    """Sort a checkpoint's variables, given the names that each key goes by.

    Returns the key of each tensor of the state dict, and the name of the rule that leaves out each
    other key. Raises UserError for variables without a place, or with the same.
    """
    placed, ignored, unknown = {}, {}, []
    for key, aliases in names.items():
        # An object-based key may be the path to a weight by way of its optimizer: rules come first.
        tensor, reason = tensor_of(*aliases), reason_to_ignore(key, *aliases)
        if tensor in placed:
            raise UserError(f"{placed[tensor]} and {key} would both be {tensor}")
        if tensor:
            placed[tensor] = key
        elif reason:
            ignored[key] = reason
        else:
            unknown.append(key)
    if unknown:
        raise UserError(
            f"no rule knows these {len(unknown)} variables: {', '.join(unknown)}. Nothing is "
            "converted, so that no weight is lost unseen"
        )
    return placed, ignored


def reason_to_ignore(*names: str) -> str | None:
    """Return the name of the rule that leaves out a variable of one of these names."""
    for name in names:
        for rule, which in IGNORED.items():
            if re.fullmatch(which, name):
                return rule
    return None


def tensor_of(*names: str) -> str | None:
    """Name the tensor of the state dict that a variable of one of these names holds."""
    for name in names:
        for rule, place in VARIABLES.items():
            if match := re.fullmatch(rule, name):
                return match.expand(place)
    return None
