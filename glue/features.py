"""From examples to padded batches: token ids, and texts grouped by length."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase
from transformers.trainer_pt_utils import get_length_grouped_indices

from glue.splits import Example, Label
from modeling.configuration import AdaptiveConfig
from modeling.loading.tokenizers import UnknownTokens, encode_texts

CHUNK_TEXTS = 1000  # texts that the tokenizer gets at a time: it answers with Python lists


@dataclass(frozen=True, eq=False)
class Features:
    """Tokenised examples, in input order.

    Attributes:
        input_ids: token ids of each text, int32, special tokens included.
        token_type_ids: segments of each text, int8.
        labels: (examples,), int64 ids or float64 scores; of several labels an example, (examples,
            labels) of 0 and 1. None: there are none.
        truncated: (examples,) bool, whether the text was longer. None: unknown.
        inputs: a mode's own inputs, (examples, …) each.
    """

    input_ids: Sequence[np.ndarray]
    token_type_ids: Sequence[np.ndarray]
    labels: np.ndarray | None = None
    truncated: np.ndarray | None = None
    inputs: Mapping[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def from_lists(
        cls,
        input_ids: Iterable[Sequence[int]],
        token_type_ids: Iterable[Sequence[int]],
        labels: Sequence[Label] = (None,),
    ) -> "Features":
        """Make features of lists. Where one of the labels is None, there are none."""
        return cls(
            input_ids=[np.array(ids, dtype=np.int32) for ids in input_ids],
            token_type_ids=[np.array(ids, dtype=np.int8) for ids in token_type_ids],
            labels=label_array(labels),
        )

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each example, special ones included: int64 (examples,)."""
        return np.array([len(ids) for ids in self.input_ids], dtype=np.int64)

    @property
    def size(self) -> str:
        """Number of examples for a log: "2490 (12 truncated, 0.5%)"."""
        count = 0 if self.truncated is None else int(self.truncated.sum())
        if count == 0:
            return str(len(self))
        return f"{len(self)} ({count} truncated, {count / len(self):.1%})"

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
        """Compute the SHA-256 of all arrays: their values, types and shapes."""
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


def label_array(labels: Sequence[Label]) -> np.ndarray | None:
    """Make an array of labels; None where one is missing, as in GLUE's test files."""
    return None if None in labels else np.array(labels)


def encode(
    examples: Iterable[Example],
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    config: AdaptiveConfig,
    seed: int = 0,
) -> Features:
    """Tokenise `examples` for the models of `config`, each truncated to `max_seq_length` tokens.

    seed: for the random number that each example brings for each of the configuration's own inputs.
    """
    remaining = iter(examples)
    input_ids: list[np.ndarray] = []
    token_type_ids: list[np.ndarray] = []
    labels: list[Label] = []
    truncated: list[bool] = []
    while chunk := list(islice(remaining, CHUNK_TEXTS)):
        has_pairs = chunk[0].text_b is not None
        texts = encode_texts(
            tokenizer,
            [example.text_a for example in chunk],
            [example.text_b or "" for example in chunk] if has_pairs else None,
            max_seq_length - config.extra_tokens,
            config.type_vocab_size,
        )
        part = Features.from_lists(
            [config.with_extra_tokens(text.input_ids) for text in texts],
            [config.with_extra_tokens(text.token_type_ids) for text in texts],
        )
        input_ids.extend(part.input_ids)
        token_type_ids.extend(part.token_type_ids)
        labels.extend(example.label for example in chunk)
        truncated.extend(text.is_truncated for text in texts)
    UnknownTokens(tokenizer).count(input_ids)
    generator = torch.Generator().manual_seed(seed)
    inputs = {}
    for name in config.own_inputs:
        inputs[name] = torch.rand(len(input_ids), generator=generator).numpy()
    return Features(
        input_ids=input_ids,
        token_type_ids=token_type_ids,
        labels=label_array(labels),
        truncated=np.array(truncated),
        inputs=inputs,
    )


def collate(
    features: Features, rows: Sequence[int] | np.ndarray, pad_token_id: int
) -> dict[str, torch.Tensor]:
    """Make a batch of these rows, padded to the longest: (rows, length), the others (rows, …).

    A batch that needs no padding has no attention mask: the model then skips masking altogether.
    """
    part = features.take(rows)
    is_token = np.arange(part.lengths.max()) < part.lengths[:, None]  # (rows, length)
    input_ids = np.full(is_token.shape, pad_token_id, dtype=np.int64)
    input_ids[is_token] = np.concatenate(part.input_ids)
    token_type_ids = np.zeros(is_token.shape, dtype=np.int64)
    token_type_ids[is_token] = np.concatenate(part.token_type_ids)
    arrays = {"input_ids": input_ids, "token_type_ids": token_type_ids}
    if not is_token.all():
        arrays["attention_mask"] = is_token.astype(np.int64)
    if part.labels is not None:
        are_scores = part.labels.dtype.kind == "f"  # the models compute in float32
        arrays["labels"] = part.labels.astype(np.float32) if are_scores else part.labels
    arrays.update(part.inputs)
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def epoch_batches(lengths: np.ndarray, batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """List the rows of every training batch of an epoch, a function of `seed` and `epoch` alone.

    Neighbours in length share a batch; the order of batches is shuffled, so that the last steps of
    an epoch are not its shortest texts.
    """
    # A factor above any number of epochs: no two pairs of seed and epoch share a generator.
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    rows = np.array(
        get_length_grouped_indices(
            lengths.tolist(), batch_size, mega_batch_mult=None, generator=generator
        )
    )
    starts = range(0, len(rows), batch_size)
    order = torch.randperm(len(starts), generator=generator).tolist()
    return [rows[starts[i] : starts[i] + batch_size] for i in order]


def sorted_batches(lengths: np.ndarray, batch_size: int) -> Iterator[np.ndarray]:
    """Yield the rows of batches from the longest texts to the shortest, with the least padding."""
    order = np.argsort(-lengths, kind="stable")
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]
