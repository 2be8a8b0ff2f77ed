"""Plain text as batches for MLM and SOP.

Only where the examples start is in memory. Every random choice about an example is a function of
the seed, the epoch and its number: the same batches come out again, from any point on and for any
number of processes.
"""

import signal
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset
from transformers import PreTrainedTokenizerBase

from glue.tables import read_lines
from modeling.errors import UserError
from modeling.loading.weights import TensorDict
from runs.fingerprint import fingerprint
from training.pretraining.masking import (
    NO_LABEL,
    PretrainingExample,
    TokenClass,
    Vocabulary,
    mask,
)
from training.pretraining.settings import PlainText, TextSettings
from training.pretraining.text import TEXT, cut_examples, cut_segments, tokenised_text

Shard = tuple[int, int]  # (i, n): of every n-th example, from the i-th (0-based) on

GROUPED = 8192  # examples, or 50 batches of them, that are sorted by length


class PretrainingData(Dataset[PretrainingExample]):
    """A text as batches, of examples that are masked where `text` says how.

    Args:
        batch_size: examples of a global batch, over all processes.
        output_dir: has the text, tokenised, until the script ends, if --text_cache does not.
    """

    def __init__(
        self,
        text: PlainText,
        tokenizer: PreTrainedTokenizerBase,
        batch_size: int,
        *,
        seed: int,
        output_dir: str | Path,
    ) -> None:
        self.text = text
        self.batch_size = batch_size
        self.seed = (seed, text.max_seq_length)
        self.vocabulary = Vocabulary(tokenizer)
        paths = [Path(path) for path in text.train_files]
        for path in paths:
            next(read_lines(path), None)  # raises UserError for what is no file
        pieces = tokenizer.backend_tokenizer.to_str()
        self.fingerprint = fingerprint(pieces, text.split_sentences, *paths)
        cache = Path(text.text_cache or Path(output_dir, TEXT))
        self.pieces, self.sentences = tokenised_text(
            text.train_files, text.split_sentences, tokenizer, cache / self.fingerprint[:16]
        )
        # (examples, 2), see `cut_examples`; and each one's pieces, special ones included.
        self.examples = cut_examples(
            self.sentences, text.max_seq_length, text.short_seq_prob, Random(repr(self.seed))
        )
        starts, ends = self.sentences[:, 0][self.examples].T
        self.lengths = np.minimum(ends - starts + 3, text.max_seq_length)

    def __getitem__(self, index: tuple[int, int]) -> PretrainingExample:
        """Make an example, by its epoch and number."""
        _, number = index
        rng = Random(repr((*self.seed, *index)))
        first, last = self.examples[number]
        ends = self.sentences[first : last + 1, 0].tolist()
        segments = cut_segments(self.pieces, ends, self.text.max_seq_length - 3, rng)
        is_pair = len(segments) == 2
        is_swapped = is_pair and rng.random() < 0.5
        if is_swapped:
            segments.reverse()
        example = self.vocabulary.unmasked(segments)
        if is_pair:
            example.sentence_order_label = int(is_swapped)
        if isinstance(self.text, TextSettings):
            mask(example, self.vocabulary, self.text, rng)
        return example

    def collate(self, examples: Sequence[PretrainingExample]) -> TensorDict:
        """Make a batch: a tensor of each field, padded to the longest example.

        sentence_order_label is (examples,), the others (examples, length). A batch without padding
        has no attention mask: the model then skips masking altogether.
        """
        padding = {
            "input_ids": self.vocabulary.pad,
            "token_type_ids": 0,
            "labels": NO_LABEL,
            "token_classes": int(TokenClass.PADDING),
        }
        batch = {}
        for name, value in padding.items():
            rows = [torch.from_numpy(getattr(example, name)) for example in examples]
            batch[name] = pad_sequence(rows, batch_first=True, padding_value=value)
        lengths = torch.tensor([len(example.input_ids) for example in examples])
        if lengths.min() < lengths.max():
            positions = torch.arange(int(lengths.max()))
            batch["attention_mask"] = (positions < lengths[:, None]).long()
        orders = [example.sentence_order_label for example in examples]
        batch["sentence_order_label"] = torch.tensor(orders)
        return batch

    def size(self, longest: int) -> int:
        """Return the number of examples of a global batch whose longest has so many pieces."""
        return self.batch_size

    def batches(self, epoch: int) -> list[np.ndarray]:
        """List the examples' numbers of an epoch's global batches.

        Within a batch, examples are alike in length. What is left over, less than a batch, is left
        out. Raises UserError for a text of less than one batch.
        """
        rng = np.random.default_rng((*self.seed, epoch))
        order = rng.permutation(len(self.examples))
        batches = []
        grouped = self.batch_size * max(50, GROUPED // self.batch_size)
        for start in range(0, len(order), grouped):
            group = order[start : start + grouped]
            longest_first = np.argsort(-self.lengths[group], kind="stable")
            group = group[longest_first]
            while len(group):
                size = self.size(self.lengths[group[0]])
                batches.append(group[:size])
                group = group[size:]
        batches = [batch for batch in batches if len(batch) >= self.batch_size]
        if not batches:
            raise UserError(
                f"{', '.join(map(str, self.text.train_files))}: fewer examples than the "
                f"{self.batch_size} of a batch; give more text, or lower --per_gpu_train_batch_size"
            )
        rng.shuffle(batches)
        return batches

    def load(self, batches: Iterable[Sequence[int] | np.ndarray], epoch: int) -> DataLoader:
        """Make these batches, given by the examples' numbers, ahead of their use."""
        workers = self.text.dataloader_num_workers
        return DataLoader(
            self,
            batch_sampler=([(epoch, int(number)) for number in batch] for batch in batches),
            collate_fn=self.collate,
            num_workers=workers,
            multiprocessing_context="fork" if workers else None,  # another would copy the text
            worker_init_fn=ignore_signals,
        )

    def training_batches(self, epoch: int, first: int, shard: Shard = (0, 1)) -> DataLoader:
        """Make this process's part of an epoch's global batches, from number `first` on."""
        rank, processes = shard
        batches = self.batches(epoch)[first:]
        return self.load((batch[rank::processes] for batch in batches), epoch)

    def evaluation_batches(self, shard: Shard) -> DataLoader:
        """Make this process's part of the text, every example once, in order."""
        rank, processes = shard
        numbers = range(rank, len(self.examples), processes)
        size = self.batch_size // processes
        batches = (numbers[start : start + size] for start in range(0, len(numbers), size))
        return self.load(batches, epoch=0)


def ignore_signals(worker: int) -> None:
    """Leave signals to the training, which saves and then ends its workers."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
