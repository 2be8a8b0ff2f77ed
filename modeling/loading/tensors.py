"""Read the tensors of a checkpoint's files: .safetensors and .bin, whole or in shards.

No code of a file is run. Names lose the prefix of what a model was wrapped in when it was saved:
`module.` of DistributedDataParallel, `_orig_mod.` of torch.compile, the attribute of a class around
the encoder.
"""

import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from ..errors import UserError
from ..families import FAMILIES
from ..files import INDEX_ENDING, weight_file, weight_files, weight_map

TensorDict = dict[str, Tensor]  # by name: a state dict, or a batch

WORDS = "embeddings.word_embeddings.weight"  # ends one name in every encoder
# The attributes in which HF's models with a head, and this suite's, have their encoder.
ENCODERS = ("albert", *FAMILIES)
# Keys under which training programs save a state dict beside other things.
STATE_DICT_KEYS = ("state_dict", "model_state_dict", "model")


def read_tensors(source: str | Path) -> TensorDict:
    """Read all tensors of a checkpoint, under names without a wrapper's prefix.

    source: a model's folder. Raises UserError as `read_tensor_files` does.
    """
    tensors = read_tensor_files(source)
    prefixes = wrapper_prefixes(tensors, source)
    return {without_wrapper(name, prefixes): tensor for name, tensor in tensors.items()}


def read_tensor_files(source: str | Path) -> TensorDict:
    """Read all tensors of a checkpoint under the names that its files have.

    Raises UserError where there are none, a file is damaged or holds something else, or a shard
    lacks a tensor that the index has.
    """
    files = weight_files(source)
    tensors: TensorDict = {}
    for path in files:
        if not path.name.endswith(INDEX_ENDING):
            tensors |= read_tensor_file(path)
    if files[0].name.endswith(INDEX_ENDING):
        missing = sorted(weight_map(files[0]).keys() - tensors.keys())
        if missing:
            raise UserError(
                f"{files[0]} lists {missing[0]}, which is not in its shard: fetch all files again"
            )
    return tensors


def tensor_names(source: str | Path) -> list[str]:
    """List the names that `read_tensors` gives, without reading the tensors themselves.

    Raises UserError as `read_tensors` does.
    """
    path = weight_file(source)
    if path.name.endswith(INDEX_ENDING):
        names = list(weight_map(path))
    elif path.suffix == ".safetensors":
        try:
            with safe_open(path, "pt") as file:
                names = list(file.keys())
        except (OSError, SafetensorError) as error:
            raise damaged(path, error) from error
    else:
        names = list(read_tensor_file(path, device="meta"))
    prefixes = wrapper_prefixes(names, source)
    return [without_wrapper(name, prefixes) for name in names]


def read_tensor_file(path: Path, device: str = "cpu") -> TensorDict:
    """Read a .safetensors or .bin file; of a .bin only tensors are read, and no code is run.

    device: "meta" for tensors without values.

    Raises UserError for a damaged file, and for one with anything but tensors by name.
    """
    try:
        if path.suffix == ".safetensors":
            return load_file(path, device)
        loaded = torch.load(path, map_location=device, weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{path} holds something other than tensors, which could run code: refused. "
            "Ask its author for a safetensors file"
        ) from error
    except Exception as error:  # what is not a checkpoint fails in many ways
        raise damaged(path, error) from error
    if isinstance(loaded, dict):
        for key in STATE_DICT_KEYS:
            if is_state_dict(loaded.get(key)):
                return loaded[key]
    if not is_state_dict(loaded):
        raise UserError(f"{path} is not a state dict (tensors by name)")
    return loaded


def is_state_dict(value: Any) -> bool:
    """Tell whether a value is tensors by name."""
    return (
        isinstance(value, dict)
        and all(isinstance(name, str) for name in value)
        and all(isinstance(tensor, Tensor) for tensor in value.values())
    )


def damaged(path: Path, error: Exception) -> UserError:
    """Make the error for a file that cannot be read as weights."""
    return UserError(f"{path} is damaged or not a checkpoint: {error}")


def wrapper_prefixes(names: Iterable[str], source: str | Path) -> list[str]:
    """List the prefixes of what an encoder was wrapped in, the longest first.

    The encoder is where its word embeddings are: of `module.net.bert.embeddings.…` these are
    `module.net.` and `module.`, since a head may stand beside the encoder or further out.

    source: for the error. Raises UserError for a checkpoint of several encoders.
    """
    endings = (f".{name}".rpartition(f".{WORDS}") for name in names)
    places = {f"{place}."[1:] for place, ending, _ in endings if ending}
    if len(places) > 1:
        raise UserError(
            f"{source}: these are the weights of {len(places)} encoders, "
            f"{', '.join(sorted(repr(place) for place in places))}: save the one that you mean, "
            "with save_pretrained()"
        )
    parts = "".join(places).split(".")[:-1]
    if parts and parts[-1] in ENCODERS:
        parts.pop()
    return [".".join(parts[:length]) + "." for length in range(len(parts), 0, -1)]


def without_wrapper(name: str, prefixes: Iterable[str]) -> str:
    """Remove the first of the prefixes that a name has."""
    for prefix in prefixes:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name
