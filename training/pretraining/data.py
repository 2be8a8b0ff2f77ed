"""Plain text as batches for MLM and SOP, and a tokenizer for it.

A text file has one sentence a line; a blank line, or a heading like " = Title = ", ends a document.
The text is tokenised once, into memory-mapped files; only where its examples start is in memory.
Every random choice about an example is a function of the seed, the epoch and its number: the same
batches come out again, from any point on and for any number of processes.

Sources: ALBERT (Lan et al. 2020) and its published `create_pretraining_data.py`: segments of
consecutive sentences, sentence-order prediction, masked n-grams of whole words.
"""

import io
import logging
import re
import signal
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from functools import partial
from itertools import chain, islice, pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from tokenizers import normalizers
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset
from transformers import PreTrainedTokenizerBase as Tokenizer

from elbert.loading.tokenizers import WORD_START
from elbert.loading.weights import Tensors
from elbert_base.errors import UserError
from glue.tables import read_lines
from runs.files import fingerprint, locked, write_file
from runs.settings import RunSettings
from training.checkpoints import write_directory
from training.pretraining.settings import PlainText, TextSettings

logger = logging.getLogger(__name__)

Shard = tuple[int, int]  # (i, n): of every n-th example, from the i-th (0-based) on
Pieces = np.ndarray  # of piece ids

HEADING = re.compile(r"(= )+[^=].* =")
# White space after . ! or ? and before what may begin a sentence: a capital or a digit, perhaps
# behind an opening quote or bracket. The full stop of an initial ("J. Smith", "U.S.") ends none.
SENTENCE_END = re.compile(r"(?<=[.!?])(?<!\b[A-Z]\.)\s+(?=[\"'“‘(\[]?\s?[A-Z0-9])")
WORD_PART = "##"  # WordPiece's (BERT's) mark of a piece that begins no word
TOKENISED_TOGETHER = 1000  # sentences; the tokenizer is faster on many
GROUPED = 8192  # examples, or 50 batches of them, that are sorted by length
TEXT = ".text"  # in --output_dir; the tokenised text


# What was done to a token: the published table's rows, and padding. MASK_…: chosen for prediction,
# and replaced by [MASK], by a random piece, or left as it was.
TokenClass = IntEnum(
    "TokenClass", "PADDING UNMASKED MASK_MASK MASK_RANDOM MASK_ORIGINAL CLS SEP", start=0
)


def read_sentences(paths: Sequence[str | Path], split: bool) -> Iterator[tuple[int, str]]:
    """(number of the document, sentence) of every sentence, in order; UserError where none is.

    `split`: lines are paragraphs, to be cut into sentences.
    """
    document = sentences = 0
    within = False
    for path in paths:
        for _, line in read_lines(Path(path)):
            text = line.strip()
            if not text or HEADING.fullmatch(text):
                document, within = document + within, False
                continue
            within = True
            for sentence in SENTENCE_END.split(text) if split else (text,):
                sentences += 1
                yield document, sentence
        document, within = document + within, False  # no document goes on in the next file
    if not sentences:
        raise UserError(
            f"{', '.join(map(str, paths))}: no text; give files with one sentence a line and blank "
            "lines between documents"
        )


def tokenise(text: PlainText, tokenizer: Tokenizer, folder: Path) -> None:
    """Write all pieces in a row (int32) and, of every sentence, its end and document (int64).

    Before the first sentence's stands the row (0, -1). Sentences without a piece are left out.
    """
    sentences = read_sentences(text.train_files, text.split_sentences)
    end = 0
    with (folder / "pieces").open("wb") as pieces, (folder / "sentences").open("wb") as ends:
        np.array([0, -1]).tofile(ends)
        while block := list(islice(sentences, TOKENISED_TOGETHER)):
            documents, texts = zip(*block, strict=True)
            ids = tokenizer(list(texts), add_special_tokens=False)["input_ids"]
            lengths = np.array([len(sentence) for sentence in ids])
            np.fromiter(chain.from_iterable(ids), np.int32).tofile(pieces)
            rows = np.stack([end + lengths.cumsum(), documents], axis=1)
            rows[lengths > 0].tofile(ends)
            end += int(lengths.sum())


