"""Encoders with layers of their own that are read as ALBERTs: BERT, RoBERTa and ELECTRA. No torch.

Each is an ALBERT of as many groups as layers, whose mapping is the identity where the embedding is
as wide as the hidden state. A family has a row of FAMILIES: regular expressions of its tensors'
names, and what takes their place, before LAYER_NAMES.
"""

MAPPING = "encoder.embedding_hidden_mapping_in"
# RoBERTa's head for classes is a pooler and a classifier. ELECTRA's, of the same names, has another
# activation than a pooler, so it is left out.
FAMILIES = {
    "bert": {r"^bert\.": ""},
    "roberta": {
        r"^roberta\.": "",
        r"^classifier\.dense\.": "pooler.",
        r"^classifier\.out_proj\.": "classifier.",
    },
    "electra": {r"^electra\.": "", r"^embeddings_project\.": f"{MAPPING}."},
}
# Only tokens that are no padding have positions; the first is pad_token_id + 1.
SKIP_PADDING = ("roberta",)
LAYER_NAMES = {
    r"^pooler\.dense\.": "pooler.",
    r"^encoder\.layer\.(\d+)\.": r"encoder.albert_layer_groups.\1.albert_layers.0.",
    r"(_layers\.0\.attention)\.(self|output)\.": r"\1.",
    r"(_layers\.0)\.intermediate\.dense\.": r"\1.ffn.",
    r"(_layers\.0)\.output\.dense\.": r"\1.ffn_output.",
    r"(_layers\.0)\.output\.LayerNorm\.": r"\1.full_layer_layer_norm.",
}
