"""Read TensorFlow checkpoints: Google's ALBERT, and Adaptive Depth.

The names are those of Google's ALBERT (pre-training, fine-tuning and TF-Hub export) and of the
pre-training of Simoulin and Crabbé (2021). A variable becomes a tensor by `NAMES`, is left out by
`IGNORED`, or is an error. Only this file imports TensorFlow (requirements/tf.txt).
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from torch import nn
from transformers import AlbertConfig, PreTrainedModel

from ..act import heads as act
from ..configuration import AlbertActConfig
from ..errors import UserError
from ..files import read_json
from .configs import make_config
from .weights import LoadReport, TensorDict, load_into, new_name

# The heads of a checkpoint -> the plain ALBERT with these heads, and the one whose tokens halt.
MODELS = {
    (): (hf.AlbertModel, act.AlbertActModel),
    ("predictions",): (hf.AlbertForMaskedLM, act.AlbertActForMaskedLM),
    ("predictions", "sop_classifier"): (hf.AlbertForPreTraining, act.AlbertActForPreTraining),
    ("classifier",): (hf.AlbertForSequenceClassification, act.AlbertActForSequenceClassification),
}

# Regular expressions of variables' names, and what takes their place, in this order.
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
TENSOR_NAME = r"(albert|predictions|sop_classifier|classifier)\.[\w.]+"  # what NAMES makes
# Weights with the same dimensions in both frameworks; others are transposed.
SAME_DIMENSIONS = r".+(_embeddings|classifier)\.weight|classifier\.weight"
# An optimizer's moments, steps and accumulated gradients.
IGNORED = r".+/(adam_[mv]|Adam(_1)?|accum)|beta[12]_power|global_step|local_step|batch_finite"

FILE_ENDING = r"\.(index|meta|data-\d+-of-\d+)$"  # of a checkpoint's files, behind the prefix


def load_tf_checkpoint(
    prefix: str | Path, config_file: str | Path
) -> tuple[PreTrainedModel, LoadReport]:
    """Load the HF ALBERT or the Adaptive Depth model with a checkpoint's heads, in eval mode.

    Args:
        prefix: what the names of the checkpoint's files share, or one of the files.
        config_file: Google's albert_config.json, or a config.json.

    Returns:
        The model, and a report whose names are those of the checkpoint's variables.

    Raises:
        UserError: TensorFlow is missing, the checkpoint is damaged or not one, it has a variable
            that no rule knows, or the configuration is another model's.
    """
    values = read_json(config_file)
    try:
        tensors, report = read_tf_checkpoint(str(prefix))
        # Google's code and Keras have constants that their configuration files leave out.
        if any("layer_normalization" in key for key in report.loaded):
            values.setdefault("layer_norm_eps", 1e-3)
        if str(values.get("hidden_act")).lower() == "gelu":
            values["hidden_act"] = "gelu_new"  # their GELU is the approximation by tanh
        names_classes = "num_labels" in values or "id2label" in values
        if "classifier.bias" in tensors and not names_classes:
            values["num_labels"] = tensors["classifier.bias"].numel()
        is_adaptive = "albert.encoder.albert_layer.act.dense.weight" in tensors
        config_class = AlbertActConfig if is_adaptive else AlbertConfig
        config = make_config(Path(config_file), values, config_class)
        return build_model(config, tensors), report
    except UserError as error:
        raise UserError(f"{prefix}, with {config_file}: {error}") from error


def read_tf_checkpoint(prefix: str) -> tuple[TensorDict, LoadReport]:
    """Read a checkpoint's variables in float32, under the names of the state dict.

    The report's names are those of the checkpoint.
    """
    try:
        from tensorflow.train import load_checkpoint
    except ImportError as error:
        raise UserError(
            "reading TensorFlow checkpoints needs TensorFlow: pip install -r requirements/tf.txt"
        ) from error
    prefix = re.sub(FILE_ENDING, "", prefix)
    try:
        reader = load_checkpoint(prefix)
        variables = sort_variables(sorted(reader.get_variable_to_shape_map()))
        tensors = {}
        for name, key in variables.key_of_tensor.items():
            tensor = torch.from_numpy(reader.get_tensor(key).astype("float32"))
            # TensorFlow's kernels are (inputs, outputs).
            tensors[name] = tensor if re.fullmatch(SAME_DIMENSIONS, name) else tensor.t()
    except UserError:
        raise
    except Exception as error:  # a damaged file fails in many ways
        raise UserError(
            f"cannot read it ({' '.join(str(error).split())}): give what the names of its files "
            "share, as albert_base/model.ckpt-best; if they are damaged or missing, fetch all again"
        ) from error
    report = LoadReport(
        source=prefix,
        loaded=list(variables.key_of_tensor.values()),
        ignored=variables.ignored,
        initialised=[],
    )
    return tensors, report


@dataclass
class Variables:
    """What is read and what is left out of a checkpoint.

    Attributes:
        key_of_tensor: the variable's key in the checkpoint, by the tensor's name in a state dict.
        ignored: the keys of variables that are left out.
    """

    key_of_tensor: dict[str, str]
    ignored: list[str]


def sort_variables(keys: list[str]) -> Variables:
    """Sort the keys of a checkpoint's variables; raises UserError for those that no rule knows."""
    variables = Variables(key_of_tensor={}, ignored=[])
    unknown = []
    for key in keys:
        name = new_name(key, NAMES)
        if re.fullmatch(IGNORED, key):
            variables.ignored.append(key)
        elif re.fullmatch(TENSOR_NAME, name):
            variables.key_of_tensor[name] = key
        else:
            unknown.append(key)
    if unknown:
        raise UserError(
            f"{len(unknown)} variables are unknown: {', '.join(unknown)}. Nothing was converted, "
            "so that no weight is lost unnoticed"
        )
    return variables


def build_model(config: AlbertConfig, tensors: TensorDict) -> PreTrainedModel:
    """Build the model with the heads that `tensors` have; raises UserError for unused tensors."""
    parts = {name.split(".")[0] for name in tensors}
    heads = tuple(sorted(parts - {"albert"}))
    if heads not in MODELS:
        raise UserError(f"no model has exactly these heads: {', '.join(heads)}")
    plain_class, adaptive_class = MODELS[heads]
    model_class: Any = adaptive_class if isinstance(config, AlbertActConfig) else plain_class
    model = model_class(config)
    encoder = model.base_model
    if encoder.pooler is None and "albert.pooler.weight" in tensors:
        # A masked language model does without a pooler, but a model fine-tuned from it does not.
        encoder.pooler = nn.Linear(config.hidden_size, config.hidden_size)
    if encoder is model:
        tensors = {name.removeprefix("albert."): tensor for name, tensor in tensors.items()}
    # A checkpoint leaves out the decoder, which shares the word embeddings.
    report = load_into(
        model, tensors, source=type(model).__name__, new_parts=("predictions.decoder.",)
    )
    if report.ignored:
        raise UserError(
            f"a {type(model).__name__} of this configuration has no {', '.join(report.ignored)}; "
            "give the albert_config.json that came with the checkpoint"
        )
    return model.eval()
