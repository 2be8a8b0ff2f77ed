"""Reading TensorFlow checkpoints: Google's ALBERT, and Adaptive Depth.

The names are those of Google's ALBERT (pre-training, fine-tuning and TF-Hub export) and of the
pre-training of Simoulin and Crabbé (2021). Every variable has a tensor by `NAMES`, is left out by
`IGNORED`, or is an error. TensorFlow is imported only here: requirements-tf.txt.
"""

import re
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from torch import nn
from transformers import AlbertConfig, PreTrainedModel

from elbert_base.errors import UserError
from elbert_base.files import read_json

from ..act import heads as act
from ..configuration import AlbertActConfig
from .configs import make_config
from .weights import LoadReport, Tensors, load_into, new_name

# The heads of a checkpoint -> the dense ALBERT with these heads, and the one whose tokens stop.
MODELS = {
    (): (hf.AlbertModel, act.AlbertActModel),
    ("predictions",): (hf.AlbertForMaskedLM, act.AlbertActForMaskedLM),
    ("predictions", "sop_classifier"): (hf.AlbertForPreTraining, act.AlbertActForPreTraining),
    ("classifier",): (hf.AlbertForSequenceClassification, act.AlbertActForSequenceClassification),
}

# Regular expressions of names, and what takes their place, in this order.
NAMES = {
    r"^module/": "",  # TF-Hub's scope
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
# An optimizer's moments, steps and accumulated gradients.
IGNORED = r".+/(adam_[mv]|Adam(_1)?|accum)|beta[12]_power|global_step|local_step|batch_finite"


def load_tf_checkpoint(
    prefix: str | Path, config_file: str | Path
) -> tuple[PreTrainedModel, LoadReport]:
    """Load the HF ALBERT or Adaptive Depth model with a checkpoint's heads, in eval mode.

    Args:
        prefix: what the names of its files share.
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
        is_adaptive = "albert.encoder.albert_layer.act.dense.weight" in tensors
        config_class = AlbertActConfig if is_adaptive else AlbertConfig
        return build(make_config(Path(config_file), values, config_class), tensors), report
    except UserError as error:
        raise UserError(f"{prefix}, with {config_file}: {error}") from error


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
        keys, ignored = sort_variables(sorted(reader.get_variable_to_shape_map()))
        tensors = {}
        for name, key in keys.items():
            tensor = torch.from_numpy(reader.get_tensor(key).astype("float32"))
            # TensorFlow's kernels are (inputs, outputs).
            tensors[name] = tensor if re.fullmatch(AS_IN_PYTORCH, name) else tensor.t()
    except UserError:
        raise
    except Exception as error:  # a damaged file fails in every way
        raise UserError(
            f"cannot read it ({' '.join(str(error).split())}): give what the names of its files "
            "share, as albert_base/model.ckpt-best; if they are damaged or missing, fetch all again"
        ) from error
    return tensors, LoadReport(prefix, list(keys.values()), ignored, [])


def sort_variables(keys: list[str]) -> tuple[dict[str, str], list[str]]:
    """Sort a checkpoint's variables.

    Returns the key of each tensor of the state dict, and the keys that are left out. Raises
    UserError for variables without a place.
    """
    placed, ignored, unknown = {}, [], []
    for key in keys:
        name = new_name(key, NAMES)
        if re.fullmatch(IGNORED, key):
            ignored.append(key)
        elif re.fullmatch(PLACED, name):
            placed[name] = key
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
    dense, adaptive = MODELS[heads]
    model_class: Any = adaptive if isinstance(config, AlbertActConfig) else dense
    model = model_class(config)
    encoder = model.base_model
    if encoder.pooler is None and "albert.pooler.weight" in tensors:
        # A masked language model has no use for it, but what is fine-tuned from one does.
        encoder.pooler = nn.Linear(config.hidden_size, config.hidden_size)
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
