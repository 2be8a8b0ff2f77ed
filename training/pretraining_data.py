"""Examples for MLM and SOP: masked, shuffled and batched on the way; and a tokenizer for them.

Nothing is kept but a shuffle buffer, so memory does not grow with the text. Every random choice
about an example is a function of the seed, the epoch and the example's place in the text: the same
batches come out again, from any point on and for any number of processes.

Sources: ALBERT (Lan et al. 2020) and its published `create_pretraining_data.py`: sentence-order
prediction, masked n-grams of whole words.
"""

import hashlib
import io
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import sentencepiece
import torch
from tokenizers import normalizers
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from modeling.errors import UserError
from modeling.loading.tokenizers import WORD_START
from training.pretraining_settings import PlainText, TextSettings
from training.text import (
    Item,
    Pieces,
    UnmaskedExample,
    blocks,
    drafts_of,
    read_sentences,
    tokenised,
)
from utils.files import write_file

SPECIAL_PIECES = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")  # ALBERT's, ids 0 to 4
WORD_PART = "##"  # WordPiece's (BERT's) mark of a piece that does not
NO_PAIR = -100  # sentence_order_label of an example with one segment
GROUPED_BATCHES = 50  # batches' worth of examples that are sorted by length


class TokenClass(IntEnum):
    """What was done to a token: the published table's rows, and padding."""

    PADDING = 0
    UNMASKED = 1  # and not [CLS] or [SEP]
    MASK_MASK = 2  # chosen for prediction, replaced by [MASK]
    MASK_RANDOM = 3  # chosen, replaced by a random piece
    MASK_ORIGINAL = 4  # chosen, left as it was
    CLS = 5
    SEP = 6


REPLACED = (TokenClass.MASK_MASK, TokenClass.MASK_RANDOM, TokenClass.MASK_ORIGINAL)
REPLACED_SHARES = (0.8, 0.1, 0.1)


class MaskedExample(NamedTuple):
    """A masked example; lists of one length."""

    input_ids: list[int]
    token_type_ids: list[int]
    labels: list[int]  # the piece to predict, -100 elsewhere
    token_classes: list[int]  # TokenClass of each
    sentence_order_label: int  # 0 in order, 1 swapped, -100 no pair


# The tokenizer.


def train_tokenizer(
    paths: Sequence[str | Path], split: bool, vocab_size: int, lower_case: bool, directory: Path
) -> None:
    """Write `spiece.model` with ALBERT's special pieces, as ALBERT's: a unigram model.

    The text is normalised as the tokenizer will do it. Raises UserError when the text is too
    small for `vocab_size` pieces.
    """
    steps = [normalizers.NFKD(), normalizers.StripAccents()]
    normalise = normalizers.Sequence(steps + [normalizers.Lowercase()] * lower_case).normalize_str
    special = re.compile("|".join(map(re.escape, SPECIAL_PIECES)))
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(
                normalise(special.sub(" ", text)) for _, text in read_sentences(paths, split)
            ),
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


def word_starts(pieces: Sequence[str]) -> list[bool]:
    """Whether each piece of a vocabulary begins a word; none where the pieces do not tell."""
    starts = [piece.startswith(WORD_START) for piece in pieces]
    inner = [piece.startswith(WORD_PART) for piece in pieces]
    if any(inner) and not any(starts):
        return [not part for part in inner]
    return starts


