"""Plain text as batches for MLM and SOP, and a tokenizer for it.

A text file has one sentence a line; a blank line, or a heading like " = Title = ", ends a document.
Examples are masked, shuffled and batched on the way. Nothing is kept but a shuffle buffer, so
memory does not grow with the text. Every random choice about an example is a function of the seed,
the epoch and the example's place in the text: the same batches come out again, from any point on
and for any number of processes.

Sources: ALBERT (Lan et al. 2020) and its published `create_pretraining_data.py`: segments of
consecutive sentences, sentence-order prediction, masked n-grams of whole words.
"""

import hashlib
import io
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import groupby, islice
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, TypeVar

import torch
from tokenizers import normalizers
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase as Tokenizer

from glue.tables import read_lines
from modeling.errors import UserError
from modeling.loading.tokenizers import WORD_START
from modeling.loading.weights import Tensors
from training.pretraining_settings import PlainText, TextSettings
from utils.files import write_file

Item = TypeVar("Item")
Shard = tuple[int, int]  # (i, n): of every n-th example, from the i-th (0-based) on
Pieces = array  # of piece ids, four bytes each: the shuffle buffer holds many

HEADING = re.compile(r"(= )+[^=].* =")
# White space after . ! or ? and before what may begin a sentence: a capital or a digit, perhaps
# behind an opening quote or bracket. The full stop of an initial ("J. Smith", "U.S.") ends none.
SENTENCE_END = re.compile(r"(?<=[.!?])(?<!\b[A-Z]\.)\s+(?=[\"'“‘(\[]?\s?[A-Z0-9])")
WORD_PART = "##"  # WordPiece's (BERT's) mark of a piece that begins no word
TOKENISED_TOGETHER = 1000  # sentences; the tokenizer is faster on many
GROUPED_BATCHES = 50  # batches' worth of examples that are sorted by length


# What was done to a token: the published table's rows, and padding. MASK_…: chosen for prediction,
# and replaced by [MASK], by a random piece, or left as it was.
TokenClass = IntEnum(
    "TokenClass", "PADDING UNMASKED MASK_MASK MASK_RANDOM MASK_ORIGINAL CLS SEP", start=0
)


# A masked example: lists of one length, and its sentence_order_label (0 in order, 1 swapped).
MaskedExample = dict[str, Any]


class Draft(NamedTuple):
    """An example before masking, in the order in which the model reads it."""

    document: int
    number: int  # within its document
    first: Pieces
    second: Pieces  # empty: no pair, used for MLM only
    swapped: bool

    @property
    def length(self) -> int:
        return len(self.first) + len(self.second) + (3 if self.second else 2)


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


def check_text(paths: Sequence[str | Path]) -> None:
    """Raise UserError for what `read_sentences` would not read to the end; reads all of it."""
    for _ in read_sentences(paths, split=False):
        pass


