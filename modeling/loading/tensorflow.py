"""Reading TensorFlow checkpoints: Google's ALBERT, and Adaptive Depth.

Checkpoints may be name-based, as TensorFlow 1 writes them, or object-based, as TensorFlow 2 does.
The names are those of Google's ALBERT (pre-training, fine-tuning and TF-Hub export) and of the
pre-training of Simoulin and Crabbé (2021). Every variable has a tensor by `NAMES`, is left out by
`IGNORED`, or is an error. TensorFlow is imported only here: requirements-tf.txt.
"""

import re
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from torch import nn
from transformers import AlbertConfig, PreTrainedModel

from ..act import heads as act
from ..configuration import AlbertActConfig
from ..errors import UserError
from .configs import make_config
from .files import read_json
from .weights import LoadReport, Tensors, load_into, renamed

# The heads of a checkpoint -> the dense ALBERT with these heads, and the one whose tokens stop.
MODELS = {
    (): (hf.AlbertModel, act.AlbertActModel),
    ("predictions",): (hf.AlbertForMaskedLM, act.AlbertActForMaskedLM),
    ("predictions", "sop_classifier"): (hf.AlbertForPreTraining, act.AlbertActForPreTraining),
    ("classifier",): (hf.AlbertForSequenceClassification, act.AlbertActForSequenceClassification),
}

# Regular expressions of names, and what takes their place, in this order.
NAMES = {
    r"^(.+/)?(bert|cls)/": r"\2/",  # outer scopes: TF-Hub's `module`, an object with the model
    # Pre-training under TensorFlow 2 makes some variables inside a loop, where scopes are lost.
    r"^(bert/encoder/)?transformer/": "albert.encoder.",
    r"^bert/": "albert.",
    r"\.group_(\d+)/inner_group_(\d+)/": r".albert_layer_groups.\1.albert_layers.\2.",
    r"\.encoder\.(attention_1|layer_norm|LayerNorm|ffn_1|halting)": r".encoder.albert_layer.\1",
    "layer_normalization": "LayerNorm",  # Keras's
    r"attention_1/self/|attention_1/output/": "attention.",
    "ffn_1/intermediate/output/dense": "ffn_output",
    "ffn_1/intermediate/dense": "ffn",
    "halting/": "act.",
    r"(albert_layers?\..*)LayerNorm_1": r"\1full_layer_layer_norm",
    r"(albert_layers\.\d+\.)LayerNorm": r"\1attention.LayerNorm",
    r"^cls/predictions/transform/(dense|LayerNorm)(_\d+)?": r"predictions.\1",
    r"^cls/predictions/output_": "predictions.",
    r"^cls/seq_relationship/output_": "sop_classifier.classifier.",
    r"^output_(?=weights|bias)": "classifier.",
    r"^(albert\.(embeddings|encoder))/": r"\1.",
    r"pooler/dense": "pooler",
    r"(_embeddings)$": r"\1.weight",
    r"[./](kernel|gamma|weights)$": ".weight",
    r"[./](bias|beta)$": ".bias",
}
PLACED = r"(albert|predictions|sop_classifier|classifier)\.[\w.]+"  # names that NAMES made
AS_IN_PYTORCH = r".+(_embeddings|classifier)\.weight|classifier\.weight"  # others are transposed

OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
IGNORED = (
    r".+/(adam_[mv]|Adam(_1)?|AdamWeightDecayOptimizer(_1)?)",  # moments
    r"(.+/)?(beta[12]_power|global_step)",
    r".+/accum|local_step|batch_finite",  # accumulated gradients
    r".+/ExponentialMovingAverage",
    r"(.+/)?optimizer/.+|.+/\.OPTIMIZER_SLOT/.+",
    rf"{OBJECT_GRAPH}|save_counter{VALUE}|.+/OBJECT_CONFIG_JSON",
)


def load_tf_checkpoint(
    prefix: str | Path, config_file: str | Path
) -> tuple[PreTrainedModel, LoadReport]:
    """Load the HF ALBERT or Adaptive Depth model with a checkpoint's heads, in eval mode.

    Args:
        prefix: what the names of its files share, as `checkpoint_prefix` finds it.
        config_file: Google's albert_config.json, or a config.json.

    Raises:
        UserError: TensorFlow is missing, the checkpoint is damaged or not one, it has a variable
            that no rule knows, or the configuration is another model's.
    """
    values = read_json(config_file)
    try:
        tensors, report = read_checkpoint(str(prefix))
        # Google's code and Keras have constants that their configuration files leave unsaid.
        if any("layer_normalization" in key for key in report.loaded):
            values.setdefault("layer_norm_eps", 1e-3)
        if str(values.get("hidden_act")).lower() == "gelu":
            values["hidden_act"] = "gelu_new"  # by tanh
        if "classifier.bias" in tensors and not values.keys() & {"num_labels", "id2label"}:
            values["num_labels"] = tensors["classifier.bias"].numel()
        adaptive = "albert.encoder.albert_layer.act.dense.weight" in tensors
        kind = AlbertActConfig if adaptive else AlbertConfig
        return build(make_config(Path(config_file), values, kind), tensors), report
    except UserError as error:
        raise UserError(f"{prefix}, with {config_file}: {error}") from error


