"""Encoders with layers of their own that are read as ALBERTs: BERT, RoBERTa and ELECTRA. No torch.

Each is an ALBERT of as many groups as layers, whose mapping is the identity where the embedding is
as wide as the hidden state. A family is a row of FAMILIES; they differ in names, and in how they
number positions.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

MAPPING = "encoder.embedding_hidden_mapping_in"


class Family(NamedTuple):
    """One family's differences from BERT.

    names: regular expressions of tensors' names, and what takes their place, before LAYER_NAMES.
    skips_padding: only tokens that are no padding have positions; the first is pad_token_id + 1.
    """

    names: Mapping[str, str]
    skips_padding: bool = False


# RoBERTa's head for classes is a pooler and a classifier. ELECTRA's, of the same names, has another
# activation than a pooler, so it is left out.
ROBERTA_NAMES = {
    r"^roberta\.": "",
    r"^classifier\.dense\.": "pooler.",
    r"^classifier\.out_proj\.": "classifier.",
}
FAMILIES = {
    "bert": Family({r"^bert\.": ""}),
    "roberta": Family(ROBERTA_NAMES, skips_padding=True),
    "electra": Family({r"^electra\.": "", r"^embeddings_project\.": f"{MAPPING}."}),
}
LAYER_NAMES = {
    r"^pooler\.dense\.": "pooler.",
    r"^encoder\.layer\.(\d+)\.": r"encoder.albert_layer_groups.\1.albert_layers.0.",
    r"(_layers\.0\.attention)\.(self|output)\.": r"\1.",
    r"(_layers\.0)\.intermediate\.dense\.": r"\1.ffn.",
    r"(_layers\.0)\.output\.dense\.": r"\1.ffn_output.",
    r"(_layers\.0)\.output\.LayerNorm\.": r"\1.full_layer_layer_norm.",
}


def family_of(values: Mapping[str, Any]) -> Family | None:
    """Look up the family of a config.json's `values`; None for an ALBERT, or a foreign one."""
    return FAMILIES.get(str(values.get("model_type")))
