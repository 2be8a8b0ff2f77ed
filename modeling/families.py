"""Encoders with the suite's own layers, read as ALBERTs: BERT and its kind. Loads no torch.

Every other encoder runs by transformers' layers (`hf_layers/`), unless it is refused here.

Such an encoder is an ALBERT with as many layer groups as layers, whose mapping from embedding to
hidden state is the identity where both are equally wide. So classes and tensors keep the published
names (`AlbertPreTrainedModel`, `albert.encoder.albert_layer_groups.7…`) also where they hold a
BERT: a checkpoint of ELBERT's code and one of a BERT with exits load by the same names.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import transformers

from .errors import UserError
from .keys import MODE_KEYS

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
    "mpnet": {
        r"^mpnet\.": "",
        r"^classifier\.dense\.": "pooler.",
        r"^classifier\.out_proj\.": "classifier.",
        r"attention\.attn\.q\.": "attention.query.",
        r"attention\.attn\.k\.": "attention.key.",
        r"attention\.attn\.v\.": "attention.value.",
        r"attention\.attn\.o\.": "attention.dense.",
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
SKIP_PADDING = ("roberta", "xlm-roberta", "camembert", "mpnet")
# Families without segments: an ALBERT's, of zeros, take their place.
NO_SEGMENTS = ("distilbert", "mpnet")
# Of an MPNet, whatever its config.json says: transformers computes with no other number.
DISTANCE_BUCKETS = 32
# Keys that transformers' code does not read, but has in their place what is here: so whatever a
# family's config.json says.
FIXED_VALUES: dict[str, dict[str, Any]] = {
    "distilbert": {"layer_norm_eps": 1e-12},
    "mpnet": {"pad_token_id": 1},
}
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
# Keys under which an encoder computes what it does not compute here: the value, beside null, that
# changes nothing, and what another value asks for.
OTHER_COMPUTATIONS: dict[str, tuple[Any, str]] = {
    "is_decoder": (False, "tokens that see only those before them"),
    "add_cross_attention": (False, "attention to the states of another model"),
    "position_embedding_type": ("absolute", "positions of another kind than embeddings"),
    "pruned_heads": ({}, "layers that lack some heads"),
}
# Keys of weights that were quantised.
QUANTISED = ("quantization_config", "compression_config")
FAMILY_NAMES = "ALBERT, BERT, DistilBERT, RoBERTa, XLM-RoBERTa, CamemBERT, ELECTRA and MPNet"
# Encoders that compute long texts in another way than short ones, which no check on short ones
# shows.
OTHER_COMPUTATION = {"big_bird": "each token of a long text sees others that are drawn at random"}
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
    "mpnet": r"encoder\.layer\.0\.attention\.attn\.q\.",
    "roberta": r"^(roberta|lm_head)\.",
    "electra": r"^(electra|discriminator_predictions|generator_predictions)\.|embeddings_project",
    "distilbert": r"transformer\.layer\.0\.attention\.q_lin\.",
    "bert": r"encoder\.layer\.0\.attention\.self\.query\.",
}


def is_general(model_type: object) -> bool:
    """Tell whether an encoder runs by transformers' own layers, and not by the suite's."""
    return model_type not in (None, "albert", *FAMILIES, *MODE_KEYS)


def check_family(path: Path, model_type: object) -> None:
    """Raise UserError unless an encoder can have exits after its layers.

    What only its weights can show is found when they are loaded, by `hf_layers.check`.

    path: of the config.json that holds `model_type`.
    """
    if is_general(model_type) and (reason := reason_against(str(model_type))):
        raise UserError(
            f"{path}: model_type = {model_type!r}: {reason}. Exits need an encoder, such as "
            f"{FAMILY_NAMES}, or another one of docs/encoders.md"
        )


def reason_against(model_type: str) -> str:
    """Say why transformers' models of this type cannot have exits; "" where nothing is known."""
    # Only configurations of encoders without the suite's layers come here: this import loads torch.
    from transformers.models.auto import configuration_auto, modeling_auto

    if model_type in OTHER_COMPUTATION:
        return OTHER_COMPUTATION[model_type]
    if model_type not in configuration_auto.CONFIG_MAPPING_NAMES:
        return f"transformers {transformers.__version__} does not know it"
    if model_type not in modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES:
        return "transformers has no classifier of texts for it"
    if model_type in modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES:
        return "it is an encoder with a decoder"
    is_decoder = model_type in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    if is_decoder and model_type not in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        return "transformers lists it among the decoders"
    return ""


def check_computation(path: Path, values: Mapping[str, Any]) -> None:
    """Raise UserError for a configuration whose model computes something else than it would here.

    path: of the config.json that holds `values`.
    """
    for name in QUANTISED:
        if values.get(name):
            method = values[name].get("quant_method") if isinstance(values[name], dict) else None
            raise UserError(
                f"{path}: {name}: the weights are quantised (quant_method = {method!r}), which is "
                "not read here: take the checkpoint that they were made from, or load them in "
                "transformers and save what model.dequantize() returns; export_onnx.py writes "
                "8-bit weights in the end"
            )
    if str(values.get("model_type")) in MODE_KEYS:
        return  # of this suite's own, which has none of these
    for name, (plain_value, meaning) in OTHER_COMPUTATIONS.items():
        if name == "position_embedding_type" and is_general(values.get("model_type")):
            continue  # transformers' own layers have their positions
        value = values.get(name)
        if value is not None and value != plain_value:
            raise UserError(
                f"{path}: {name} = {value!r} asks for {meaning}, which is not computed here: "
                f"allowed is {plain_value!r}; take another checkpoint"
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
