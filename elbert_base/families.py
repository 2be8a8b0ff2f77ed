"""Encoders whose layers are not shared, read as ALBERTs: BERT, RoBERTa and ELECTRA. Loads no torch.

Such an encoder is an ALBERT with as many layer groups as layers, whose mapping from embedding to
hidden state is the identity where both are equally wide.
"""

MAPPING = "encoder.embedding_hidden_mapping_in"
# For each family, regular expressions of its tensors' names, and what takes their place; they are
# applied before LAYER_NAMES. RoBERTa's classification head is a pooler and a classifier. ELECTRA's
# has the same names, but another activation than a pooler, so it is left out.
FAMILIES = {
    "bert": {r"^bert\.": ""},
    "roberta": {
        r"^roberta\.": "",
        r"^classifier\.dense\.": "pooler.",
        r"^classifier\.out_proj\.": "classifier.",
    },
    "electra": {r"^electra\.": "", r"^embeddings_project\.": f"{MAPPING}."},
}
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
