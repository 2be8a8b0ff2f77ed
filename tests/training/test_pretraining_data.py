"""Text to MLM and SOP batches: counts worked out by hand, proportions, and exact repetition."""

import os
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from elbert import UserError, load_tokenizer
from runs.settings import RunSettings
from tests.conftest import sentence
from training.pretraining import data as pretraining_data
from training.pretraining.data import PretrainingData, TokenClass, Vocabulary
from training.pretraining.settings import TextSettings

CLS, SEP, MASK, UNK = 2, 3, 4, 1


@pytest.fixture(scope="module")
def vocabulary(spiece) -> Vocabulary:
    return Vocabulary(load_tokenizer(spiece.parent))


@pytest.fixture
def text(tmp_path) -> Path:
    """60 documents of 1 to 5 sentences."""
    path = tmp_path / "text.txt"
    documents = [[sentence(7 * i + j, 4 + j) for j in range(i % 5 + 1)] for i in range(60)]
    path.write_text("\n\n".join("\n".join(lines) for lines in documents), encoding="utf-8")
    return path


@pytest.fixture
def data_of(tmp_path, spiece):
    def make(path: Path, **more) -> PretrainingData:
        settings = TextSettings(**{"train_files": [path], "max_seq_length": 24, **more})
        run = RunSettings(output_dir=tmp_path, seed=1)
        return PretrainingData(settings, run, load_tokenizer(spiece.parent), batch_size=4)

    return make


# The text, and its tokenizer.


def test_documents_end_at_blank_lines_headings_and_files(tmp_path):
    one, two = tmp_path / "one.txt", tmp_path / "two.txt"
    one.write_text("\n \nA first.\nIts second.\n\n = A title = \nAnother.\n = = Below = = \nMore.")
    two.write_text("In a second file.\n")
    numbers, sentences = zip(*pretraining_data.read_sentences([one, two], split=False), strict=True)
    assert numbers == (0, 0, 1, 2, 3)
    assert sentences == ("A first.", "Its second.", "Another.", "More.", "In a second file.")


def test_paragraphs_are_split_where_a_sentence_ends():
    paragraph = (
        'It is a crab . H. gammarus , by J. Smith , is 3 @.@ 5 cm . " Is it ? " 4 are ! (Two are.) '
        "The U.S. has e.g. none."
    )
    assert pretraining_data.SENTENCE_END.split(paragraph) == [
        "It is a crab .",
        "H. gammarus , by J. Smith , is 3 @.@ 5 cm .",
        '" Is it ?',
        '" 4 are !',
        "(Two are.) The U.S. has e.g. none.",
    ]


def test_a_trained_tokenizer_has_alberts_special_pieces(text, tmp_path):
    folder = tmp_path / "tokenizer"
    pretraining_data.train_tokenizer([text], False, 40, True, folder)
    assert [path.name for path in folder.iterdir()] == ["spiece.model"]
    tokenizer = load_tokenizer(folder)
    pieces = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    assert pieces[:5] == ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    assert len(pieces) == 40
    assert UNK not in tokenizer("A dog RUNS", "in the park")["input_ids"]
    with pytest.raises(UserError, match=r"5000 pieces from this text: .*<= \d+"):
        pretraining_data.train_tokenizer([text], False, 5000, True, folder)


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


# Segments.


