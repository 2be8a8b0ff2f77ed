"""Where the variables of a TensorFlow checkpoint go.

Each has its place by one of `RENAMINGS`, is left out by one of `IGNORED`, or is an error. The names
are those of Google's ALBERT (pre-training, fine-tuning and TF-Hub export) and of the pre-training
of Simoulin and Crabbé (2021).
"""

import re
from typing import NamedTuple

from ..errors import UserError


class Renaming(NamedTuple):
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


def dense(scope: str, name: str, inputs: str, outputs: str | int) -> tuple[Renaming, Renaming]:
    """A linear layer's kernel (inputs, outputs) and bias."""
    return (
        Renaming(f"{scope}/kernel", f"{name}.weight", (inputs, outputs), transposed=True),
        Renaming(f"{scope}/bias", f"{name}.bias", (outputs,)),
    )


def norm(scope: str, name: str, size: str) -> tuple[Renaming, Renaming]:
    """A layer norm's scale and shift."""
    return (
        Renaming(f"{scope}/gamma", f"{name}.weight", (size,)),
        Renaming(f"{scope}/beta", f"{name}.bias", (size,)),
    )


def layer(scope: str, name: str, attention_norm: str) -> tuple[Renaming, ...]:
    """The shared layer. TensorFlow tells its two norms apart by the number of the second."""
    hidden, inner = "hidden_size", "intermediate_size"
    attention = f"{scope}/attention_1"
    return (
        *(
            rule
            for part in ("query", "key", "value")
            for rule in dense(
                f"{attention}/self/{part}", f"{name}.attention.{part}", hidden, hidden
            )
        ),
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
TO_HIDDEN = "albert.encoder.embedding_hidden_mapping_in"

RENAMINGS = (
    *(
        Renaming(
            f"{BERT}/embeddings/{kind}_embeddings",
            f"albert.embeddings.{kind}_embeddings.weight",
            (rows, "embedding_size"),
        )
        for kind, rows in (
            ("word", "vocab_size"),
            ("position", "max_position_embeddings"),
            ("token_type", "type_vocab_size"),
        )
    ),
    *norm(f"{BERT}/embeddings/{NORM}", "albert.embeddings.LayerNorm", "embedding_size"),
    *dense(
        f"{BERT}/encoder/embedding_hidden_mapping_in",
        TO_HIDDEN,
        "embedding_size",
        "hidden_size",
    ),
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
    Renaming(f"{HEADS}/predictions/output_bias", "predictions.bias", ("vocab_size",)),
    # These two are (outputs, inputs) in TensorFlow too.
    Renaming(
        f"{HEADS}/seq_relationship/output_weights",
        "sop_classifier.classifier.weight",
        (2, "hidden_size"),
    ),
    Renaming(f"{HEADS}/seq_relationship/output_bias", "sop_classifier.classifier.bias", (2,)),
    Renaming("output_weights", "classifier.weight", ("num_labels", "hidden_size")),
    Renaming("output_bias", "classifier.bias", ("num_labels",)),
)

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


def place(
    names: dict[str, tuple[str, ...]],
) -> tuple[dict[str, tuple[str, Renaming]], dict[str, str]]:
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


def find_rule(variable: str) -> tuple[str, Renaming] | None:
    """The tensor that a variable of this name holds, and the rule that says so."""
    for rule in RENAMINGS:
        match = re.fullmatch(rule.variable, variable)
        if match:
            return match.expand(rule.name), rule
    return None
