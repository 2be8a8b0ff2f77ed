"""Floating-point operations of transformers' own layers, counted by torch."""

import json
from functools import cache
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModel

# Lengths that are measured: products of a layer grow with a text's length at most in its square.
MEASURED = (16, 32, 64)


@cache
def layer_flops(encoder_config: str, length: int) -> int:
    """Count those of one layer pass on a text of `length` tokens: the mean over the layers.

    encoder_config: the encoder's config.json, as text.
    """
    points = [(n, encoder_flops(encoder_config, n)) for n in MEASURED]
    total = 0.0  # Lagrange's parabola through the three points
    for n, flops in points:
        weight = 1.0
        for other in MEASURED:
            if other != n:
                weight *= (length - other) / (n - other)
        total += weight * flops
    layers = json.loads(encoder_config)["num_hidden_layers"]
    return round(total / layers)


@cache
def encoder_flops(encoder_config: str, length: int) -> int:
    """Count those of a whole encoder on one text of `length` tokens; nothing is computed."""
    config = AutoConfig.for_model(**json.loads(encoder_config))
    with torch.device("meta"):
        encoder: Any = AutoModel.from_config(config).eval()
        # Words that are embedded: of ids without values, nothing can be asked.
        words = torch.ones(1, length, encoder.get_input_embeddings().embedding_dim)
    if getattr(encoder, "pooler", None) is not None:
        encoder.pooler = None  # it is no part of a layer
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        encoder(inputs_embeds=words)
    return counter.get_total_flops()
