"""Token ids kept on disk: a later start maps them from there and reads no text."""

import hashlib
import json
import re
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerBase

from glue.features import OF_A_FILE, Features, encode
from glue.tasks import Split
from modeling.errors import UserError
from modeling.loading.files import file_hash
from utils.files import make_public

FORMAT = "3"  # of the file; 1 had lists of lengths, and no labels; 2 not what was truncated


def cache_path(data_dir: str, split: str, model: str, max_seq_length: int, task: str) -> Path:
    """Published name of the cached features, with the suffix of today's format."""
    name = re.sub(r"[^\w.-]", "_", Path(model).name)
    return Path(data_dir) / f"cached_{split}_{name}_{max_seq_length}_{task}.safetensors"


def cached_features(
    path: Path,
    split: Split,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    overwrite: bool = False,
) -> Features:
    """`encode` of a whole split, kept at `path` and mapped from there while nothing has changed:
    neither the split's file, to the byte, nor how it is read, nor tokenizer or length.

    A cache that is not whole is made anew; a directory that cannot be written just goes without.
    Raises UserError for whatever is wrong with the split's file.
    """
    stamp = stamp_of(split, tokenizer, max_seq_length)
    features = None if overwrite else read_cache(path, stamp)
    if features is not None and fits(features, split, len(tokenizer), max_seq_length):
        return features
    features = encode(split.examples(), tokenizer, max_seq_length)
    # Another hash now: somebody wrote the file while it was read.
    if stamp_of(split, tokenizer, max_seq_length) == stamp:
        write_cache(path, features, stamp)
    return features


def stamp_of(split: Split, tokenizer: PreTrainedTokenizerBase, max_seq_length: int) -> str:
    """Hash of everything that features follow from."""
    path, task = split.path, split.task
    try:
        content = file_hash(path)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    columns = (task.text_columns, task.label_column, task.headerless, task.lenient)
    reading = (split.name, path.suffix.lower(), task.labels, *columns)
    # Truncation and padding are what the last call left in the tokenizer.
    rules = json.loads(tokenizer.backend_tokenizer.to_str()) | {"truncation": None, "padding": None}
    everything = json.dumps([FORMAT, content, reading, max_seq_length, rules])
    return hashlib.sha256(everything.encode()).hexdigest()


def write_cache(path: Path, features: Features, stamp: str) -> None:
    tensors = {name: torch.from_numpy(array) for name, array in features.arrays().items()}
    metadata = {"format": FORMAT, "fingerprint": stamp, "digest": features.digest()}
    # Others may write the same, on other machines, too.
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        save_file(tensors, temporary, metadata)
        make_public(temporary)
        temporary.replace(path)
    except (OSError, SafetensorError):
        with suppress(OSError):
            temporary.unlink()


def read_cache(path: Path, stamp: str) -> Features | None:
    """The features kept under `stamp`, mapped into memory; None where they are not all there."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if (metadata.get("format"), metadata.get("fingerprint")) != (FORMAT, stamp):
                return None
            names = OF_A_FILE.intersection(file.keys())
            features = Features(**{name: file.get_tensor(name).numpy() for name in names})
    except (OSError, SafetensorError, TypeError):  # TypeError: names missing, no type of numpy's
        return None
    return features if features.digest() == metadata.get("digest") else None


def fits(features: Features, split: Split, pieces: int, max_seq_length: int) -> bool:
    """Whether the arrays could be those of `split`: a file made by hand must break no index."""
    arrays = (features.tokens, features.segments, features.offsets)
    if [(x.dtype, x.ndim) for x in arrays] != [(np.int32, 1), (np.int8, 1), (np.int64, 1)]:
        return False
    tokens, segments, offsets = arrays
    return (
        len(offsets) > 1
        and offsets[0] == 0
        and offsets[-1] == len(tokens) == len(segments)
        and within(features.lengths, 1, max_seq_length)
        and within(tokens, 0, pieces - 1)
        and within(segments, 0, 1)
        and truncated_fits(features)
        and labels_fit(features, split)
    )


def truncated_fits(features: Features) -> bool:
    cut = features.truncated
    return cut is not None and cut.dtype == np.bool_ and cut.shape == (len(features),)


def labels_fit(features: Features, split: Split) -> bool:
    labels, task = features.labels, split.task
    if labels is None or split.name == "test":
        return labels is None and split.name == "test"
    if labels.shape != (len(features),):
        return False
    if task.is_regression:
        return labels.dtype == np.float64 and bool(np.isfinite(labels).all())
    return labels.dtype == np.int64 and within(labels, 0, task.num_labels - 1)


def within(values: np.ndarray, low: int, high: int) -> bool:
    return bool(low <= values.min() and values.max() <= high)