def blocks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Lists of `size` items in a row; the last may be shorter."""
    items = iter(items)
    return iter(lambda: list(islice(items, size)), [])


def tokenised(
    sentences: Iterable[tuple[int, str]], tokenizer: Tokenizer
) -> Iterator[tuple[int, Pieces]]:
    """Sentences as piece ids; those without any piece are left out."""
    for block in blocks(sentences, TOKENISED_TOGETHER):
        texts = [text for _, text in block]
        encoded = tokenizer(texts, add_special_tokens=False, return_attention_mask=False)
        for (document, _), ids in zip(block, encoded["input_ids"], strict=True):
            if ids:
                yield document, array("i", ids)


def truncate_pair(first: Pieces, second: Pieces, room: int, draw: Random) -> tuple[Pieces, Pieces]:
    """Cut pieces off the longer segment, at either end by chance, until both fit into `room`."""
    bounds = [[0, len(first)], [0, len(second)]]
    for _ in range(len(first) + len(second) - room):
        longer = max(bounds, key=lambda x: x[1] - x[0])
        if draw.random() < 0.5:
            longer[0] += 1
        else:
            longer[1] -= 1
    return first[slice(*bounds[0])], second[slice(*bounds[1])]


def drafts_of(
    document: int, sentences: Iterable[Pieces], text: PlainText, draw: Random
) -> Iterator[Draft]:
    """Yield a document's examples, filled with its sentences: two segments, swapped half of the
    time, or of one sentence, one."""
    room = text.max_seq_length - 3

    def target() -> int:
        return draw.randint(2, room) if draw.random() < text.short_seq_prob else room

    def example(number: int, chunk: list[Pieces]) -> Draft:
        if len(chunk) == 1:
            return Draft(document, number, chunk[0][: room + 1], array("i"), False)
        cut = draw.randint(1, len(chunk) - 1)
        segments = (sum(part, array("i")) for part in (chunk[:cut], chunk[cut:]))
        first, second = truncate_pair(*segments, room, draw)
        if draw.random() < 0.5:
            return Draft(document, number, second, first, True)
        return Draft(document, number, first, second, False)

    number, chunk, wanted = 0, [], target()
    for sentence in sentences:
        chunk.append(sentence)
        if sum(map(len, chunk)) >= wanted:
            yield example(number, chunk)
            number, chunk, wanted = number + 1, [], target()
    if chunk:
        yield example(number, chunk)


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
        self.special = frozenset(tokenizer.all_special_ids)
        pieces = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
        self.ordinary = [i for i in range(len(pieces)) if i not in self.special]
        self.starts_word = [piece.startswith(WORD_START) for piece in pieces]
        if not any(self.starts_word):
            self.starts_word = [not piece.startswith(WORD_PART) for piece in pieces]

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


def ngram_length(longest: int, draw: Random) -> int:
    """n from 1 to `longest` with p(n) = (1/n) / Σₖ (1/k)."""
    lengths = range(1, longest + 1)
    return draw.choices(lengths, [1 / n for n in lengths])[0]


def choose_positions(
    segments: Sequence[Sequence[range]], budget: int, max_ngram: int, draw: Random
) -> list[int]:
    """Positions of at most `budget` pieces in n-grams of whole words, none across two segments."""
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


def unmasked(draft: Draft, vocabulary: Vocabulary) -> MaskedExample:
    """Put in the special pieces; nothing is to be predicted."""
    ids, types, classes = [vocabulary.cls], [0], [TokenClass.CLS]
    for number, segment in enumerate(filter(None, (draft.first, draft.second))):
        ids += [*segment, vocabulary.sep]
        types += [number] * (len(segment) + 1)
        classes += [*[TokenClass.UNMASKED] * len(segment), TokenClass.SEP]
    order, labels = int(draft.swapped) if draft.second else -100, [-100] * len(ids)
    lists = {"input_ids": ids, "token_type_ids": types, "labels": labels, "token_classes": classes}
    return {**lists, "sentence_order_label": order}


def mask(draft: Draft, vocabulary: Vocabulary, text: TextSettings, draw: Random) -> MaskedExample:
    """Choose pieces for prediction: 80% become [MASK], 10% a random piece, 10% stay."""
    example = unmasked(draft, vocabulary)
    ids, _, labels, classes, _ = example.values()
    starts = {1: draft.first, len(draft.first) + 2: draft.second}
    segments = [vocabulary.words(pieces, start) for start, pieces in starts.items()]
    budget = min(text.max_predictions_per_seq, max(1, round(len(ids) * text.masked_lm_prob)))
    kinds = (TokenClass.MASK_MASK, TokenClass.MASK_RANDOM, TokenClass.MASK_ORIGINAL)
    for place in choose_positions(segments, budget, text.ngram, draw):
        labels[place] = ids[place]
        classes[place] = draw.choices(kinds, (0.8, 0.1, 0.1))[0]
        if classes[place] == TokenClass.MASK_MASK:
            ids[place] = vocabulary.mask
        elif classes[place] == TokenClass.MASK_RANDOM:
            ids[place] = draw.choice(vocabulary.ordinary)
    return example


def pad_examples(examples: Sequence[MaskedExample], pad: int) -> Tensors:
    """Tensors (examples, length), padded to the longest; sentence_order_label (examples,).

    A batch that needs no padding has no attention mask: the model then skips masking altogether.
    """
    fill = {"input_ids": pad, "token_type_ids": 0, "labels": -100, "token_classes": 0}
    batch = {
        name: pad_sequence([torch.tensor(example[name]) for example in examples], True, value)
        for name, value in fill.items()
    }
    lengths = torch.tensor([len(example["input_ids"]) for example in examples])
    if lengths.min() < lengths.max():
        batch["attention_mask"] = (torch.arange(lengths.max()) < lengths[:, None]).long()
    orders = [example["sentence_order_label"] for example in examples]
    return {**batch, "sentence_order_label": torch.tensor(orders)}


def shuffled(items: Iterable[Item], buffer_size: int, draw: Random) -> Iterator[Item]:
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
    """A text as batches; batch_size: examples of a global batch, over all processes."""

    text: PlainText
    tokenizer: Tokenizer
    seed: int
    batch_size: int

    def __post_init__(self) -> None:
        self.vocabulary = Vocabulary(self.tokenizer)

    def draw(self, *key: int | str) -> Random:
        return Random(repr((self.seed, self.text.max_seq_length, *key)))

    def drafts(self, epoch: int) -> Iterator[Draft]:
        """Yield all examples of an epoch before masking, in the order of the text."""
        sentences = read_sentences(self.text.train_files, self.text.split_sentences)
        sentences = tokenised(sentences, self.tokenizer)
        for document, group in groupby(sentences, key=lambda x: x[0]):
            draw = self.draw("segments", epoch, document)
            yield from drafts_of(document, (pieces for _, pieces in group), self.text, draw)

    @property
    def window(self) -> int:
        """Examples that are sorted by length together."""
        return self.batch_size * GROUPED_BATCHES

    def batches_of(self, window: Sequence[Draft]) -> list[list[Draft]]:
        """Cut a window into whole batches, alike in length within; the rest is left out."""
        whole = window[: len(window) - len(window) % self.batch_size]
        return list(blocks(sorted(whole, key=lambda draft: draft.length), self.batch_size))

    def training_drafts(self, epoch: int) -> Iterator[list[Draft]]:
        """Yield an epoch's global batches in random order."""
        draw = self.draw("order", epoch)
        drafts = shuffled(self.drafts(epoch), self.text.shuffle_buffer, draw)
        for window in blocks(drafts, self.window):
            batches = self.batches_of(window)
            draw.shuffle(batches)
            yield from batches

    def batch(self, drafts: Sequence[Draft], epoch: int, shard: Shard = (0, 1)) -> Tensors:
        examples = [
            mask(x, self.vocabulary, self.text, self.draw("mask", epoch, x.document, x.number))
            for x in drafts[shard[0] :: shard[1]]
        ]
        return pad_examples(examples, self.vocabulary.pad)

    def training_batches(self, epoch: int, first: int, shard: Shard = (0, 1)) -> Iterator[Tensors]:
        """This process's part of an epoch's global batches, from number `first` on."""
        number = 0
        for number, drafts in enumerate(self.training_drafts(epoch), 1):
            if number > first:
                yield self.batch(drafts, epoch, shard)
        if number == 0:
            raise UserError(
                f"{', '.join(map(str, self.text.train_files))}: fewer examples than the "
                f"{self.batch_size} of a batch; give more text, or lower --per_gpu_train_batch_size"
            )

    def text_hash(self) -> str:
        """Hash of the tokenizer and of each file's size and beginning: cheap at any size."""
        digest = hashlib.sha256(self.tokenizer.backend_tokenizer.to_str().encode())
        for path in map(Path, self.text.train_files):
            with path.open("rb") as file:
                digest.update(f"{path.stat().st_size}\n".encode() + file.read(1 << 20))
        return digest.hexdigest()

    def evaluation_batches(self, shard: Shard) -> Iterator[Tensors]:
        """This process's part of the text, every example once."""
        for drafts in blocks(self.drafts(0), self.batch_size):
            if drafts[shard[0] :: shard[1]]:
                yield self.batch(drafts, 0, shard)
