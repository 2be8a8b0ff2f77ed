"""Token ids: tokenising, batches, and what tells data sets apart."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from elbert import PonderAlbertConfig
from glue.features import CHUNK_TEXTS, Features, collate, encode
from glue.splits import Example
from tests.conftest import TINY, sentence, tiny_config

PLAIN = tiny_config()


def pairs(count: int = 4) -> list[Example]:
    return [Example(str(i), sentence(i), sentence(i + 1, i + 1), i % 2) for i in range(count)]


def test_truncated_texts_are_those_that_are_longer_whole(tokenizer):
    whole = encode(pairs(12), tokenizer, 400, PLAIN)
    assert whole.size == "12"
    cut_at = int(np.median(whole.lengths))
    got = encode(pairs(12), tokenizer, cut_at, PLAIN)
    assert got.truncated.tolist() == (whole.lengths > cut_at).tolist()
    assert got.size == f"12 ({got.truncated.sum()} truncated, {got.truncated.mean():.1%})"
    assert got.take([5, 1]).truncated.tolist() == got.truncated[[5, 1]].tolist()
    ponder = encode(pairs(12), tokenizer, cut_at + 1, PonderAlbertConfig(**TINY))
    for ids, twice in zip(got.input_ids, ponder.input_ids, strict=True):  # [CLS] twice
        assert twice.tolist() == [ids[0], *ids]


@pytest.mark.parametrize("count", [1, CHUNK_TEXTS, CHUNK_TEXTS + 1])
def test_texts_in_chunks_are_those_of_one_call(tokenizer, count):
    examples = [pairs(9)[i % 9]._replace(label=i) for i in range(count)]
    texts = [[getattr(example, name) for example in examples] for name in ("text_a", "text_b")]
    whole = tokenizer(*texts, return_token_type_ids=True)
    got = encode(iter(examples), tokenizer, 512, PLAIN)
    for name in ("input_ids", "token_type_ids"):
        assert [x.tolist() for x in getattr(got, name)] == whole[name]
    assert got.labels.tolist() == list(range(count))


# Batches.


def test_batches_are_padded_to_their_longest():
    ids, types = [[2, 9, 3], [2, 3], [2, 8, 7, 3]], [[0, 0, 1], [0, 0], [0, 1, 1, 1]]
    draws = np.array([0.1, 0.2, 0.3], np.float32)
    data = replace(Features.from_lists(ids, types, [1, 0, 1]), inputs={"draws": draws})
    batch = collate(data, [1, 0], pad_token_id=5)
    assert {name: tensor.tolist() for name, tensor in batch.items()} == {
        "input_ids": [[2, 3, 5], [2, 9, 3]],
        "token_type_ids": [[0, 0, 0], [0, 0, 1]],
        "attention_mask": [[1, 1, 0], [1, 1, 1]],
        "labels": [0, 1],
        "draws": draws[[1, 0]].tolist(),
    }
    assert "attention_mask" not in collate(data, [2], pad_token_id=5)
    assert "labels" not in collate(Features.from_lists(ids, types, [None] * 3), [0], 5)
    scores = Features.from_lists(ids, types, [1, 2.5, 0])
    assert torch.equal(collate(scores, [0, 1], 5)["labels"], torch.tensor([1.0, 2.5]))


def test_the_digest_tells_all_that_the_data_are_apart():
    ids, types = [[2, 3], [4, 5]], [[0, 1], [0, 1]]
    same = Features.from_lists(ids, types, [0, 1])
    others = [
        same,
        same.take([1, 0]),
        Features.from_lists([[2, 2, 3], [4, 4, 5]], [[0, 0, 1]] * 2, [0, 1]),
        Features.from_lists([[2, 3, 4], [5]], types, [0, 1]),
        Features.from_lists(ids, [[0, 1], [0, 0]], [0, 1]),
        Features.from_lists(ids, types, [0.0, 1.0]),
        Features.from_lists(ids, types),
        *(replace(same, inputs={name: np.array([0.5, 0.25])}) for name in "ab"),
    ]
    assert len({other.digest() for other in others}) == len(others)