class Vocabulary:
    """A tokenizer's pieces, as masking sees them.

    Raises UserError when a special piece is missing, or words cannot be told apart.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        named = {"pad": "<pad>", "unk": "<unk>", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
        ids = {name: getattr(tokenizer, f"{name}_token_id") for name in named}
        pieces = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
        # A special piece that the vocabulary lacks is added behind its end.
        missing = [
            piece
            for name, piece in named.items()
            if ids[name] is None or ids[name] >= tokenizer.vocab_size
        ]
        if missing:
            raise UserError(
                f"the tokenizer has no special piece {', '.join(missing)}; make one with "
                "--train_tokenizer"
            )
        self.pad, self.cls, self.sep, self.mask = (ids[x] for x in ("pad", "cls", "sep", "mask"))
        self.special = frozenset(ids.values())
        self.ordinary = [i for i in range(len(pieces)) if i not in self.special]
        self.starts_word = word_starts(pieces)
        if not any(self.starts_word):
            raise UserError(
                f"no piece of the tokenizer begins with {WORD_START} or {WORD_PART}, so words "
                "cannot be masked whole; give one with a SentencePiece model or a BERT's vocab.txt"
            )

    def words(self, pieces: Pieces, offset: int) -> list[range]:
        """Positions of every whole word, counted from `offset`; special pieces are in none."""
        words: list[range] = []
        within = False
        for place, piece in enumerate(pieces, offset):
            special = piece in self.special
            if within and not special and not self.starts_word[piece]:
                words[-1] = range(words[-1].start, place + 1)
            elif not special:
                words.append(range(place, place + 1))
            within = not special
        return words


# Masks.


def ngram_length(longest: int, draw: random.Random) -> int:
    """n from 1 to `longest` with p(n) = (1/n) / Σₖ (1/k)."""
    lengths = range(1, longest + 1)
    return draw.choices(lengths, [1 / n for n in lengths])[0]


def choose_positions(
    segments: Sequence[Sequence[range]], budget: int, max_ngram: int, draw: random.Random
) -> list[int]:
    """Positions of at most `budget` pieces in n-grams of whole words, none across two segments.

    An n-gram that is longer than what is left of the budget gives way to a shorter one there.
    """
    places = [(words, i) for words in segments for i in range(len(words))]
    draw.shuffle(places)
    chosen: dict[int, None] = {}
    for words, i in places:
        if len(chosen) == budget:
            break
        n = ngram_length(min(max_ngram, len(words) - i), draw)
        while n and words[i + n - 1].stop - words[i].start > budget - len(chosen):
            n -= 1
        span = [place for word in words[i : i + n] for place in word]
        if not any(place in chosen for place in span):
            chosen.update(dict.fromkeys(span))
    return list(chosen)


def unmasked(draft: UnmaskedExample, vocabulary: Vocabulary) -> MaskedExample:
    """Put in the special pieces; nothing is to be predicted."""
    ids, types, classes = [vocabulary.cls], [0], [TokenClass.CLS]
    segments = (draft.first, draft.second) if draft.second else (draft.first,)
    for number, segment in enumerate(segments):
        ids += [*segment, vocabulary.sep]
        types += [number] * (len(segment) + 1)
        classes += [*[TokenClass.UNMASKED] * len(segment), TokenClass.SEP]
    order = int(draft.swapped) if draft.second else NO_PAIR
    return MaskedExample(ids, types, [-100] * len(ids), classes, order)


def mask(
    draft: UnmaskedExample, vocabulary: Vocabulary, text: TextSettings, draw: random.Random
) -> MaskedExample:
    """Choose some pieces for prediction.

    Of the chosen, 80% become [MASK], 10% a random piece, 10% stay; never a special piece.
    """
    example = unmasked(draft, vocabulary)
    ids, _, labels, classes, _ = example
    starts = {1: draft.first, len(draft.first) + 2: draft.second}
    segments = [vocabulary.words(pieces, start) for start, pieces in starts.items()]
    budget = min(text.max_predictions_per_seq, max(1, round(len(ids) * text.masked_lm_prob)))
    for place in choose_positions(segments, budget, text.ngram, draw):
        labels[place] = ids[place]
        classes[place] = draw.choices(REPLACED, REPLACED_SHARES)[0]
        if classes[place] == TokenClass.MASK_MASK:
            ids[place] = vocabulary.mask
        elif classes[place] == TokenClass.MASK_RANDOM:
            ids[place] = draw.choice(vocabulary.ordinary)
    return example


def pad_examples(examples: Sequence[MaskedExample], pad: int) -> dict[str, torch.Tensor]:
    """Tensors (examples, length), padded to the longest; sentence_order_label (examples,).

    A batch that needs no padding has no attention mask: the model then skips masking altogether.
    """
    fill = {"input_ids": pad, "token_type_ids": 0, "labels": -100, "token_classes": 0}
    batch = {
        name: pad_sequence([torch.tensor(getattr(e, name)) for e in examples], True, value)
        for name, value in fill.items()
    }
    lengths = torch.tensor([len(example.input_ids) for example in examples])
    if lengths.min() < lengths.max():
        batch["attention_mask"] = (torch.arange(lengths.max()) < lengths[:, None]).long()
    batch["sentence_order_label"] = torch.tensor([e.sentence_order_label for e in examples])
    return batch


# Batches.


def shuffled(items: Iterable[Item], buffer_size: int, draw: random.Random) -> Iterator[Item]:
    """Yield the items in random order, as far as a buffer of so many can mix them."""
    buffer: list[Item] = []
    for item in items:
        if len(buffer) < buffer_size:
            buffer.append(item)
            continue
        place = draw.randrange(buffer_size)
        buffer[place], item = item, buffer[place]
        yield item
    draw.shuffle(buffer)
    yield from buffer


@dataclass
class PretrainingData:
    """A text as batches.

    text: its `train_files`, and how examples are made of them.
    batch_size: examples of a global batch, over all processes.
    """

    text: PlainText
    tokenizer: PreTrainedTokenizerBase
    seed: int
    batch_size: int

    def __post_init__(self) -> None:
        self.vocabulary = Vocabulary(self.tokenizer)

    def draw(self, *key: int | str) -> random.Random:
        """Make the source of all random choices about whatever `key` names."""
        return random.Random(repr((self.seed, self.text.max_seq_length, *key)))

    def drafts(self, epoch: int) -> Iterator[UnmaskedExample]:
        """Yield all examples of an epoch before masking, in the order of the text."""
        text = self.text
        sentences = read_sentences(text.train_files, text.split_sentences)
        sentences = tokenised(sentences, self.tokenizer)
        for document, group in groupby(sentences, key=lambda x: x[0]):
            draw = self.draw("segments", epoch, document)
            yield from drafts_of(document, (pieces for _, pieces in group), text, draw)

    @property
    def window(self) -> int:
        """Examples that are sorted by length together."""
        return self.batch_size * GROUPED_BATCHES

    def batches_of(self, window: Sequence[UnmaskedExample]) -> list[list[UnmaskedExample]]:
        """Cut a window into whole batches, alike in length within; the rest is left out."""
        whole = window[: len(window) - len(window) % self.batch_size]
        return list(blocks(sorted(whole, key=lambda draft: draft.length), self.batch_size))

    def training_drafts(self, epoch: int) -> Iterator[list[UnmaskedExample]]:
        """Yield an epoch's global batches in random order."""
        draw = self.draw("order", epoch)
        drafts = shuffled(self.drafts(epoch), self.text.shuffle_buffer, draw)
        for window in blocks(drafts, self.window):
            batches = self.batches_of(window)
            draw.shuffle(batches)
            yield from batches

    def batch(
        self, drafts: Sequence[UnmaskedExample], epoch: int, shard: tuple[int, int] = (0, 1)
    ) -> dict[str, torch.Tensor]:
        """Tensors of the shard (i, n): of every n-th example, from the i-th (0-based) on."""
        examples = [
            mask(x, self.vocabulary, self.text, self.draw("mask", epoch, x.document, x.number))
            for x in drafts[shard[0] :: shard[1]]
        ]
        return pad_examples(examples, self.vocabulary.pad)

    def training_batches(
        self, epoch: int, first: int, shard: tuple[int, int] = (0, 1)
    ) -> Iterator[dict[str, torch.Tensor]]:
        """This process's part of an epoch's global batches, from number `first` on.

        The epoch's text before that batch is read again. Raises UserError for a text that does
        not fill one batch.
        """
        number = 0
        for number, drafts in enumerate(self.training_drafts(epoch), 1):
            if number > first:
                yield self.batch(drafts, epoch, shard)
        if number == 0:
            files = ", ".join(map(str, self.text.train_files))
            raise UserError(
                f"{files}: fewer examples than the {self.batch_size} of a batch; "
                "give more text, or lower --per_gpu_train_batch_size"
            )

    def text_hash(self) -> str:
        """Hash of the tokenizer and of each file's size and beginning: cheap at any size.

        Raises UserError for a file that cannot be read.
        """
        digest = hashlib.sha256(self.tokenizer.backend_tokenizer.to_str().encode())
        for path in map(Path, self.text.train_files):
            try:
                with path.open("rb") as file:
                    digest.update(f"{path.stat().st_size}\n".encode() + file.read(1 << 20))
            except OSError as error:
                raise UserError(f"cannot read {path}: {error.strerror}") from error
        return digest.hexdigest()

    def evaluation_batches(self, shard: tuple[int, int]) -> Iterator[dict[str, torch.Tensor]]:
        """This process's part of the text, every example once."""
        for drafts in blocks(self.drafts(0), self.batch_size):
            if drafts[shard[0] :: shard[1]]:
                yield self.batch(drafts, 0, shard)
