"""Token ids kept on disk: a later start maps them from there and reads no text."""

import json
import re
from contextlib import suppress
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from transformers import PreTrainedTokenizerBase

from glue.features import Features, encode
from glue.tasks import Split
from modeling.errors import UserError
from utils.files import write_file
from utils.fingerprint import fingerprint

FORMAT = 4  # of the file; caches of other formats are made anew


def cache_path(data_dir: str, split: str, model: str, max_seq_length: int, task: str) -> Path:
    """Return the published name of the cached features, with the suffix of today's format."""
    name = re.sub(r"[^\w.-]", "_", Path(model).name)
    return Path(data_dir) / f"cached_{split}_{name}_{max_seq_length}_{task}.safetensors"


def cached_features(
    path: Path,
    split: Split,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    overwrite: bool = False,
) -> Features:
    """Map a split's features from `path`, or `encode` the split and keep them there.

    A cache of another file, reading, tokenizer or length, or one that is not whole, is made anew.
    A folder that cannot be written goes without. Raises UserError for faults of the split's file.
    """
    wanted = features_fingerprint(split, tokenizer, max_seq_length)
    features = None if overwrite else read_cache(path, wanted)
    if features is None:
        features = encode(split.examples(), tokenizer, max_seq_length)
        # Another fingerprint now: the file was written while it was read.
        if features_fingerprint(split, tokenizer, max_seq_length) == wanted:
            tensors = {name: torch.from_numpy(array) for name, array in features.arrays().items()}
            content = save(tensors, {"fingerprint": wanted, "digest": features.digest()})
            with suppress(UserError):
                write_file(path, lambda file: file.write(content))
    return features


def features_fingerprint(
    split: Split, tokenizer: PreTrainedTokenizerBase, max_seq_length: int
) -> str:
    """Hash everything that features follow from."""
    path, task = split.path, split.task
    columns = (task.text_columns, task.label_column, task.headerless, task.lenient)
    reading = (split.name, path.suffix.lower(), task.labels, *columns)
    # Truncation and padding are what the last call left in the tokenizer.
    rules = json.loads(tokenizer.backend_tokenizer.to_str()) | {"truncation": None, "padding": None}
    try:
        return fingerprint(path, FORMAT, reading, max_seq_length, json.dumps(rules))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def read_cache(path: Path, of: str) -> Features | None:
    """Map the features kept under the fingerprint `of`; None where they are not all there."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("fingerprint") != of:
                return None
            # safe_open has no iterator of its own.
            names = file.keys()
            features = Features(**{name: file.get_tensor(name).numpy() for name in names})
    except (OSError, SafetensorError, TypeError):
        return None
    return features if features.digest() == metadata.get("digest") else None