def checkpoint_prefix(path: Path) -> str:
    """Find the prefix of a checkpoint's files, given it, one of them, or a folder of one."""
    prefix = re.sub(r"\.(index|meta|data-\d{5}-of-\d{5})$", "", str(path))
    if Path(f"{prefix}.index").is_file():
        return prefix
    found = sorted(str(index.with_suffix("")) for index in path.rglob("*.index"))
    if len(found) != 1:
        raise UserError(
            f"{path}: there is no {prefix}.index, so this is no TensorFlow checkpoint; give the "
            "part that the names of its files share, such as "
            + (" or ".join(found) or "albert_base/model.ckpt-best")
        )
    return found[0]


def read_checkpoint(prefix: str) -> tuple[Tensors, LoadReport]:
    """Read a checkpoint's variables in float32, under the names of the state dict."""
    try:
        from tensorflow.train import load_checkpoint
    except ImportError as error:
        raise UserError(
            "reading TensorFlow checkpoints needs TensorFlow: pip install -r requirements-tf.txt"
        ) from error
    try:
        reader = load_checkpoint(prefix)
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
    return tensors, LoadReport(prefix, list(keys.values()), ignored, [])


def variable_names(reader: Any) -> dict[str, tuple[str, ...]]:
    """Return the names that a variable goes by, for each key.

    Keys of object-based checkpoints are paths of attributes, in which `.S` is a slash in a name and
    `..` a dot; the graph of objects beside them has the names that the variables were made with.
    """
    keys = sorted(reader.get_variable_to_shape_map())
    if OBJECT_GRAPH not in keys:
        return {key: (key,) for key in keys}
    from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

    graph = TrackableObjectGraph.FromString(reader.get_tensor(OBJECT_GRAPH))
    made = {x.checkpoint_key: x.full_name for node in graph.nodes for x in node.attributes}
    unescape = partial(re.sub, r"\.([S.])", lambda escape: "/" if escape[1] == "S" else ".")
    return {key: (unescape(key.removesuffix(VALUE)), made.get(key, "")) for key in keys}


def sort_variables(names: dict[str, tuple[str, ...]]) -> tuple[dict[str, str], list[str]]:
    """Sort a checkpoint's variables, given the names that each key goes by.

    Returns the key of each tensor of the state dict, and the keys that are left out. Raises
    UserError for variables without a place, or with the same.
    """
    placed, ignored, unknown = {}, [], []
    for key, aliases in names.items():
        # An object-based key may be the path to a weight by way of its optimizer: tensors first.
        candidates = renamed(dict.fromkeys(aliases), NAMES)
        ours = [name for name in candidates if re.fullmatch(PLACED, name)]
        if ours and ours[0] in placed:
            raise UserError(f"{placed[ours[0]]} and {key} would both be {ours[0]}")
        if ours:
            placed[ours[0]] = key
        elif any(re.fullmatch("|".join(IGNORED), name) for name in (key, *aliases)):
            ignored.append(key)
        else:
            unknown.append(key)
    if unknown:
        raise UserError(
            f"no rule knows these {len(unknown)} variables: {', '.join(unknown)}. Nothing is "
            "converted, so that no weight is lost unseen"
        )
    return placed, ignored


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
    mapping = "albert.encoder.embedding_hidden_mapping_in"
    if f"{mapping}.weight" not in tensors and config.embedding_size == config.hidden_size:
        # Google's code then leaves the mapping out.
        tensors[f"{mapping}.weight"] = torch.eye(config.hidden_size)
        tensors[f"{mapping}.bias"] = torch.zeros(config.hidden_size)
    if encoder is model:
        tensors = {name.removeprefix("albert."): tensor for name, tensor in tensors.items()}
    # The decoder shares the word embeddings.
    report = load_into(model, tensors, type(model).__name__, heads=("predictions.decoder.",))
    if report.ignored:
        raise UserError(
            f"a {type(model).__name__} of this configuration has no {', '.join(report.ignored)}; "
            "give the albert_config.json that came with the checkpoint"
        )
    return model.eval()
