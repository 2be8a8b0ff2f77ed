"""Text to MLM and SOP batches: counts worked out by hand, proportions, and exact repetition."""

import random
import tracemalloc
from array import array
from collections import Counter
from pathlib import Path

import pytest
from scipy.stats import chisquare

from modeling import UserError, load_tokenizer
from tests.conftest import sentence
from training.pretraining_data import (
    Draft,
    PretrainingData,
    TokenClass,
    Vocabulary,
    choose_positions,
    mask,
    ngram_length,
    train_tokenizer,
)
from training.pretraining_settings import TextSettings

CLS, SEP, MASK, UNK = 2, 3, 4, 1


@pytest.fixture(scope="session")
def tokenizer(spiece):
    return load_tokenizer(spiece.parent)


@pytest.fixture(scope="session")
def vocabulary(tokenizer) -> Vocabulary:
    return Vocabulary(tokenizer)


@pytest.fixture(scope="session")
def text(tmp_path_factory) -> Path:
    """60 documents of 1 to 5 sentences."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    documents = [[sentence(7 * i + j, 4 + j) for j in range(i % 5 + 1)] for i in range(60)]
    path.write_text("\n\n".join("\n".join(lines) for lines in documents), encoding="utf-8")
    return path


def data_of(path, tokenizer, batch_size: int = 4, **more) -> PretrainingData:
    settings = {"train_files": [path], "max_seq_length": 24, "shuffle_buffer": 16, **more}
    return PretrainingData(TextSettings(**settings), tokenizer, 1, batch_size)


# The tokenizer.


def test_a_trained_tokenizer_has_alberts_special_pieces(text, tmp_path):
    train_tokenizer([text], False, 40, True, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["spiece.model"]
    tokenizer = load_tokenizer(tmp_path)
    pieces = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    assert pieces[:5] == ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    assert len(pieces) == 40
    encoded = tokenizer("A dog RUNS", "in the park")["input_ids"]
    assert (encoded[0], encoded.count(CLS), encoded[-1], encoded.count(SEP)) == (CLS, 1, SEP, 2)
    assert UNK not in encoded


def test_a_tokenizer_of_more_pieces_than_the_text_has_is_an_error(tmp_path, text):
    with pytest.raises(UserError, match=r"5000 pieces from this text: .*<= \d+"):
        train_tokenizer([text], False, 5000, True, tmp_path)


def test_words_begin_at_a_mark_or_without_one_and_hold_no_special_piece(tmp_path, vocabulary):
    """As SentencePiece marks beginnings, and as a BERT's WordPiece marks what goes on."""
    start = vocabulary.starts_word.index(True)
    inner = next(i for i in vocabulary.ordinary if not vocabulary.starts_word[i])
    pieces = array("i", [inner, inner, start, inner, UNK, inner, start, start, MASK])
    expected = [range(3, 5), range(5, 7), range(8, 9), range(9, 10), range(10, 11)]
    assert vocabulary.words(pieces, 3) == expected
    words = "[PAD] [UNK] [CLS] [SEP] [MASK] a dog ##s".split()
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    tokenizer = load_tokenizer(tmp_path)
    pieces = tokenizer("a dogs a dog", add_special_tokens=False)["input_ids"]
    assert Vocabulary(tokenizer).words(pieces, 1) == [
        *(range(1, 2), range(2, 4), range(4, 5), range(5, 6))
    ]


# Masks.


def one_word_pieces(vocabulary: Vocabulary, length: int, number: int = 0) -> Draft:
    """A segment of words of one piece each."""
    word = vocabulary.starts_word.index(True)
    return Draft(0, number, array("i", [word] * length), array("i"), False)


def test_ngram_lengths_are_drawn_by_one_over_n():
    draw = random.Random(0)
    drawn = Counter(ngram_length(3, draw) for _ in range(11_000))
    assert chisquare([drawn[n] for n in (1, 2, 3)], [6000, 3000, 2000]).pvalue > 1e-3
    drawn = Counter(ngram_length(2, draw) for _ in range(9_000))
    assert chisquare([drawn[n] for n in (1, 2)], [6000, 3000]).pvalue > 1e-3


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
    word = vocabulary.starts_word.index(True)
    for number in range(500):
        draft, draw = one_word_pieces(vocabulary, 126, number), random.Random(number)
        example = mask(draft, vocabulary, TextSettings(), draw)
        for piece, label, kind in zip(
            example["input_ids"], example["labels"], example["token_classes"], strict=True
        ):
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
    assert not set(randoms) & vocabulary.special


def test_special_pieces_are_never_chosen_nor_put_in(text, tokenizer, vocabulary):
    with_specials = text.with_name("special.txt")
    lines = [
        f"{line} <unk> [MASK] {line} [SEP]" if line else ""
        for line in text.read_text().splitlines()
    ]
    with_specials.write_text("\n".join(lines), encoding="utf-8")
    data, found = data_of(with_specials, tokenizer, masked_lm_prob=0.5), Counter()
    for inputs in data.evaluation_batches((0, 1)):
        chosen = inputs["labels"] != -100
        assert not set(inputs["labels"][chosen].tolist()) & vocabulary.special
        put_in = inputs["token_classes"] == TokenClass.MASK_RANDOM
        assert not set(inputs["input_ids"][put_in].tolist()) & vocabulary.special
        unmasked = inputs["input_ids"][inputs["token_classes"] == TokenClass.UNMASKED].tolist()
        found += Counter(set(unmasked) & vocabulary.special)
    assert {UNK, MASK, SEP} <= set(found)  # those of the text itself were there


# Batches.


def test_every_example_of_an_epoch_comes_once_but_the_last_incomplete_batch(text, tokenizer):
    data = data_of(text, tokenizer)
    drafts = list(data.drafts(0))
    batches = list(data.training_drafts(0))
    taken = [(d.document, d.number) for batch in batches for d in batch]
    assert {len(batch) for batch in batches} == {4}
    assert len(taken) == len(set(taken)) == len(drafts) // 4 * 4
    assert set(taken) <= {(d.document, d.number) for d in drafts}
    assert taken != sorted(taken)


def peak_memory(path: Path, tokenizer) -> int:
    """Bytes of Python objects at the most, while a text passes through."""
    data = data_of(path, tokenizer, shuffle_buffer=200)
    tracemalloc.start()
    try:
        for _ in data.training_batches(0, 0):
            pass
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_memory_does_not_grow_with_the_text(tmp_path, text, tokenizer):
    sizes = {}
    for times in (16, 64):
        path = tmp_path / f"{times}.txt"
        path.write_text("\n\n".join([text.read_text()] * times))
        sizes[times] = peak_memory(path, tokenizer)
    assert sizes[64] < 1.1 * sizes[16]
