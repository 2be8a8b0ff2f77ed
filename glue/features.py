"""From examples to padded batches: token ids, and texts grouped by length."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase
from transformers.trainer_pt_utils import get_length_grouped_indices

from elbert.configuration import AdaptiveConfig
from glue.tasks import Example

CHUNK = 1000  # texts that the tokenizer gets at a time: it answers with Python lists


@dataclass(frozen=True, eq=False)
class Features:
    """Tokenised examples, in input order."""

    input_ids: Sequence[np.ndarray]  # of each text, int32, special tokens included
    token_type_ids: Sequence[np.ndarray]  # its segments, int8
    labels: np.ndarray | None = None  # (examples,), int64 ids or float64 scores; None: no labels
    truncated: np.ndarray | None = None  # bool (examples,): was the text longer? None: unknown
    inputs: Mapping[str, np.ndarray] = field(default_factory=dict)  # a mode's, (examples, …) each

    @classmethod
    def from_lists(
        cls,
        input_ids: Iterable[Sequence[int]],
        token_type_ids: Iterable[Sequence[int]],
        labels: Sequence[int | float | None] = (None,),
    ) -> "Features":
        """Make features of texts that are lists; one label of None is as good as no labels."""
        return cls(
            input_ids=[np.array(ids, dtype=np.int32) for ids in input_ids],
            token_type_ids=[np.array(ids, dtype=np.int8) for ids in token_type_ids],
            labels=None if None in labels else np.array(labels),
        )

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each example, special ones included: int64 (examples,)."""
        return np.array([len(ids) for ids in self.input_ids], dtype=np.int64)

    @property
    def size(self) -> str:
        """ "2490 (12 truncated, 0.5%)": for a log."""
        cut = 0 if self.truncated is None else int(self.truncated.sum())
        return f"{len(self)} ({cut} truncated, {cut / len(self):.1%})" if cut else str(len(self))

    def take(self, rows: slice | Sequence[int] | np.ndarray) -> "Features":
        """Return the examples of these rows, in their order."""
        numbers = np.arange(len(self))[rows]
        return Features(
            input_ids=[self.input_ids[number] for number in numbers],
            token_type_ids=[self.token_type_ids[number] for number in numbers],
            labels=None if self.labels is None else self.labels[numbers],
            truncated=None if self.truncated is None else self.truncated[numbers],
            inputs={name: values[numbers] for name, values in self.inputs.items()},
        )

    def digest(self) -> str:
        """Return the SHA-256 of everything here: values, their types and their number."""
        arrays = {
            "labels": self.labels,
            "offsets": np.cumsum([0, *self.lengths], dtype=np.int64),
            "segments": np.concatenate(self.token_type_ids),
            "tokens": np.concatenate(self.input_ids),
            "truncated": self.truncated,
            **self.inputs,
        }
        digest = hashlib.sha256()
        for name, array in arrays.items():
            if array is not None:
                digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
                digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


def encode(
    examples: Iterable[Example],
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    config: AdaptiveConfig,
    seed: int = 0,
) -> Features:
    """Tokenise `examples` for the models of `config`, each truncated to `max_seq_length` tokens.

    seed: of the random numbers that an example brings, where the configuration has any.
    """
    remaining = iter(examples)
    input_ids: list[np.ndarray] = []
    token_type_ids: list[np.ndarray] = []
    labels = []
    truncated = []
    while chunk := list(islice(remaining, CHUNK)):
        encoded = tokenizer(
            [example.text_a for example in chunk],
            None if chunk[0].text_b is None else [example.text_b for example in chunk],
            truncation=True,
            max_length=max_seq_length - config.extra_tokens,
            return_token_type_ids=True,
            return_attention_mask=False,
        )
        part = Features.from_lists(
            map(config.with_extra_tokens, encoded["input_ids"]),
            map(config.with_extra_tokens, encoded["token_type_ids"]),
        )
        input_ids.extend(part.input_ids)
        token_type_ids.extend(part.token_type_ids)
        labels.extend(example.label for example in chunk)
        truncated.extend(bool(text.overflowing) for text in encoded.encodings)
    generator = torch.Generator().manual_seed(seed)
    draws = {name: torch.rand(len(input_ids), generator=generator) for name in config.own_inputs}
    return Features(
        input_ids=input_ids,
        token_type_ids=token_type_ids,
        labels=None if None in labels else np.array(labels),
        truncated=np.array(truncated),
        inputs={name: numbers.numpy() for name, numbers in draws.items()},
    )


def collate(
    features: Features, rows: Sequence[int] | np.ndarray, pad_token_id: int
) -> dict[str, torch.Tensor]:
    """Make tensors of these rows, padded to the longest: (rows, length), the others (rows, …).

    A batch that needs no padding has no attention mask: the model then skips masking altogether.
    """
    part = features.take(rows)
    inside = np.arange(part.lengths.max()) < part.lengths[:, None]  # (rows, length)
    ids, types = (np.full(inside.shape, fill, dtype=np.int64) for fill in (pad_token_id, 0))
    ids[inside], types[inside] = map(np.concatenate, (part.input_ids, part.token_type_ids))
    batch = {"input_ids": ids, "token_type_ids": types}
    if not inside.all():
        batch["attention_mask"] = inside.astype(np.int64)
    if part.labels is not None:
        scores = part.labels.dtype.kind == "f"
        batch["labels"] = part.labels.astype(np.float32) if scores else part.labels
    return {name: torch.from_numpy(array) for name, array in {**batch, **part.inputs}.items()}


def epoch_batches(lengths: np.ndarray, batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """List the rows of every training batch of an epoch, a function of `seed` and `epoch` alone.

    Neighbours in length share a batch; the order of batches is shuffled, so that the last steps of
    an epoch are not its shortest texts.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    rows = np.array(get_length_grouped_indices(lengths.tolist(), batch_size, None, generator))
    starts = range(0, len(rows), batch_size)
    order = torch.randperm(len(starts), generator=generator).tolist()
    return [rows[starts[i] : starts[i] + batch_size] for i in order]


def sorted_batches(lengths: np.ndarray, batch_size: int) -> Iterator[np.ndarray]:
    """Yield rows in order of length, `batch_size` at a time: least padding for a pass over all."""
    order = np.argsort(-lengths, kind="stable")
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]