def cut_examples(sentences: np.ndarray, text: PlainText, rng: Random) -> np.ndarray:
    """Fill examples with a document's sentences: the first's number, and that behind the last.

    sentences (n + 1, 2): as `tokenise` writes them. Returns (examples, 2).
    """
    ends, documents = sentences.T
    room = text.max_seq_length - 3
    examples = array("q")
    start = 0
    stops = (np.flatnonzero(np.diff(documents[1:])) + 1).tolist()
    for stop in [*stops, len(ends) - 1]:
        while start < stop:
            short = rng.random() < text.short_seq_prob
            wanted = rng.randint(2, room) if short else room
            end = min(bisect_left(ends, ends[start] + wanted, start + 1), stop)
            examples.extend((start, end))
            start = end
    return np.frombuffer(examples, np.int64).reshape(-1, 2)


def cut_segments(pieces: Pieces, ends: np.ndarray, room: int, rng: Random) -> list[Pieces]:
    """Cut an example's sentences into two segments of together `room` pieces; one sentence is one.

    ends: (sentences + 1,) in `pieces`, the first is where they start. Of the longer segment pieces
    go, at either end by chance.
    """
    if len(ends) == 2:
        return [pieces[ends[0] : ends[1]][: room + 1]]
    cut = ends[rng.randint(1, len(ends) - 2)]
    bounds = [[ends[0], cut], [cut, ends[-1]]]
    for _ in range(ends[-1] - ends[0] - room):
        longer = max(bounds, key=lambda x: x[1] - x[0])
        if rng.random() < 0.5:
            longer[0] += 1
        else:
            longer[1] -= 1
    return [pieces[start:end] for start, end in bounds]


def train_tokenizer(
    paths: Sequence[str | Path], split: bool, vocab_size: int, lower_case: bool, directory: Path
) -> None:
    """Write `spiece.model`, a unigram model as ALBERT's; the text is normalised as with it.

    Raises UserError when the text is too small for `vocab_size` pieces.
    """
    from sentencepiece import SentencePieceTrainer

    steps = [normalizers.NFKD(), normalizers.StripAccents()]
    normalise = normalizers.Sequence(steps + [normalizers.Lowercase()] * lower_case).normalize_str
    special = re.compile(r"<pad>|<unk>|\[CLS\]|\[SEP\]|\[MASK\]")
    sentences = (normalise(special.sub(" ", text)) for _, text in read_sentences(paths, split))
    model = io.BytesIO()
    try:
        SentencePieceTrainer.train(
            sentence_iterator=sentences,
            model_writer=model,
            vocab_size=vocab_size,
            pad_id=0,
            pad_piece="<pad>",
            unk_id=1,
            bos_id=-1,
            eos_id=-1,
            control_symbols="[CLS],[SEP],[MASK]",
            character_coverage=0.99995,
            input_sentence_size=10_000_000,  # of a larger text, a sample
            shuffle_input_sentence=True,
            minloglevel=2,
        )
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].rpartition("] ")[2]
        raise UserError(f"no tokenizer of {vocab_size} pieces from this text: {reason}") from error
    write_file(directory / "spiece.model", lambda file: file.write(model.getvalue()))


