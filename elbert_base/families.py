"""Encoders whose layers are not shared, read as ALBERTs: BERT, RoBERTa and ELECTRA. Loads no torch.

Such an encoder is an ALBERT with as many layer groups as layers, whose mapping from embedding to
hidden state is the identity where both are equally wide.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

MAPPING = "encoder.embedding_hidden_mapping_in"
# For each family, regular expressions of its tensors' names, and what takes their place; they are
# applied before LAYER_NAMES. RoBERTa's classification head is a pooler and a classifier. ELECTRA's
# has another activation than a pooler: only an ELBERT that keeps a head (`keep_head`) has a place
# for it.
FAMILIES = {
    "bert": {r"^bert\.": ""},
    "roberta": {
        r"^roberta\.": "",
        r"^classifier\.dense\.": "pooler.",
        r"^classifier\.out_proj\.": "classifier.",
    },
    "electra": {
        r"^electra\.": "",
        r"^embeddings_project\.": f"{MAPPING}.",
        r"^classifier\.dense\.": "kept_head.pooler.",
        r"^classifier\.out_proj\.": "kept_head.classifier.",
    },
}
# Of the pooler in the classification head of a family; tanh for the others.
HEAD_ACTIVATIONS = {"electra": "gelu"}
# Families that number only the tokens that are not padding; the first is pad_token_id + 1.
SKIP_PADDING = ("roberta",)
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
    "bert": r"encoder\.layer\.0\.attention\.self\.query\.",
}


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
