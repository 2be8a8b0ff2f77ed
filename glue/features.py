"""From examples to padded batches: token ids kept flat, and texts grouped by length."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase
from transformers.trainer_pt_utils import get_length_grouped_indices

from glue.tasks import Example

CHUNK = 1000  # texts that the tokenizer gets at a time: it answers with Python lists
OF_A_FILE = {"tokens", "segments", "offsets", "labels", "truncated"}  # arrays, in every mode


@dataclass(frozen=True, eq=False)
class Features:
    """Tokenised examples, in input order: the tokens of all texts lie one after the other."""

    tokens: np.ndarray  # int32 (all tokens,), special ones included
    segments: np.ndarray  # int8 (all tokens,)
    offsets: np.ndarray  # int64 (examples + 1,): text i has tokens[offsets[i] : offsets[i + 1]]
    labels: np.ndarray | None = None  # (examples,), int64 ids or float64 scores; None: no labels
    truncated: np.ndarray | None = None  # bool (examples,): was the text longer? None: unknown
    inputs: Mapping[str, np.ndarray] = field(default_factory=dict)  # a mode's own, (examples,) each

    @classmethod
    def from_lists(
        cls,
        input_ids: Sequence[Sequence[int]],
        token_type_ids: Sequence[Sequence[int]],
        labels: Sequence[int | float | None] = (None,),
    ) -> "Features":
        """The features of texts that are lists; one label of None is as good as no labels."""
        lengths = np.array([len(ids) for ids in input_ids], dtype=np.int64)
        return cls(
            np.array([token for ids in input_ids for token in ids], dtype=np.int32),
            np.array([segment for ids in token_type_ids for segment in ids], dtype=np.int8),
            offsets_of(lengths),
            None if None in labels else np.array(labels),
        )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each example, special ones included: int64 (examples,)."""
        return np.diff(self.offsets)

    @property
    def size(self) -> str:
        """ "2490 (12 truncated, 0.5%)": for a log."""
        cut = 0 if self.truncated is None else int(self.truncated.sum())
        return f"{len(self)} ({cut} truncated, {cut / len(self):.1%})" if cut else str(len(self))

    def input_ids(self, row: int) -> np.ndarray:
        """Token ids of one text, int32: a view."""
        return self.tokens[self.offsets[row] : self.offsets[row + 1]]

    def token_type_ids(self, row: int) -> np.ndarray:
        """Segment ids of one text, int8: a view."""
        return self.segments[self.offsets[row] : self.offsets[row + 1]]

    def take(self, rows: slice | Sequence[int] | np.ndarray) -> "Features":
        """The examples of these rows, in their order."""
        starts = self.offsets[:-1][rows]
        lengths = self.offsets[1:][rows] - starts
        offsets = offsets_of(lengths)
        # Each token's place there, moved by as much as its text is moved.
        where = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        kept = (x if x is None else x[rows] for x in (self.labels, self.truncated))
        inputs = {name: column[rows] for name, column in self.inputs.items()}
        return Features(self.tokens[where], self.segments[where], offsets, *kept, inputs)

    def with_second_cls(self) -> "Features":
        """Each text with its first token twice, and that token's segment id."""
        starts = self.offsets[:-1]
        tokens, segments = (np.insert(x, starts, x[starts]) for x in (self.tokens, self.segments))
        offsets = self.offsets + np.arange(len(self.offsets))
        return replace(self, tokens=tokens, segments=segments, offsets=offsets)

    def digest(self) -> str:
        """SHA-256 of all arrays, their types and their sizes."""
        digest = hashlib.sha256()
        for name, array in self.arrays().items():
            digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array))
        return digest.hexdigest()

    def arrays(self) -> dict[str, np.ndarray]:
        """All that there are, by name."""
        own = {name: getattr(self, name) for name in sorted(OF_A_FILE)}
        return {name: x for name, x in own.items() if x is not None} | dict(self.inputs)


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """Where texts of these lengths begin, and where the last one ends: int64 (examples + 1,)."""
    return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))


def encode(
    examples: Iterable[Example], tokenizer: PreTrainedTokenizerBase, max_seq_length: int
) -> Features:
    """Tokenise `examples`, truncating each to `max_seq_length` tokens; no padding."""
    examples, parts = iter(examples), []
    while chunk := list(islice(examples, CHUNK)):
        parts.append(encode_chunk(chunk, tokenizer, max_seq_length))
    labels = [part.labels for part in parts]
    return Features(
        np.concatenate([part.tokens for part in parts]),
        np.concatenate([part.segments for part in parts]),
        offsets_of(np.concatenate([part.lengths for part in parts])),
        None if any(part is None for part in labels) else np.concatenate(labels),
        truncated=np.concatenate([part.truncated for part in parts]),
    )


def encode_chunk(
    examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase, max_seq_length: int
) -> Features:
    pairs = examples[0].text_b is not None
    encoded = tokenizer(
        [example.text_a for example in examples],
        [example.text_b or "" for example in examples] if pairs else None,
        truncation=True,
        max_length=max_seq_length,
        return_token_type_ids=True,
        return_attention_mask=False,
    )
    labels = [example.label for example in examples]
    features = Features.from_lists(encoded["input_ids"], encoded["token_type_ids"], labels)
    return replace(features, truncated=np.array([bool(x.overflowing) for x in encoded.encodings]))


def collate(
    features: Features, rows: Sequence[int] | np.ndarray, pad_token_id: int
) -> dict[str, torch.Tensor]:
    """Tensors of the given rows, padded to the longest: (rows, length), the others (rows,).

    A batch that needs no padding has no attention mask: the model then skips masking altogether.
    """
    part = features.take(rows)
    inside = np.arange(part.lengths.max()) < part.lengths[:, None]  # (rows, length)
    ids, types = (np.full(inside.shape, fill, dtype=np.int64) for fill in (pad_token_id, 0))
    ids[inside], types[inside] = part.tokens, part.segments
    batch = {"input_ids": ids, "token_type_ids": types}
    if not inside.all():
        batch["attention_mask"] = inside.astype(np.int64)
    if part.labels is not None:
        scores = part.labels.dtype.kind == "f"
        batch["labels"] = part.labels.astype(np.float32) if scores else part.labels
    return {name: torch.from_numpy(array) for name, array in {**batch, **part.inputs}.items()}


def epoch_batches(lengths: np.ndarray, batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """The rows of every training batch of an epoch, a function of `seed` and `epoch` alone.

    Neighbours in length share a batch; the order of batches is shuffled, so that the last steps of
    an epoch are not its shortest texts.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    rows = np.array(get_length_grouped_indices(lengths.tolist(), batch_size, None, generator))
    starts = range(0, len(rows), batch_size)
    order = torch.randperm(len(starts), generator=generator).tolist()
    return [rows[starts[i] : starts[i] + batch_size] for i in order]


def sorted_batches(lengths: np.ndarray, batch_size: int) -> Iterator[np.ndarray]:
    """Rows in order of length, `batch_size` at a time: least padding for a pass over all."""
    order = np.argsort(-lengths, kind="stable")
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]
