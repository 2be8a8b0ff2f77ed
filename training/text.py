"""Text for pre-training: from files to sentences, piece ids, and examples before masking.

A text file has one sentence a line; a blank line, or a heading like " = Title = ", ends a document.
Lines that are whole paragraphs are cut into sentences by `split_sentences`. Nothing is kept.

Source: ALBERT's published `create_pretraining_data.py`: segments of consecutive sentences.
"""

import random
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from typing import NamedTuple, TypeVar

from transformers import PreTrainedTokenizerBase

from glue.tables import read_lines
from modeling.errors import UserError
from training.pretraining_settings import PlainText

Item = TypeVar("Item")
Pieces = array  # of piece ids, four bytes each: the shuffle buffer holds many

HEADING = re.compile(r"(= )+[^=].* =")
# White space after . ! or ? and before what may begin a sentence: a capital or a digit, perhaps
# behind an opening quote or bracket. The full stop of an initial ("J. Smith", "U.S.") ends none.
SENTENCE_END = re.compile(r"(?<=[.!?])(?<!\b[A-Z]\.)\s+(?=[\"'“‘(\[]?\s?[A-Z0-9])")

TOKENISED_TOGETHER = 1000  # sentences; the tokenizer is faster on many


class UnmaskedExample(NamedTuple):
    """An example before masking, in the order in which the model reads it."""

    document: int
    number: int  # within its document
    first: Pieces
    second: Pieces  # empty: no pair, used for MLM only
    swapped: bool

    @property
    def length(self) -> int:
        return len(self.first) + len(self.second) + (3 if self.second else 2)


# Text.


def split_sentences(paragraph: str) -> list[str]:
    """Sentences of a paragraph, by the rule of SENTENCE_END."""
    return SENTENCE_END.split(paragraph)


def read_sentences(paths: Sequence[str | Path], split: bool) -> Iterator[tuple[int, str]]:
    """(number of the document, sentence) of every sentence, in order.

    `split`: lines are paragraphs, to be cut into sentences. Raises UserError for a file that
    cannot be read, naming the line where it is not text, and when there is no sentence at all.
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
            for sentence in split_sentences(text) if split else (text,):
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


# Segments.


def blocks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Lists of `size` items in a row; the last may be shorter."""
    items = iter(items)
    return iter(lambda: list(islice(items, size)), [])


def tokenised(
    sentences: Iterable[tuple[int, str]], tokenizer: PreTrainedTokenizerBase
) -> Iterator[tuple[int, Pieces]]:
    """Sentences as piece ids; those without any piece are left out."""
    for block in blocks(sentences, TOKENISED_TOGETHER):
        texts = [text for _, text in block]
        encoded = tokenizer(texts, add_special_tokens=False, return_attention_mask=False)
        for (document, _), ids in zip(block, encoded["input_ids"], strict=True):
            if ids:
                yield document, array("i", ids)


def truncate_pair(
    first: Pieces, second: Pieces, room: int, draw: random.Random
) -> tuple[Pieces, Pieces]:
    """Cut pieces off the longer segment, at either end by chance, until both fit into `room`."""
    bounds = [[0, len(first)], [0, len(second)]]
    for _ in range(len(first) + len(second) - room):
        longer = max(bounds, key=lambda x: x[1] - x[0])
        if draw.random() < 0.5:
            longer[0] += 1
        else:
            longer[1] -= 1
    return first[slice(*bounds[0])], second[slice(*bounds[1])]


def make_draft(
    chunk: Sequence[Pieces], document: int, number: int, text: PlainText, draw: random.Random
) -> UnmaskedExample:
    """An example of consecutive sentences: two segments, swapped half of the time; of one, one."""
    if len(chunk) == 1:
        first = chunk[0][: text.max_seq_length - 2]
        return UnmaskedExample(document, number, first, array("i"), False)
    cut = draw.randint(1, len(chunk) - 1)
    first, second = (sum(part, array("i")) for part in (chunk[:cut], chunk[cut:]))
    first, second = truncate_pair(first, second, text.max_seq_length - 3, draw)
    if draw.random() < 0.5:
        return UnmaskedExample(document, number, second, first, True)
    return UnmaskedExample(document, number, first, second, False)


def drafts_of(
    document: int, sentences: Iterable[Pieces], text: PlainText, draw: random.Random
) -> Iterator[UnmaskedExample]:
    """Yield the examples of a document: sentences are collected until they fill one."""
    room = text.max_seq_length - 3

    def target() -> int:
        return draw.randint(2, room) if draw.random() < text.short_seq_prob else room

    chunk, size, wanted, numbers = [], 0, target(), count()
    for sentence in sentences:
        chunk.append(sentence)
        size += len(sentence)
        if size >= wanted:
            yield make_draft(chunk, document, next(numbers), text, draw)
            chunk, size, wanted = [], 0, target()
    if chunk:
        yield make_draft(chunk, document, next(numbers), text, draw)
