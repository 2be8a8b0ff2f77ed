"""From examples to padded batches: tokenising once, caching, grouping by length."""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerBase
from transformers.trainer_pt_utils import get_length_grouped_indices

from glue.files import make_public
from glue.tasks import Example


class Features(NamedTuple):
    """Tokenised examples, in input order."""

    input_ids: list[list[int]]
    token_type_ids: list[list[int]]
    labels: list[int | float | None]
    draws: list[float] | None = None  # each example's uniform number, where a model samples exits

    @property
    def lengths(self) -> list[int]:
        """Tokens of each example, special ones included."""
        return [len(ids) for ids in self.input_ids]


def encode(
    examples: Sequence[Example],
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    cache_file: Path | None = None,
    overwrite_cache: bool = False,
) -> Features:
    """Tokenise `examples`, truncating each to `max_seq_length` tokens; no padding.

    With `cache_file`, token ids are kept there and read back while texts, tokenizer and length
    are the same; a directory that cannot be written just goes without.
    """
    stamp = fingerprint(examples, tokenizer, max_seq_length)
    labels = [example.label for example in examples]
    if cache_file and not overwrite_cache:
        cached = read_cache(cache_file, stamp)
        if cached:
            return Features(*cached, labels)
    pairs = examples[0].text_b is not None
    encoded = tokenizer(
        [example.text_a for example in examples],
        [example.text_b or "" for example in examples] if pairs else None,
        truncation=True,
        max_length=max_seq_length,
        return_token_type_ids=True,
        return_attention_mask=False,
    )
    features = Features(encoded["input_ids"], encoded["token_type_ids"], labels)
    if cache_file:
        write_cache(cache_file, features, stamp)
    return features


def cache_path(data_dir: str, split: str, model: str, max_seq_length: int, task: str) -> Path:
    """Published name of the cached features, with the suffix of today's format."""
    name = re.sub(r"[^\w.-]", "_", Path(model).name)
    return Path(data_dir) / f"cached_{split}_{name}_{max_seq_length}_{task}.safetensors"


def fingerprint(
    examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase, max_seq_length: int
) -> str:
    """Hash of everything that token ids follow from."""
    digest = hashlib.sha256(f"{max_seq_length}\n".encode())
    # Truncation and padding are what the last call left in the tokenizer.
    rules = json.loads(tokenizer.backend_tokenizer.to_str()) | {"truncation": None, "padding": None}
    digest.update(json.dumps(rules).encode())
    for example in examples:
        digest.update(f"{(example.text_a, example.text_b)!r}".encode())
    return digest.hexdigest()


def write_cache(path: Path, features: Features, stamp: str) -> None:
    def flat(rows: list[list[int]]) -> torch.Tensor:
        return torch.tensor([value for row in rows for value in row], dtype=torch.int32)

    tensors = {
        "input_ids": flat(features.input_ids),
        "token_type_ids": flat(features.token_type_ids),
        "lengths": torch.tensor(features.lengths, dtype=torch.int32),
    }
    try:
        temporary = path.with_suffix(f".{os.getpid()}.part")  # others may write the same
        save_file(tensors, temporary, metadata={"fingerprint": stamp})
        make_public(temporary)
        temporary.replace(path)
    except (OSError, SafetensorError):
        return


def read_cache(path: Path, stamp: str) -> tuple[list[list[int]], list[list[int]]] | None:
    """Token ids and segment ids kept under `stamp`, or None."""
    try:
        with safe_open(path, framework="pt") as file:
            if (file.metadata() or {}).get("fingerprint") != stamp:
                return None
            lengths = file.get_tensor("lengths").tolist()
            flat = [file.get_tensor(name) for name in ("input_ids", "token_type_ids")]
    except (OSError, SafetensorError):
        return None
    ids, types = ([row.tolist() for row in tensor.split(lengths)] for tensor in flat)
    return ids, types


def collate(features: Features, rows: Sequence[int], pad_token_id: int) -> dict[str, torch.Tensor]:
    """Tensors of the given rows, padded to the longest: (rows, length), labels and draws (rows,).

    A batch that needs no padding has no attention mask: the model then skips masking altogether.
    """
    lengths = [len(features.input_ids[row]) for row in rows]
    shape = (len(rows), max(lengths))
    batch = {
        "input_ids": torch.full(shape, pad_token_id),
        "token_type_ids": torch.zeros(shape, dtype=torch.long),
    }
    for i, row in enumerate(rows):
        for name in batch:
            batch[name][i, : lengths[i]] = torch.tensor(getattr(features, name)[row])
    if min(lengths) < max(lengths):
        batch["attention_mask"] = (torch.arange(shape[1]) < torch.tensor(lengths)[:, None]).long()
    labels = [features.labels[row] for row in rows]
    if None not in labels:
        batch["labels"] = torch.tensor(labels)
    if features.draws is not None:
        batch["draws"] = torch.tensor([features.draws[row] for row in rows])
    return batch


def epoch_batches(
    lengths: Sequence[int], batch_size: int, seed: int, epoch: int
) -> list[list[int]]:
    """The rows of every training batch of an epoch, a function of `seed` and `epoch` alone.

    Neighbours in length share a batch (HF's length grouping); the order of batches is shuffled, so
    that the last steps of an epoch are not its shortest texts.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    rows = get_length_grouped_indices(list(lengths), batch_size, generator=generator)
    batches = [rows[i : i + batch_size] for i in range(0, len(rows), batch_size)]
    order = torch.randperm(len(batches), generator=generator).tolist()
    return [batches[i] for i in order]


def sorted_batches(lengths: Sequence[int], batch_size: int) -> Iterator[list[int]]:
    """Rows in order of length, `batch_size` at a time: least padding for a pass over all."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]
