"""Text: documents, sentences, and the segments that examples are made of."""

import random
from array import array
from collections import Counter

from scipy.stats import chisquare

from training.pretraining_data import SENTENCE_END, drafts_of, read_sentences, truncate_pair
from training.pretraining_settings import TextSettings


def test_documents_end_at_blank_lines_headings_and_files(tmp_path):
    one, two = tmp_path / "one.txt", tmp_path / "two.txt"
    one.write_text(
        "\n \nA first.\nIts second.\n\n\n = A title = \nAnother.\n = = Below = = \nMore."
    )
    two.write_text("In a second file.\n")
    assert list(read_sentences([one, two], split=False)) == [
        (0, "A first."),
        (0, "Its second."),
        (1, "Another."),
        (2, "More."),
        (3, "In a second file."),
    ]


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


def numbered(*lengths: int) -> list[array]:
    """Sentences of such lengths whose pieces are counted through from 0."""
    total = iter(range(sum(lengths)))
    return [array("i", [next(total) for _ in range(length)]) for length in lengths]


def test_segments_are_consecutive_sentences_and_swapped_half_of_the_time():
    recipe, swapped = TextSettings(max_seq_length=23, short_seq_prob=0), Counter()
    for seed in range(400):
        drafts = list(drafts_of(7, numbered(8, 8, 8, 8, 8), recipe, random.Random(seed)))
        assert [(d.document, d.number, d.length) for d in drafts] == [(7, 0, 23), (7, 1, 19)]
        for draft, start, end in zip(drafts, (0, 24), (24, 40), strict=True):
            parts = [list(draft.first), list(draft.second)][:: -1 if draft.swapped else 1]
            assert all(part == list(range(part[0], part[-1] + 1)) for part in parts)
            assert start <= parts[0][0] <= parts[0][-1] < parts[1][0] <= parts[1][-1] < end
            boundary = parts[1][0] if draft.number else None
            assert boundary in (None, 32)  # of two sentences there is one cut
            swapped[draft.swapped] += 1
    assert chisquare([swapped[True], swapped[False]]).pvalue > 1e-3


def test_a_share_of_the_examples_is_short():
    recipe = TextSettings(max_seq_length=103, short_seq_prob=0.3)
    drafts = list(drafts_of(0, numbered(*[1] * 40_000), recipe, random.Random(0)))
    short = sum(draft.length < 103 for draft in drafts[:-1])
    # A short length is drawn from 2 to 100, and only the last of these is a whole one.
    expected = 0.3 * 98 / 99 * len(drafts)
    assert chisquare([short, len(drafts) - short], [expected, len(drafts) - expected]).pvalue > 1e-3


def test_truncation_takes_from_the_longer_segment_and_keeps_a_run():
    for seed in range(50):
        first, second = truncate_pair(*numbered(30, 6), room=20, draw=random.Random(seed))
        assert list(second) == list(range(30, 36))
        assert list(first) == list(range(first[0], first[0] + 14))
    first, second = truncate_pair(*numbered(30, 12), room=20, draw=random.Random(0))
    assert (len(first), len(second)) == (10, 10)
