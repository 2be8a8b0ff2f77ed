"""The configuration of an encoder that runs by transformers' own layers, within an ELBERT's.

An ELBERT's config.json keeps the encoder's own as `encoder_config`. ALBERT's names have the sizes
that the rest of the suite asks for.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoConfig, AutoModel, PreTrainedConfig

# Keys of a classifier's config.json that say nothing of its encoder: its labels, which the ELBERT
# has, where the file comes from, and code beside it, which is never run.
LEFT_OUT = tuple(
    "id2label label2id num_labels problem_type finetuning_task architectures auto_map "
    "transformers_version _name_or_path dtype torch_dtype attn_implementation "
    "_attn_implementation _attn_implementation_internal".split()
)
KEPT = ("id2label", "label2id", "problem_type", "finetuning_task")


def as_elbert(values: Mapping[str, Any]) -> dict[str, Any]:
    """Turn the config.json of an encoder into that of an ELBERT around transformers' layers.

    Raises what transformers raises of values that it does not take.
    """
    stored = {name: value for name, value in values.items() if name not in LEFT_OUT}
    encoder: Any = AutoConfig.for_model(**copy.deepcopy(stored))
    hidden = encoder.hidden_size
    layers = encoder.num_hidden_layers
    return {
        **{name: values[name] for name in KEPT if name in values},
        "encoder_config": stored,
        "vocab_size": encoder.vocab_size,
        "hidden_size": hidden,
        "embedding_size": hidden,
        "num_hidden_layers": layers,
        "num_hidden_groups": layers,
        # These three are of no layer here, and some encoders lack them.
        "num_attention_heads": getattr(encoder, "num_attention_heads", 1),
        "intermediate_size": getattr(encoder, "intermediate_size", 4 * hidden),
        "hidden_act": "gelu",
        "max_position_embeddings": longest_text(encoder),
        # Encoders without segments take no notice of them: a tokenizer may give two.
        "type_vocab_size": getattr(encoder, "type_vocab_size", 0) or 2,
        "initializer_range": getattr(encoder, "initializer_range", 0.02),
        "pad_token_id": encoder.pad_token_id,
        "eos_token_id": None,
    }


def longest_text(encoder: PreTrainedConfig) -> int:
    """Return how many tokens a text may have: the positions, without those that serve no token."""
    config: Any = encoder
    with torch.device("meta"):
        outline = AutoModel.from_config(encoder)
    serve_none = [
        module.padding_idx + 1  # RoBERTa and its kind number tokens from there on
        for name, module in outline.named_modules()
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None
    ]
    return config.max_position_embeddings - max(serve_none, default=0)


def encoder_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """Make the configuration of the encoder within an ELBERT's, with the ELBERT's labels."""
    elbert: Any = config
    # A copy: transformers changes dicts within a configuration in place.
    encoder: Any = AutoConfig.for_model(**copy.deepcopy(elbert.encoder_config))
    encoder.id2label = dict(elbert.id2label)
    encoder.label2id = dict(elbert.label2id)
    if elbert._attn_implementation == "eager":
        encoder._attn_implementation = "eager"
    return encoder