class Vocabulary:
    """A tokenizer's pieces, as masking sees them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.pad, self.cls = tokenizer.pad_token_id, tokenizer.cls_token_id
        self.sep, self.mask = tokenizer.sep_token_id, tokenizer.mask_token_id
        pieces = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
        self.special = np.isin(np.arange(len(pieces)), tokenizer.all_special_ids)
        self.ordinary = np.flatnonzero(~self.special).tolist()
        self.starts_word = np.array([piece.startswith(WORD_START) for piece in pieces])
        if not self.starts_word.any():
            self.starts_word = np.array([not piece.startswith(WORD_PART) for piece in pieces])

    def words(self, ids: np.ndarray) -> list[range]:
        """Positions of every whole word; special pieces are in none."""
        special = self.special[ids]
        starts = ~special & (self.starts_word[ids] | np.append(True, special[:-1]))
        cuts = [*np.flatnonzero(starts | special).tolist(), len(ids)]
        return [range(start, end) for start, end in pairwise(cuts) if starts[start]]

    def unmasked(self, segments: Sequence[Pieces]) -> dict[str, np.ndarray]:
        """Put in the special pieces; nothing is to be predicted."""
        ids = [self.cls, *chain.from_iterable([*part, self.sep] for part in segments)]
        types = np.repeat(range(len(segments)), [len(part) + 1 for part in segments])
        classes = np.full(len(ids), TokenClass.UNMASKED)
        classes[np.cumsum([0, *(len(part) + 1 for part in segments)])] = TokenClass.SEP
        classes[0] = TokenClass.CLS
        return {
            "input_ids": np.array(ids),
            "token_type_ids": np.append(0, types),
            "labels": np.full(len(ids), -100),
            "token_classes": classes,
        }


def ngram_length(longest: int, rng: Random) -> int:
    """n from 1 to `longest` with p(n) = (1/n) / Σₖ (1/k)."""
    lengths = range(1, longest + 1)
    return rng.choices(lengths, [1 / n for n in lengths])[0]


def choose_positions(
    segments: Sequence[Sequence[range]], budget: int, max_ngram: int, rng: Random
) -> list[int]:
    """Positions of at most `budget` pieces in n-grams of whole words, none across two segments."""
    starts = [(words, i) for words in segments for i in range(len(words))]
    rng.shuffle(starts)
    chosen: dict[int, None] = {}
    for words, i in starts:
        if len(chosen) == budget:
            break
        n = ngram_length(min(max_ngram, len(words) - i), rng)
        while n and words[i + n - 1].stop - words[i].start > budget - len(chosen):
            n -= 1
        span = [position for word in words[i : i + n] for position in word]
        if not any(position in chosen for position in span):
            chosen.update(dict.fromkeys(span))
    return list(chosen)


def mask(
    example: dict[str, np.ndarray], vocabulary: Vocabulary, text: TextSettings, rng: Random
) -> None:
    """Choose pieces for prediction, in place: 80% become [MASK], 10% a random piece, 10% stay."""
    ids, types, labels, classes = example.values()
    words = vocabulary.words(ids)
    segments = [[word for word in words if types[word.start] == number] for number in (0, 1)]
    budget = min(text.max_predictions_per_seq, max(1, round(len(ids) * text.masked_lm_prob)))
    kinds = (TokenClass.MASK_MASK, TokenClass.MASK_RANDOM, TokenClass.MASK_ORIGINAL)
    chosen = choose_positions(segments, budget, text.ngram, rng)
    labels[chosen] = ids[chosen]
    classes[chosen] = rng.choices(kinds, (0.8, 0.1, 0.1), k=len(chosen))
    ids[classes == TokenClass.MASK_MASK] = vocabulary.mask
    random = classes == TokenClass.MASK_RANDOM
    ids[random] = rng.choices(vocabulary.ordinary, k=random.sum())


def ignore_signals(worker: int) -> None:
    """Leave signals to the training, which saves and then ends its workers."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