def test_examples_are_consecutive_sentences_of_one_document_and_a_share_is_short():
    ends = np.arange(0, 40_001, 8)
    sentences = np.stack([ends, np.append(-1, np.arange(5000) // 1000)], axis=1)
    recipe = TextSettings(max_seq_length=103, short_seq_prob=0.3)
    examples = pretraining_data.cut_examples(sentences, recipe, random.Random(0))
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
        first, second = map(list, pretraining_data.cut_segments(pieces, [0, 30, 36], 20, draw))
        assert second == list(range(30, 36))
        assert first == list(range(first[0], first[0] + 14))
        first, second = map(list, pretraining_data.cut_segments(pieces, [4, 8, 12, 16], 20, draw))
        assert first + second == list(range(4, 16))
        cuts[len(first)] += 1
    assert chisquare([cuts[4], cuts[8]], [150, 150]).pvalue > 1e-3
    (single,) = pretraining_data.cut_segments(pieces, [5, 40], 20, random.Random(0))
    assert single.tolist() == list(range(5, 26))


# Masks.


def test_ngram_lengths_are_drawn_by_one_over_n():
    draw = random.Random(0)
    drawn = Counter(pretraining_data.ngram_length(3, draw) for _ in range(11_000))
    assert chisquare([drawn[n] for n in (1, 2, 3)], [6000, 3000, 2000]).pvalue > 1e-3


def test_whole_words_are_chosen_and_no_ngram_spans_two_segments():
    segments = [[range(1, 3), range(3, 4)], [range(5, 9)], [range(10, 11), range(11, 13)]]
    words = {tuple(word) for words in segments for word in words}
    for seed in range(300):
        draw = random.Random(seed)
        chosen = set(pretraining_data.choose_positions(segments, 5, 3, draw))
        assert len(chosen) <= 5
        assert chosen == {x for word in words if set(word) <= chosen for x in word}
        single = set(pretraining_data.choose_positions(segments[:2], 1, 3, draw))
        assert single == {3}  # the only word of one piece


def test_of_the_chosen_pieces_eighty_percent_are_masked_ten_random_ten_kept(vocabulary):
    kinds, randoms = Counter(), Counter()
    word = vocabulary.starts_word.tolist().index(True)
    for number in range(500):
        example = vocabulary.unmasked([np.full(126, word)])
        pretraining_data.mask(example, vocabulary, TextSettings(), random.Random(number))
        ids, _, labels, classes = (values.tolist() for values in example.values())
        for piece, label, kind in zip(ids, labels, classes, strict=True):
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


# Batches.


def test_special_pieces_are_never_chosen_nor_put_in_and_pairs_are_swapped_half_of_the_time(
    text, data_of, vocabulary
):
    lines = [f"{x} <unk> [MASK] {x} [SEP]" if x else "" for x in text.read_text().splitlines()]
    text.write_text("\n".join(lines), encoding="utf-8")
    found, swapped = Counter(), Counter()
    for inputs in data_of(text, masked_lm_prob=0.5).evaluation_batches((0, 1)):
        chosen = inputs["labels"] != -100
        assert not vocabulary.special[inputs["labels"][chosen]].any()
        put_in = inputs["token_classes"] == TokenClass.MASK_RANDOM
        assert not vocabulary.special[inputs["input_ids"][put_in]].any()
        found.update(inputs["input_ids"][inputs["token_classes"] == TokenClass.UNMASKED].tolist())
        swapped.update(inputs["sentence_order_label"].tolist())
    assert {UNK, MASK, SEP} <= set(found)  # those of the text itself were there
    assert swapped[-100] > 0
    assert chisquare([swapped[0], swapped[1]]).pvalue > 1e-3


@pytest.mark.parametrize("workers", [0, 1])
def test_an_epoch_has_every_example_once_and_goes_on_from_any_batch(workers, text, data_of):
    data = data_of(text, dataloader_num_workers=workers)
    taken = [number for batch in data.batches(0) for number in batch]
    assert len(set(taken)) == len(taken) == len(data.examples) // 4 * 4
    whole, rest = list(data.training_batches(0, 0)), list(data.training_batches(0, 3))
    for one, other in zip(whole[3:], rest, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert not torch.equal(whole[0]["labels"], next(iter(data.training_batches(1, 0)))["labels"])


@pytest.mark.parametrize("processes", [2, 3, 4])
def test_the_parts_of_all_processes_are_the_batches_of_one(processes, text, data_of):
    data = data_of(text, dataloader_num_workers=0)
    parts = [data.training_batches(0, 0, (rank, processes)) for rank in range(processes)]
    for batch, *shards in zip(data.training_batches(0, 0), *parts, strict=True):
        for rank, shard in enumerate(shards):
            width = shard["labels"].shape[1]
            assert torch.equal(shard["labels"], batch["labels"][rank::processes, :width])


def test_a_text_is_tokenised_once_and_again_where_it_changed(text, data_of, tmp_path):
    cache = tmp_path / "cache"
    first = data_of(text, text_cache=str(cache))
    os.utime(next(cache.glob("*/pieces")), (1, 1))
    longer = data_of(text, text_cache=str(cache), max_seq_length=32)
    assert [path.stat().st_mtime for path in cache.glob("*/pieces")] == [1]
    assert np.array_equal(first.pieces, longer.pieces)
    (folder,) = {path.parent for path in cache.glob("*/pieces")}
    (folder / "sentences").unlink()  # as if killed between the two
    (folder / f".{folder.name}.{10**8}.partial").mkdir()
    assert np.array_equal(data_of(text, text_cache=str(cache)).sentences, first.sentences)
    assert {path.name for path in folder.iterdir()} == {"pieces", "sentences"}
    text.write_text(text.read_text().replace("a", "b", 1))
    assert data_of(text, text_cache=str(cache)).fingerprint != first.fingerprint
    assert len(list(cache.glob("*/pieces"))) == 2
