"""Encoders whose layers are not shared, read as ALBERTs: BERT and its kind. Loads no torch.

Such an encoder is an ALBERT with as many layer groups as layers, whose mapping from embedding to
hidden state is the identity where both are equally wide.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from elbert_base.errors import UserError
from elbert_base.keys import MODE_KEYS

MAPPING = "encoder.embedding_hidden_mapping_in"
# For each family, regular expressions of its tensors' names, and what takes their place; they are
# applied before LAYER_NAMES. RoBERTa's classification head is a pooler and a classifier. ELECTRA's
# and DistilBERT's have another activation than a pooler: only an ELBERT that keeps a head
# (`keep_head`) has a place for them.
ROBERTA_NAMES = {
    r"^roberta\.": "",
    r"^classifier\.dense\.": "pooler.",
    r"^classifier\.out_proj\.": "classifier.",
}
FAMILIES = {
    "bert": {r"^bert\.": ""},
    "roberta": ROBERTA_NAMES,
    "xlm-roberta": ROBERTA_NAMES,
    "camembert": ROBERTA_NAMES,
    "distilbert": {
        r"^distilbert\.": "",
        r"^pre_classifier\.": "kept_head.pooler.",
        r"^classifier\.": "kept_head.classifier.",
        r"^transformer\.layer\.(\d+)\.": r"encoder.albert_layer_groups.\1.albert_layers.0.",
        r"attention\.q_lin\.": "attention.query.",
        r"attention\.k_lin\.": "attention.key.",
        r"attention\.v_lin\.": "attention.value.",
        r"attention\.out_lin\.": "attention.dense.",
        r"(_layers\.0)\.sa_layer_norm\.": r"\1.attention.LayerNorm.",
        r"(_layers\.0)\.ffn\.lin1\.": r"\1.ffn.",
        r"(_layers\.0)\.ffn\.lin2\.": r"\1.ffn_output.",
        r"(_layers\.0)\.output_layer_norm\.": r"\1.full_layer_layer_norm.",
    },
    "electra": {
        r"^electra\.": "",
        r"^embeddings_project\.": f"{MAPPING}.",
        r"^classifier\.dense\.": "kept_head.pooler.",
        r"^classifier\.out_proj\.": "kept_head.classifier.",
    },
}
# Of the pooler in the classification head of a family; tanh for the others.
HEAD_ACTIVATIONS = {"electra": "gelu", "distilbert": "relu"}
# Families that number only the tokens that are not padding; the first is pad_token_id + 1.
SKIP_PADDING = ("roberta", "xlm-roberta", "camembert")
# Families without segments: an ALBERT's, of zeros, take their place.
NO_SEGMENTS = ("distilbert",)
# Keys of a family's config.json that an ALBERT's has by other names.
CONFIG_NAMES = {
    "distilbert": {
        "dim": "hidden_size",
        "n_layers": "num_hidden_layers",
        "n_heads": "num_attention_heads",
        "hidden_dim": "intermediate_size",
        "activation": "hidden_act",
        "dropout": "hidden_dropout_prob",
        "attention_dropout": "attention_probs_dropout_prob",
        "seq_classif_dropout": "classifier_dropout_prob",
    }
}
FAMILY_NAMES = "ALBERT, BERT, DistilBERT, RoBERTa, XLM-RoBERTa, CamemBERT and ELECTRA"
# What makes the layers of encoders that users ask for another kind of layer.
OTHER_LAYERS = {
    "modernbert": "rotary positions and gated layers",
    "deberta": "attention to relative positions",
    "deberta-v2": "attention to relative positions",
    "mpnet": "attention to relative positions",
}
LAYER_NAMES = {
    r"^pooler\.dense\.": "pooler.",
    r"^encoder\.layer\.(\d+)\.": r"encoder.albert_layer_groups.\1.albert_layers.0.",
    r"(_layers\.0\.attention)\.(self|output)\.": r"\1.",
    r"(_layers\.0)\.intermediate\.dense\.": r"\1.ffn.",
    r"(_layers\.0)\.output\.dense\.": r"\1.ffn_output.",
    r"(_layers\.0)\.output\.LayerNorm\.": r"\1.full_layer_layer_norm.",
}
# The first family of which a tensor's name has the sign is the weights', where config.json does not
# say. BERT's sign is in all families here; a RoBERTa without a head has no other.
SIGNS = {
    "albert": r"embedding_hidden_mapping_in|albert_layer",
    "roberta": r"^(roberta|lm_head)\.",
    "electra": r"^(electra|discriminator_predictions|generator_predictions)\.|embeddings_project",
    "distilbert": r"transformer\.layer\.0\.attention\.q_lin\.",
    "bert": r"encoder\.layer\.0\.attention\.self\.query\.",
}


def check_family(path: Path, model_type: object) -> None:
    """Raise UserError unless models of this suite can have the layers of an encoder.

    path: of the config.json that holds `model_type`.
    """
    if model_type in (None, "albert", *FAMILIES, *MODE_KEYS):
        return
    layers = OTHER_LAYERS.get(str(model_type))
    reason = f"its layers have {layers}" if layers else "its layers would be lost"
    raise UserError(
        f"{path}: model_type = {model_type!r}: only the weights of {FAMILY_NAMES} and of this "
        f"library's own models can be read; {reason}"
    )


def family_of(names: Iterable[str], config: Mapping[str, Any]) -> str | None:
    """Recognise the family of an encoder by its tensors' names; None for another family.

    config: the content of its config.json, which tells a RoBERTa without a head from a BERT: it has
    one segment.
    """
    all_names = list(names)
    for family, sign in SIGNS.items():
        if any(re.search(sign, name) for name in all_names):
            is_bare = family == "bert" and not any(name.startswith("bert.") for name in all_names)
            has_one_segment = config.get("type_vocab_size") == 1
            return "roberta" if is_bare and has_one_segment else family
    return None
