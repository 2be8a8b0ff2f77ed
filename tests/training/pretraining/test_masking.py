"""Masking: proportions, whole words, and n-grams."""

import random
from collections import Counter

import numpy as np
from scipy.stats import chisquare

from elbert import load_tokenizer
from training.pretraining.masking import (
    TokenClass,
    Vocabulary,
    choose_positions,
    mask,
    ngram_length,
)
from training.pretraining.settings import TextSettings

CLS, SEP, MASK, UNK = 2, 3, 4, 1


def test_words_begin_at_a_mark_or_without_one_and_hold_no_special_piece(tmp_path, vocabulary):
    """As SentencePiece marks beginnings, and as a BERT's WordPiece marks what goes on."""
    start = vocabulary.starts_word.tolist().index(True)
    inner = next(i for i in vocabulary.ordinary if not vocabulary.starts_word[i])
    ids = np.array([CLS, inner, inner, start, inner, UNK, inner, start, start, MASK])
    expected = [range(1, 3), range(3, 5), range(6, 7), range(7, 8), range(8, 9)]
    assert vocabulary.words(ids) == expected
    (tmp_path / "vocab.txt").write_text("\n".join("[PAD] [UNK] [CLS] [SEP] [MASK] a ##s".split()))
    assert Vocabulary(load_tokenizer(tmp_path)).words(np.array([2, 5, 5, 6, 5, 3])) == [
        *(range(1, 2), range(2, 4), range(4, 5))
    ]


def test_all_pieces_but_the_five_special_ones_are_masked(spiece):
    """Also those that a tokenizer keeps whole, as user-defined pieces of older folders."""
    tokenizer = load_tokenizer(spiece.parent)
    pieces = tokenizer.convert_ids_to_tokens([9, 12])
    tokenizer.add_tokens(pieces[:1])
    tokenizer.add_special_tokens({"additional_special_tokens": pieces[1:]})
    assert set(pieces) & set(tokenizer.all_special_tokens)
    assert np.flatnonzero(Vocabulary(tokenizer).special).tolist() == [0, UNK, CLS, SEP, MASK]


def test_ngram_lengths_are_drawn_by_one_over_n():
    draw = random.Random(0)
    drawn = Counter(ngram_length(3, draw) for _ in range(11_000))
    assert chisquare([drawn[n] for n in (1, 2, 3)], [6000, 3000, 2000]).pvalue > 1e-3


def test_whole_words_are_chosen_and_no_ngram_spans_two_segments():
    segments = [[range(1, 3), range(3, 4)], [range(5, 9)], [range(10, 11), range(11, 13)]]
    words = {tuple(word) for words in segments for word in words}
    for seed in range(300):
        draw = random.Random(seed)
        chosen = set(choose_positions(segments, 5, 3, draw))
        assert len(chosen) <= 5
        assert chosen == {x for word in words if set(word) <= chosen for x in word}
        single = set(choose_positions(segments[:2], 1, 3, draw))
        assert single == {3}  # the only word of one piece


def test_of_the_chosen_pieces_eighty_percent_are_masked_ten_random_ten_kept(vocabulary):
    kinds, randoms = Counter(), Counter()
    word = vocabulary.starts_word.tolist().index(True)
    for number in range(500):
        example = vocabulary.unmasked([np.full(126, word)])
        mask(example, vocabulary, TextSettings(), random.Random(number))
        rows = (example.input_ids, example.labels, example.token_classes)
        for piece, label, kind in zip(*(row.tolist() for row in rows), strict=True):
            kinds[kind] += 1
            assert (label == word) == (kind in (2, 3, 4))
            if kind == TokenClass.MASK_RANDOM:
                randoms[piece] += 1
            else:
                assert piece == {1: word, 2: MASK, 4: word, 5: CLS, 6: SEP}[kind]
    predicted = 500 * 19  # of 128 pieces
    observed = [kinds[kind] for kind in (2, 3, 4)]
    assert chisquare(observed, [0.8 * predicted, 0.1 * predicted, 0.1 * predicted]).pvalue > 1e-3
    assert (kinds[TokenClass.CLS], kinds[TokenClass.SEP]) == (500, 500)
    assert chisquare([randoms[i] for i in vocabulary.ordinary]).pvalue > 1e-3
    assert not vocabulary.special[list(randoms)].any()
