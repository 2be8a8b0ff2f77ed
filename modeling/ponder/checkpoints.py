"""What a ponder model takes from a checkpoint."""

import re
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from modeling.errors import UserError
from modeling.loading.names import modern_name
from modeling.loading.tokenizers import load_tokenizer

HEADS = ("classifier.", "ponder.")  # what a plain ALBERT lacks


def find_tokenizer(source: str | Path, cache_dir: str | None) -> PreTrainedTokenizerBase | None:
    try:
        return load_tokenizer(source, cache_dir=cache_dir)
    except UserError:
        return None  # token ids are input enough; a call with texts will ask for it


def ponder_names(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """An ALBERT checkpoint's tensors under the names of `PonderAlbertClassifier`."""
    layer = r"^encoder\.albert_layer_groups\.0\.albert_layers\.0\."
    renamed = {}
    for name, tensor in tensors.items():
        name = modern_name(name).removeprefix("albert.")
        name = re.sub(layer, "albert_layer.", name)
        renamed[name.removeprefix("encoder.")] = tensor
    return renamed
