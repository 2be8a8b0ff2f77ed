"""Where the variables of a TensorFlow checkpoint go.

Each has its tensor by a rule of `MODULES` or `VARIABLES`, is left out by one of `IGNORED`, or is an
error. The names are those of Google's ALBERT (pre-training, fine-tuning and TF-Hub export) and of
the pre-training of Simoulin and Crabbé (2021).
"""

import re

from ..errors import UserError


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
AS_IN_PYTORCH = r".+_embeddings\.weight|(.+\.)?classifier\.weight"  # all others are transposed
PARAMETERS = {"kernel": "weight", "gamma": "weight", "bias": "bias", "beta": "bias"}
# The same of variables that no module has.
VARIABLES = {
    rf"{BERT}/embeddings/(word|position|token_type)_embeddings": (
        r"albert.embeddings.\1_embeddings.weight"
    ),
    f"{HEADS}/predictions/output_bias": "predictions.bias",
    f"{HEADS}/seq_relationship/output_weights": "sop_classifier.classifier.weight",
    f"{HEADS}/seq_relationship/output_bias": "sop_classifier.classifier.bias",
    "output_weights": "classifier.weight",
    "output_bias": "classifier.bias",
}

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


def sort_variables(names: dict[str, tuple[str, ...]]) -> tuple[dict[str, str], dict[str, str]]:
    """Sort a checkpoint's variables, given the names that each key goes by.

    Returns the key of each tensor of the state dict, and the name of the rule that leaves out each
    other key. Raises UserError for variables without a place, or with the same.
    """
    placed, ignored, unknown = {}, {}, []
    for key, aliases in names.items():
        # An object-based key may be the path to a weight by way of its optimizer: rules come first.
        tensor = next(filter(None, map(tensor_of, aliases)), None)
        reason = next(filter(None, map(reason_to_ignore, (key, *aliases))), None)
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


def reason_to_ignore(variable: str) -> str | None:
    """Return the name of the rule that leaves out a variable of this name."""
    return next((rule for rule, which in IGNORED.items() if re.fullmatch(which, variable)), None)


def tensor_of(variable: str) -> str | None:
    """Return the name in the state dict of the tensor that a variable of this name holds."""
    scope, _, parameter = variable.rpartition("/")
    for rule, name in VARIABLES.items():
        if match := re.fullmatch(rule, variable):
            return match.expand(name)
    for rule, name in MODULES.items():
        if parameter in PARAMETERS and (match := re.fullmatch(rule, scope)):
            return f"{match.expand(name)}.{PARAMETERS[parameter]}"
    return None
