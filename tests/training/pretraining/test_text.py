"""Text to sentences, and sentences to segments: counts worked out by hand, and proportions."""

import random
from collections import Counter

import numpy as np
from scipy.stats import chisquare

from training.pretraining.text import SENTENCE_END, cut_examples, cut_segments, read_sentences


def test_documents_end_at_blank_lines_headings_and_files(tmp_path):
    one, two = tmp_path / "one.txt", tmp_path / "two.txt"
    one.write_text("\n \nA first.\nIts second.\n\n = A title = \nAnother.\n = = Below = = \nMore.")
    two.write_text("In a second file.\n")
    numbers, sentences = zip(*read_sentences([one, two], split=False), strict=True)
    assert numbers == (0, 0, 1, 2, 3)
    assert sentences == ("A first.", "Its second.", "Another.", "More.", "In a second file.")


def test_paragraphs_are_split_where_a_sentence_ends():
    paragraph = (
        'It is a crab . H. gammarus , by J. Smith , is 3 @.@ 5 cm . " Is it ? " 4 are ! (Two are.) '
        "The U.S. has e.g. none."
    )
    assert SENTENCE_END.split(paragraph) == [
        "It is a crab .",
        "H. gammarus , by J. Smith , is 3 @.@ 5 cm .",
        '" Is it ?',
        '" 4 are !',
        "(Two are.) The U.S. has e.g. none.",
    ]


def test_examples_are_consecutive_sentences_of_one_document_and_a_share_is_short():
    ends = np.arange(0, 40_001, 8)
    sentences = np.stack([ends, np.append(-1, np.arange(5000) // 1000)], axis=1)
    examples = cut_examples(sentences, max_seq_length=103, short_seq_prob=0.3, rng=random.Random(0))
    assert [0, *examples[:-1, 1]] == examples[:, 0].tolist()
    assert {1000, 2000, 3000, 4000, 5000} <= set(examples[:, 1].tolist())
    short = (examples[:, 1] - examples[:, 0] < 13).sum() - 5  # each document's last is cut short
    # A short length is drawn from 2 to 100; above 96 thirteen sentences are needed, too.
    expected = 0.3 * 95 / 99 * len(examples)
    assert chisquare([short, len(examples) - short], [expected, len(examples) - expected])[1] > 1e-3


def test_segments_are_cut_between_sentences_and_then_at_the_longer_ones_ends():
    pieces, cuts = np.arange(100), Counter()
    for seed in range(300):
        draw = random.Random(seed)
        first, second = map(list, cut_segments(pieces, [0, 30, 36], 20, draw))
        assert second == list(range(30, 36))
        assert first == list(range(first[0], first[0] + 14))
        first, second = map(list, cut_segments(pieces, [4, 8, 12, 16], 20, draw))
        assert first + second == list(range(4, 16))
        cuts[len(first)] += 1
    assert chisquare([cuts[4], cuts[8]], [150, 150]).pvalue > 1e-3
    (single,) = cut_segments(pieces, [5, 40], 20, random.Random(0))
    assert single.tolist() == list(range(5, 26))
