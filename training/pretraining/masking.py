"""Examples for MLM and SOP: special pieces are put in, and n-grams of whole words are masked.

Source: ALBERT (Lan et al. 2020) and its published `create_pretraining_data.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain, pairwise
from random import Random

import numpy as np
from transformers import PreTrainedTokenizerBase

from modeling.loading.tokenizers import WORD_START
from training.pretraining.settings import TextSettings
from training.pretraining.text import Pieces

WORD_PART = "##"  # WordPiece's (BERT's) mark of a piece that begins no word
NO_LABEL = -100  # which cross-entropy ignores


class TokenClass(IntEnum):
    """What was done to a token: the rows of the published table, and padding."""

    PADDING = 0
    UNMASKED = 1
    # Chosen for prediction, and replaced by [MASK], by a random piece, or left as it was:
    MASK_MASK = 2
    MASK_RANDOM = 3
    MASK_ORIGINAL = 4
    CLS = 5
    SEP = 6


@dataclass
class PretrainingExample:
    """One or two segments as a model reads them, with what it has to predict; arrays (length,)."""

    input_ids: np.ndarray
    token_type_ids: np.ndarray  # 0 in the first segment, 1 in the second
    labels: np.ndarray  # the piece that was there at a place to predict, elsewhere NO_LABEL
    token_classes: np.ndarray  # the TokenClass of each place
    sentence_order_label: int = NO_LABEL  # 0: the segments are in order, 1: swapped


class Vocabulary:
    """A tokenizer's pieces, as masking sees them."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.pad = tokenizer.pad_token_id
        self.cls = tokenizer.cls_token_id
        self.sep = tokenizer.sep_token_id
        self.mask = tokenizer.mask_token_id
        pieces = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
        # bool (pieces,); in `ordinary`, the ids of the others.
        # Other pieces that a tokenizer keeps whole, such as user-defined ones, are ordinary.
        special = [self.pad, self.cls, self.sep, self.mask, tokenizer.unk_token_id]
        self.special = np.isin(np.arange(len(pieces)), special)
        self.ordinary = np.flatnonzero(~self.special).tolist()
        # bool (pieces,). SentencePiece marks what begins a word, WordPiece what goes on with one.
        self.starts_word = np.array([piece.startswith(WORD_START) for piece in pieces])
        if not self.starts_word.any():
            self.starts_word = np.array([not piece.startswith(WORD_PART) for piece in pieces])

    def words(self, ids: np.ndarray) -> list[range]:
        """List the positions of every whole word; special pieces are in none."""
        is_special = self.special[ids]
        follows_special = np.append(True, is_special[:-1])
        is_start = ~is_special & (self.starts_word[ids] | follows_special)
        cuts = [*np.flatnonzero(is_start | is_special).tolist(), len(ids)]
        return [range(start, end) for start, end in pairwise(cuts) if is_start[start]]

    def unmasked(self, segments: Sequence[Pieces]) -> PretrainingExample:
        """Make an example, with [CLS] and [SEP], of which nothing is to be predicted."""
        ids = [self.cls]
        for segment in segments:
            ids.extend([*segment, self.sep])
        lengths = [len(segment) + 1 for segment in segments]  # each with its [SEP]
        token_classes = np.full(len(ids), TokenClass.UNMASKED)
        token_classes[np.cumsum(lengths)] = TokenClass.SEP
        token_classes[0] = TokenClass.CLS
        return PretrainingExample(
            input_ids=np.array(ids),
            token_type_ids=np.append(0, np.repeat(range(len(segments)), lengths)),
            labels=np.full(len(ids), NO_LABEL),
            token_classes=token_classes,
        )


def mask(
    example: PretrainingExample, vocabulary: Vocabulary, text: TextSettings, rng: Random
) -> None:
    """Choose pieces for prediction, in place: 80% become [MASK], 10% a random piece, 10% stay."""
    ids = example.input_ids
    words = vocabulary.words(ids)
    segments = []
    for number in (0, 1):
        segments.append([x for x in words if example.token_type_ids[x.start] == number])
    predictions = max(1, round(len(ids) * text.masked_lm_prob))
    budget = min(text.max_predictions_per_seq, predictions)
    chosen = choose_positions(segments, budget, text.ngram, rng)
    example.labels[chosen] = ids[chosen]
    classes = example.token_classes
    kinds = (TokenClass.MASK_MASK, TokenClass.MASK_RANDOM, TokenClass.MASK_ORIGINAL)
    classes[chosen] = rng.choices(kinds, (0.8, 0.1, 0.1), k=len(chosen))
    ids[classes == TokenClass.MASK_MASK] = vocabulary.mask
    is_random = classes == TokenClass.MASK_RANDOM
    ids[is_random] = rng.choices(vocabulary.ordinary, k=is_random.sum())


def choose_positions(
    segments: Sequence[Sequence[range]], budget: int, max_ngram: int, rng: Random
) -> list[int]:
    """Choose the positions of at most `budget` pieces, in n-grams of whole words.

    Args:
        segments: the positions of every word, by segment; no n-gram spans two segments.
        max_ngram: words of an n-gram at most.
    """
    starts = []
    for words in segments:
        starts.extend((words, first) for first in range(len(words)))
    rng.shuffle(starts)
    chosen: dict[int, None] = {}  # a set that keeps its order
    for words, first in starts:
        if len(chosen) == budget:
            break
        n = ngram_length(min(max_ngram, len(words) - first), rng)
        # Shorten it to what the budget allows.
        while n and words[first + n - 1].stop - words[first].start > budget - len(chosen):
            n -= 1
        positions = list(chain.from_iterable(words[first : first + n]))
        if not any(position in chosen for position in positions):
            chosen.update(dict.fromkeys(positions))
    return list(chosen)


def ngram_length(longest: int, rng: Random) -> int:
    """Draw n from 1 to `longest` with p(n) = (1/n) / Σₖ (1/k)."""
    lengths = range(1, longest + 1)
    return rng.choices(lengths, [1 / n for n in lengths])[0]
