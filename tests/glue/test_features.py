"""Tokenising once: the cache, truncation, batches."""

import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import glue.features as features
from glue.features import Features, collate, encode, epoch_batches, sorted_batches
from glue.tasks import Example
from modeling import load_tokenizer
from tests.conftest import sentence


@pytest.fixture
def tokenizer(albert_dir):
    return load_tokenizer(albert_dir)


def pairs(count: int = 4) -> list[Example]:
    return [Example(str(i), sentence(i), sentence(i + 1, i + 1), i % 2) for i in range(count)]


def singles(*texts: str) -> list[Example]:
    return [Example(str(i), text, None, 0) for i, text in enumerate(texts)]


@pytest.fixture
def tokenised(monkeypatch):
    """How many times features were written to a cache: once for each tokenising."""
    calls, write = [], features.write_cache

    def counted(*arguments):
        calls.append(arguments)
        return write(*arguments)

    monkeypatch.setattr(features, "write_cache", counted)
    return calls


def test_pairs_are_laid_out_as_hf_does(tokenizer):
    example = pairs(1)[0]
    got = encode([example], tokenizer, 40)
    tokens = tokenizer.convert_ids_to_tokens(got.input_ids[0])
    a = tokenizer.tokenize(example.text_a)
    b = tokenizer.tokenize(example.text_b)
    assert tokens == ["[CLS]", *a, "[SEP]", *b, "[SEP]"]
    assert got.token_type_ids[0] == [0] * (len(a) + 2) + [1] * (len(b) + 1)
    assert got.labels == [0]


def test_a_second_run_reads_the_cache(tokenizer, albert_dir, tmp_path, tokenised):
    cache = tmp_path / "cached.safetensors"
    first = encode(pairs(), tokenizer, 40, cache)
    assert encode(pairs(), tokenizer, 40, cache) == first  # the same tokenizer object
    assert encode(pairs(), load_tokenizer(albert_dir), 40, cache) == first  # a later run
    assert len(tokenised) == 1
    assert encode(pairs(), tokenizer, 40) == first
    assert encode(pairs(), tokenizer, 40, cache, overwrite_cache=True) == first
    assert len(tokenised) == 2


def test_the_cache_is_refreshed_when_anything_changes(tokenizer, albert_dir, tmp_path, tokenised):
    cache = tmp_path / "cached.safetensors"
    changed = [pairs()[0]._replace(text_b="a cat"), *pairs()[1:]]
    cased = load_tokenizer(albert_dir, do_lower_case=False)
    variants = [
        (pairs(), tokenizer, 40),
        (changed, tokenizer, 40),
        (pairs(), tokenizer, 9),
        (pairs(), cased, 9),
        (pairs(3), cased, 9),
        ([p._replace(text_b=None) for p in pairs(3)], cased, 9),
        ([p._replace(text_b="None") for p in pairs(3)], cased, 9),
    ]
    for i, (examples, used, length) in enumerate(variants, start=1):
        assert encode(examples, used, length, cache) == encode(examples, used, length)
        assert len(tokenised) == i


def test_labels_do_not_come_from_the_cache(tokenizer, tmp_path):
    cache = tmp_path / "cached.safetensors"
    encode(pairs(), tokenizer, 40, cache)
    relabelled = [example._replace(label=1) for example in pairs()]
    assert encode(relabelled, tokenizer, 40, cache).labels == [1] * 4


@pytest.mark.parametrize("content", [b"", b"garbage", b"\xff" * 100])
def test_a_damaged_cache_is_made_anew(tokenizer, tmp_path, content):
    cache = tmp_path / "cached.safetensors"
    cache.write_bytes(content)
    assert encode(pairs(), tokenizer, 40, cache) == encode(pairs(), tokenizer, 40)
    assert cache.read_bytes() != content


def test_a_directory_that_cannot_be_written_goes_without(tokenizer, tmp_path):
    (tmp_path / "file").write_text("")
    expected = encode(pairs(), tokenizer, 40)
    assert encode(pairs(), tokenizer, 40, tmp_path / "gone/cached.safetensors") == expected
    assert encode(pairs(), tokenizer, 40, tmp_path / "file/cached.safetensors") == expected
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("length", [3, 4, 7, 12])
def test_long_texts_are_truncated(tokenizer, length):
    long = Example("0", sentence(1, 60), sentence(2, 60), 0)
    for examples in ([long], [long._replace(text_b=None)]):
        got = encode(examples, tokenizer, length)
        assert got.lengths == [length]
        assert got.input_ids[0][0] == tokenizer.cls_token_id
        assert got.input_ids[0][-1] == tokenizer.sep_token_id


def test_empty_texts_are_only_special_tokens(tokenizer):
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    assert encode(singles("", "a"), tokenizer, 8).input_ids[0] == [cls, sep]
    both = [Example("0", "", "", 0), Example("1", "a", "", 0)]
    assert encode(both, tokenizer, 8).input_ids[0] == [cls, sep, sep]


def test_batches_are_padded_to_their_longest():
    data = Features([[2, 9, 3], [2, 3], [2, 8, 7, 3]], [[0, 0, 1], [0, 0], [0, 1, 1, 1]], [1, 0, 1])
    batch = collate(data, [1, 0], pad_token_id=5)
    assert batch["input_ids"].tolist() == [[2, 3, 5], [2, 9, 3]]
    assert batch["token_type_ids"].tolist() == [[0, 0, 0], [0, 0, 1]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert batch["labels"].tolist() == [0, 1]
    assert "attention_mask" not in collate(data, [2], pad_token_id=5)
    unlabelled = data._replace(labels=[None] * 3)
    assert "labels" not in collate(unlabelled, [0, 1], pad_token_id=5)
    scores = data._replace(labels=[1, 2.5, 0])
    assert torch.equal(collate(scores, [0, 1], 5)["labels"], torch.tensor([1.0, 2.5]))


sizes = st.lists(st.integers(2, 128), min_size=1, max_size=200)


@given(lengths=sizes, size=st.integers(1, 40), seed=st.integers(0, 2**31), epoch=st.integers(0, 99))
def test_an_epoch_is_a_permutation_fixed_by_seed_and_epoch(lengths, size, seed, epoch):
    torch.manual_seed(epoch)  # the global generator has no part in it
    batches = epoch_batches(lengths, size, seed, epoch)
    torch.manual_seed(epoch + 1)
    assert batches == epoch_batches(lengths, size, seed, epoch)
    assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
    assert all(1 <= len(batch) <= size for batch in batches)
    assert len(batches) == -(-len(lengths) // size)


def test_epochs_and_seeds_differ():
    lengths = list(range(2, 102))
    orders = [epoch_batches(lengths, 4, seed, epoch) for seed in (1, 2) for epoch in (0, 1)]
    assert all(a != b for i, a in enumerate(orders) for b in orders[:i])


def test_batches_hold_neighbours_in_length():
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(5, 128, (2000,), generator=generator).tolist()
    padded = sum(
        len(batch) * max(lengths[i] for i in batch) for batch in epoch_batches(lengths, 16, 1, 0)
    )
    assert padded < 1.1 * sum(lengths)


@given(lengths=sizes, size=st.integers(1, 40))
def test_sorted_batches_cover_every_row_once(lengths, size):
    batches = list(sorted_batches(lengths, size))
    flat = [row for batch in batches for row in batch]
    assert sorted(flat) == list(range(len(lengths)))
    assert [lengths[i] for i in flat] == sorted(lengths, reverse=True)
