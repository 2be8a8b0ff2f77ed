"""Reading TensorFlow checkpoints: Google's ALBERT, and Adaptive Depth.

Every variable of a checkpoint has its place by one of `RULES`, is left out by one of `IGNORED`, or
is an error. The names are those of Google's ALBERT (pre-training, fine-tuning and TF-Hub export)
and of the pre-training of Simoulin and Crabbé (2021).

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

from modeling.act.model import (
    AlbertActForMaskedLM,
    AlbertActForPreTraining,
    AlbertActForSequenceClassification,
    AlbertActModel,
)
from modeling.configuration import AlbertActConfig
from modeling.errors import UserError
from modeling.loading.weights import in_brief, make_config, read_json


class Rule(NamedTuple):
    """Where a variable goes.

    variable: regular expression of its whole name.
    name: its name in the state dict; \\1 and \\2 are groups of `variable`.
    sizes: its shape in TensorFlow: keys of the configuration, or numbers.
    transposed: TensorFlow's kernels are (inputs, outputs), PyTorch's weights (outputs, inputs).
    """

    variable: str
    name: str
    sizes: tuple[str | int, ...]
    transposed: bool = False


def dense(scope: str, name: str, inputs: str, outputs: str | int) -> tuple[Rule, Rule]:
    """A linear layer's kernel (inputs, outputs) and bias."""
    return (
        Rule(f"{scope}/kernel", f"{name}.weight", (inputs, outputs), transposed=True),
        Rule(f"{scope}/bias", f"{name}.bias", (outputs,)),
    )


def norm(scope: str, name: str, size: str) -> tuple[Rule, Rule]:
    """A layer norm's scale and shift."""
    return (
        Rule(f"{scope}/gamma", f"{name}.weight", (size,)),
        Rule(f"{scope}/beta", f"{name}.bias", (size,)),
    )


def layer(scope: str, name: str, attention_norm: str) -> tuple[Rule, ...]:
    """The shared layer. TensorFlow tells its two norms apart by the number of the second."""
    hidden, inner = "hidden_size", "intermediate_size"
    attention = f"{scope}/attention_1"
    return (
        *dense(f"{attention}/self/query", f"{name}.attention.query", hidden, hidden),
        *dense(f"{attention}/self/key", f"{name}.attention.key", hidden, hidden),
        *dense(f"{attention}/self/value", f"{name}.attention.value", hidden, hidden),
        *dense(f"{attention}/output/dense", f"{name}.attention.dense", hidden, hidden),
        *norm(f"{scope}/{NORM}", f"{name}.{attention_norm}", hidden),
        *dense(f"{scope}/ffn_1/intermediate/dense", f"{name}.ffn", hidden, inner),
        *dense(f"{scope}/ffn_1/intermediate/output/dense", f"{name}.ffn_output", inner, hidden),
        *norm(f"{scope}/{NORM}_1", f"{name}.full_layer_layer_norm", hidden),
    )


# A model may stand within other scopes: TF-Hub's `module`, an object that holds the model.
BERT, HEADS = "(?:.+/)?bert", "(?:.+/)?cls"
# TensorFlow 1's layer norm, and Keras's.
NORM = "(?:LayerNorm|layer_normalization)"
KERAS_EPSILON = 1e-3  # added to the variance by Keras's layer norm; Google's adds 1e-12, as HF's
# Pre-training under TensorFlow 2 makes some variables inside a loop, where outer scopes are lost.
ACT_LAYER = f"(?:{BERT}/encoder/)?transformer"
MAPPING = "albert.encoder.embedding_hidden_mapping_in"