class PretrainingData(Dataset):
    """A text as batches, of examples that are masked where `text` says how.

    run: the text, tokenised, is in its --output_dir until the script ends, or in --text_cache.
    batch_size: examples of a global batch, over all processes.
    """

    def __init__(
        self, text: PlainText, run: RunSettings, tokenizer: Tokenizer, batch_size: int
    ) -> None:
        self.text = text
        self.batch_size = batch_size
        self.seed = run.seed, text.max_seq_length
        self.vocabulary = Vocabulary(tokenizer)
        files = [Path(path) for path in text.train_files]
        for path in files:
            next(read_lines(path), None)  # raises UserError for what is no file
        pieces = tokenizer.backend_tokenizer.to_str()
        self.fingerprint = fingerprint(pieces, text.split_sentences, *files)
        cache = Path(text.text_cache or Path(run.output_dir, TEXT))
        folder = cache / self.fingerprint[:16]
        cache.mkdir(parents=True, exist_ok=True)
        with locked(folder):  # one process writes, the others wait
            if not ((folder / "pieces").exists() and (folder / "sentences").exists()):
                logger.info("Tokenising the text into %s", folder)
                write_directory(folder, partial(tokenise, text, tokenizer))
        self.pieces = np.memmap(folder / "pieces", np.int32, "r")
        self.sentences = np.memmap(folder / "sentences", np.int64, "r").reshape(-1, 2)
        self.examples = cut_examples(self.sentences, text, Random(repr(self.seed)))
        starts, ends = self.sentences[:, 0][self.examples].T
        self.lengths = np.minimum(ends - starts + 3, text.max_seq_length)

    def __getitem__(self, index: tuple[int, int]) -> dict[str, Any]:
        """Make an example, by its epoch and number."""
        rng = Random(repr((*self.seed, *index)))
        first, last = self.examples[index[1]]
        ends = self.sentences[first : last + 1, 0].tolist()
        segments = cut_segments(self.pieces, ends, self.text.max_seq_length - 3, rng)
        swapped = len(segments) == 2 and rng.random() < 0.5
        example = self.vocabulary.unmasked(segments[:: -1 if swapped else 1])
        if isinstance(self.text, TextSettings):
            mask(example, self.vocabulary, self.text, rng)
        return {**example, "sentence_order_label": int(swapped) if len(segments) == 2 else -100}

    def collate(self, examples: Sequence[dict[str, np.ndarray]]) -> Tensors:
        """Tensors (examples, length), padded to the longest; sentence_order_label (examples,).

        A batch without padding has no attention mask: the model then skips masking altogether.
        """
        orders = torch.tensor([example.pop("sentence_order_label") for example in examples])
        fill = {"input_ids": self.vocabulary.pad, "token_type_ids": 0, "labels": -100}
        batch = {}
        for name, padding in {**fill, "token_classes": TokenClass.PADDING}.items():
            values = [torch.from_numpy(example[name]) for example in examples]
            batch[name] = pad_sequence(values, True, padding)
        lengths = torch.tensor([len(example["input_ids"]) for example in examples])
        if lengths.min() < lengths.max():
            batch["attention_mask"] = (torch.arange(int(lengths.max())) < lengths[:, None]).long()
        return {**batch, "sentence_order_label": orders}

    def size(self, longest: int) -> int:
        """Examples of a global batch whose longest has so many pieces."""
        return self.batch_size

    def batches(self, epoch: int) -> list[np.ndarray]:
        """Numbers of the examples of an epoch's global batches, alike in length within a batch."""
        rng = np.random.default_rng((*self.seed, epoch))
        order = rng.permutation(len(self.examples))
        batches = []
        grouped = self.batch_size * max(50, GROUPED // self.batch_size)
        for start in range(0, len(order), grouped):
            group = order[start : start + grouped]
            group = group[np.argsort(-self.lengths[group], kind="stable")]
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
        """Make these batches, ahead of their use."""
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
        """This process's part of an epoch's global batches, from number `first` on."""
        rank, processes = shard
        return self.load((x[rank::processes] for x in self.batches(epoch)[first:]), epoch)

    def evaluation_batches(self, shard: Shard) -> DataLoader:
        """This process's part of the text, every example once."""
        rank, processes = shard
        mine = range(rank, len(self.examples), processes)
        size = self.batch_size // processes
        return self.load((mine[i : i + size] for i in range(0, len(mine), size)), epoch=0)
