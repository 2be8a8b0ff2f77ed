"""Plain text as examples of consecutive sentences.

A text file has one sentence per line; a blank line or a heading like " = Title = " ends a document.
The text is tokenised once, into files that are memory-mapped.

Source: ALBERT's published `create_pretraining_data.py` (Lan et al. 2020).
"""

import logging
import re
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from glue.tables import read_lines
from modeling.errors import UserError
from runs.files import locked
from training.model_folder import write_directory

logger = logging.getLogger(__name__)

Pieces = np.ndarray  # of piece ids

HEADING = re.compile(r"(= )+[^=].* =")
# White space after . ! or ? and before what may begin a sentence: a capital or a digit, perhaps
# behind an opening quote or bracket. The full stop of an initial ("J. Smith", "U.S.") ends none.
SENTENCE_END = re.compile(r"(?<=[.!?])(?<!\b[A-Z]\.)\s+(?=[\"'“‘(\[]?\s?[A-Z0-9])")
TOKENISED_TOGETHER = 1000  # sentences; the tokenizer is faster on many
TEXT = ".text"  # folder of the tokenised text in --output_dir


def read_sentences(paths: Sequence[str | Path], split: bool) -> Iterator[tuple[int, str]]:
    """Yield every sentence in order, with the number of its document, from 0.

    split: lines are paragraphs, to be cut into sentences. Raises UserError for files without text.
    """
    document = 0
    is_within_document = False
    has_text = False
    for path in paths:
        for _, line in read_lines(Path(path)):
            text = line.strip()
            if not text or HEADING.fullmatch(text):
                document += is_within_document
                is_within_document = False
                continue
            is_within_document = has_text = True
            for sentence in SENTENCE_END.split(text) if split else [text]:
                yield document, sentence
        # No document goes on in the next file.
        document += is_within_document
        is_within_document = False
    if not has_text:
        raise UserError(
            f"{', '.join(map(str, paths))}: no text; give files with one sentence per line, and "
            "blank lines between documents"
        )


class TokenisedText(NamedTuple):
    """A text in memory-mapped files.

    pieces: the ids of all pieces in a row, int32.
    sentences: (sentences + 1, 2) int64; of each, where it ends in `pieces`, and its document. The
        first row is (0, -1). Sentences without a piece are left out.
    """

    pieces: Pieces
    sentences: np.ndarray


def tokenised_text(
    paths: Sequence[str | Path], split: bool, tokenizer: PreTrainedTokenizerBase, folder: Path
) -> TokenisedText:
    """Open the tokenised text in `folder`; tokenise it there first, if it is not there yet.

    split: as `read_sentences`.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder):  # one process writes, the others wait
        if not ((folder / "pieces").exists() and (folder / "sentences").exists()):
            logger.info("Tokenising the text into %s", folder)
            write_directory(folder, partial(tokenise, paths, split, tokenizer))
    pieces = np.memmap(folder / "pieces", np.int32, "r")
    sentences = np.memmap(folder / "sentences", np.int64, "r")
    return TokenisedText(pieces, sentences.reshape(-1, 2))


def tokenise(
    paths: Sequence[str | Path], split: bool, tokenizer: PreTrainedTokenizerBase, folder: Path
) -> None:
    """Write the files `pieces` and `sentences` of a `TokenisedText` into `folder`."""
    sentences = read_sentences(paths, split)
    end = 0
    with (folder / "pieces").open("wb") as pieces, (folder / "sentences").open("wb") as ends:
        np.array([0, -1]).tofile(ends)
        while block := list(islice(sentences, TOKENISED_TOGETHER)):
            documents = [document for document, _ in block]
            texts = [text for _, text in block]
            ids = tokenizer(texts, add_special_tokens=False)["input_ids"]
            lengths = np.array([len(sentence) for sentence in ids])
            np.fromiter(chain.from_iterable(ids), np.int32).tofile(pieces)
            rows = np.stack([end + lengths.cumsum(), documents], axis=1)
            rows[lengths > 0].tofile(ends)
            end += int(lengths.sum())


def cut_examples(
    sentences: np.ndarray, max_seq_length: int, short_seq_prob: float, rng: Random
) -> np.ndarray:
    """Fill examples with consecutive sentences of a document.

    Args:
        sentences: those of a `TokenisedText`.
        max_seq_length: pieces of an example at most, with three special ones.
        short_seq_prob: share of examples that are filled to a random shorter length only.

    Returns (examples, 2): the row of the sentence before the first, and that of the last.
    """
    ends, documents = sentences.T
    room = max_seq_length - 3
    examples = array("q")
    start = 0
    document_ends = (np.flatnonzero(np.diff(documents[1:])) + 1).tolist()
    for document_end in [*document_ends, len(ends) - 1]:
        while start < document_end:
            is_short = rng.random() < short_seq_prob
            length = rng.randint(2, room) if is_short else room
            end = bisect_left(ends, ends[start] + length, start + 1)
            end = min(end, document_end)
            examples.extend((start, end))
            start = end
    return np.frombuffer(examples, np.int64).reshape(-1, 2)


def cut_segments(pieces: Pieces, ends: Sequence[int], room: int, rng: Random) -> list[Pieces]:
    """Cut an example between two sentences into two segments of together `room` pieces.

    An example of one sentence is one segment, of one piece more, for it has one [SEP] less. What
    is too long loses pieces of its longer segment, at either end by chance.

    ends: (sentences + 1,), where in `pieces` the first sentence starts, and where each ends.
    """
    if len(ends) == 2:
        return [pieces[ends[0] : ends[1]][: room + 1]]
    cut = ends[rng.randint(1, len(ends) - 2)]
    first, second = [ends[0], cut], [cut, ends[-1]]  # start and end of each segment
    for _ in range(ends[-1] - ends[0] - room):
        first_is_longer = first[1] - first[0] >= second[1] - second[0]
        longer = first if first_is_longer else second
        if rng.random() < 0.5:
            longer[0] += 1
        else:
            longer[1] -= 1
    return [pieces[start:end] for start, end in (first, second)]