RULES = (
    Rule(
        f"{BERT}/embeddings/word_embeddings",
        "albert.embeddings.word_embeddings.weight",
        ("vocab_size", "embedding_size"),
    ),
    Rule(
        f"{BERT}/embeddings/position_embeddings",
        "albert.embeddings.position_embeddings.weight",
        ("max_position_embeddings", "embedding_size"),
    ),
    Rule(
        f"{BERT}/embeddings/token_type_embeddings",
        "albert.embeddings.token_type_embeddings.weight",
        ("type_vocab_size", "embedding_size"),
    ),
    *norm(f"{BERT}/embeddings/{NORM}", "albert.embeddings.LayerNorm", "embedding_size"),
    *dense(f"{BERT}/encoder/embedding_hidden_mapping_in", MAPPING, "embedding_size", "hidden_size"),
    *layer(
        rf"{BERT}/encoder/transformer/group_(\d+)/inner_group_(\d+)",
        r"albert.encoder.albert_layer_groups.\1.albert_layers.\2",
        "attention.LayerNorm",
    ),
    *layer(ACT_LAYER, "albert.encoder.albert_layer", "LayerNorm"),
    *dense(f"{ACT_LAYER}/halting/dense", "albert.encoder.albert_layer.act.dense", "hidden_size", 1),
    *dense(f"{BERT}/pooler/dense", "albert.pooler", "hidden_size", "hidden_size"),
    *dense(
        f"{HEADS}/predictions/transform/dense", "predictions.dense", "hidden_size", "embedding_size"
    ),
    *norm(
        rf"{HEADS}/predictions/transform/{NORM}(?:_\d+)?", "predictions.LayerNorm", "embedding_size"
    ),
    Rule(f"{HEADS}/predictions/output_bias", "predictions.bias", ("vocab_size",)),
    # These two are (outputs, inputs) in TensorFlow too.
    Rule(
        f"{HEADS}/seq_relationship/output_weights",
        "sop_classifier.classifier.weight",
        (2, "hidden_size"),
    ),
    Rule(f"{HEADS}/seq_relationship/output_bias", "sop_classifier.classifier.bias", (2,)),
    Rule("output_weights", "classifier.weight", ("num_labels", "hidden_size")),
    Rule("output_bias", "classifier.bias", ("num_labels",)),
)

OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
OWN = "give the albert_config.json that came with the checkpoint"
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

# The model of each set of heads: ALBERT's, and Adaptive Depth's.
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


def place(
    names: dict[str, tuple[str, ...]],
) -> tuple[dict[str, tuple[str, Rule]], dict[str, str]]:
    """Sort a checkpoint's variables, given the names that each key goes by.

    Returns the key and the rule of each tensor of the state dict, and the name of the rule that
    leaves out each other key. Raises UserError for variables without a place, or with the same.
    """
    placed, ignored, unknown = {}, {}, []
    for key, aliases in names.items():
        # An object-based key may be the path to a weight by way of its optimizer: rules come first.
        found = next(filter(None, map(find_rule, aliases)), None)
        reason = next(filter(None, map(find_ignored, (key, *aliases))), None)
        if found and found[0] in placed:
            raise UserError(f"{placed[found[0]][0]} and {key} would both be {found[0]}")
        if found:
            placed[found[0]] = (key, found[1])
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


def find_ignored(variable: str) -> str | None:
    """The name of the rule that leaves out a variable of this name."""
    return next((rule for rule, which in IGNORED.items() if re.fullmatch(which, variable)), None)


def find_rule(variable: str) -> tuple[str, Rule] | None:
    """The tensor that a variable of this name holds, and the rule that says so."""
    for rule in RULES:
        match = re.fullmatch(rule.variable, variable)
        if match:
            return match.expand(rule.name), rule
    return None


def tf_config(
    path: Path,
    values: dict[str, Any],
    source: TFCheckpoint,
    placed: dict[str, tuple[str, Rule]],
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


def check_shape(key: str, found: list[int], rule: Rule, config: AlbertConfig) -> None:
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
    model = MODELS[heads][isinstance(config, AlbertActConfig)](config)
    encoder = model.base_model
    if encoder.pooler is None and "albert.pooler.weight" in tensors:
        # A masked language model has no use for it, but what is fine-tuned from one does.
        encoder.pooler = nn.Linear(config.hidden_size, config.hidden_size)
    if f"{MAPPING}.weight" not in tensors and config.embedding_size == config.hidden_size:
        # Google's code then leaves the mapping out.
        tensors[f"{MAPPING}.weight"] = torch.eye(config.hidden_size)
        tensors[f"{MAPPING}.bias"] = torch.zeros(config.hidden_size)
    outer = "albert." if encoder is model else ""
    parameters = {f"{outer}{name}": p for name, p in model.named_parameters()}
    difference = parameters.keys() ^ tensors.keys()
    if difference:
        raise UserError(
            f"the checkpoint and a {type(model).__name__} differ in {in_brief(difference)}; is the "
            "checkpoint whole, and an ALBERT's?"
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])
    return model.eval()
