"""Token ids: tokenising, the flat arrays against lists, and batches."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.trainer_pt_utils import get_length_grouped_indices

from glue.features import CHUNK, Features, collate, encode, epoch_batches
from glue.tasks import Example
from tests.conftest import sentence


def pairs(count: int = 4) -> list[Example]:
    return [Example(str(i), sentence(i), sentence(i + 1, i + 1), i % 2) for i in range(count)]


def as_lists(data: Features) -> tuple[list, list]:
    columns = (np.split(x, data.offsets[1:-1]) for x in (data.tokens, data.segments))
    return tuple([part.tolist() for part in parts] for parts in columns)


def test_truncated_texts_are_those_that_are_longer_whole(tokenizer):
    whole = encode(pairs(12), tokenizer, 400)
    assert whole.size == "12"
    cut_at = int(np.median(whole.lengths))
    got = encode(pairs(12), tokenizer, cut_at)
    assert got.truncated.tolist() == (whole.lengths > cut_at).tolist()
    assert got.size == f"12 ({got.truncated.sum()} truncated, {got.truncated.mean():.1%})"
    some = got.with_second_cls().take([5, 1])
    assert some.truncated.tolist() == got.truncated[[5, 1]].tolist()


@pytest.mark.parametrize("count", [1, CHUNK, CHUNK + 1])
def test_texts_in_chunks_are_those_of_one_call(tokenizer, count):
    examples = [pairs(9)[i % 9]._replace(label=i) for i in range(count)]
    texts = [[getattr(example, name) for example in examples] for name in ("text_a", "text_b")]
    whole = tokenizer(*texts, return_token_type_ids=True)
    got = encode(iter(examples), tokenizer, 512)
    assert as_lists(got) == (whole["input_ids"], whole["token_type_ids"])
    assert got.labels.tolist() == list(range(count))


# The flat arrays.

texts = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=9), min_size=1, max_size=30)


def drawn(ids: list[list[int]]) -> Features:
    types = [[i % 2 for i in row] for row in ids]
    return Features.from_lists(ids, types, list(range(len(ids))))


def test_the_digest_tells_all_that_the_data_are_apart():
    ids, types = [[2, 3], [4, 5]], [[0, 1], [0, 1]]
    same = Features.from_lists(ids, types, [0, 1])
    others = [
        same,
        same.take([1, 0]),
        same.with_second_cls(),
        Features.from_lists([[2, 3, 4], [5]], types, [0, 1]),
        Features.from_lists(ids, [[0, 1], [0, 0]], [0, 1]),
        Features.from_lists(ids, types, [0.0, 1.0]),
        Features.from_lists(ids, types),
        *(replace(same, inputs={name: np.array([0.5, 0.25])}) for name in "ab"),
    ]
    assert len({other.digest() for other in others}) == len(others)
    assert same.take([0, 1]).digest() == same.digest()


# Batches.


def test_batches_are_padded_to_their_longest():
    ids, types = [[2, 9, 3], [2, 3], [2, 8, 7, 3]], [[0, 0, 1], [0, 0], [0, 1, 1, 1]]
    data = Features.from_lists(ids, types, [1, 0, 1])
    batch = collate(data, [1, 0], pad_token_id=5)
    assert batch["input_ids"].tolist() == [[2, 3, 5], [2, 9, 3]]
    assert batch["token_type_ids"].tolist() == [[0, 0, 0], [0, 0, 1]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert batch["labels"].tolist() == [0, 1]
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}
    assert "attention_mask" not in collate(data, [2], pad_token_id=5)
    unlabelled = Features.from_lists(ids, types, [None] * 3)
    assert "labels" not in collate(unlabelled, [0, 1], pad_token_id=5)
    scores = Features.from_lists(ids, types, [1, 2.5, 0])
    assert torch.equal(collate(scores, [0, 1], 5)["labels"], torch.tensor([1.0, 2.5]))
    assert "draws" not in batch
    draws = torch.tensor([0.1, 0.2, 0.3])
    drawn = replace(data, inputs={"draws": draws.numpy()})
    assert torch.equal(collate(drawn, np.array([2, 0]), 5)["draws"], draws[[2, 0]])


sizes = st.lists(st.integers(2, 128), min_size=1, max_size=200).map(np.array)


@given(
    lengths=st.one_of(sizes, st.lists(st.integers(2, 5), min_size=1, max_size=999).map(np.array)),
    size=st.integers(1, 40),
    seed=st.integers(0, 2**31),
)
def test_an_epochs_batches_are_hfs_length_groups_in_another_order(lengths, size, seed):
    generator = torch.Generator().manual_seed(seed * 1_000_003 + 7)
    rows = get_length_grouped_indices(lengths.tolist(), size, generator=generator)
    batches = [rows[i : i + size] for i in range(0, len(rows), size)]
    order = torch.randperm(len(batches), generator=generator)
    got = epoch_batches(lengths, size, seed, 7)
    assert [batch.tolist() for batch in got] == [batches[i] for i in order]
