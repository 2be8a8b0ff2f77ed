"""Token ids: tokenising, batches, and the cache on disk."""

import os
import struct
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from glue import tasks
from glue.features import (
    CHUNK,
    Features,
    cached_features,
    collate,
    encode,
    features_fingerprint,
    read_cache,
)
from glue.tasks import Example, Split, get_task
from modeling import load_tokenizer
from tests.conftest import sentence, write_rte


def pairs(count: int = 4) -> list[Example]:
    return [Example(str(i), sentence(i), sentence(i + 1, i + 1), i % 2) for i in range(count)]


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
    assert [got.input_ids(row).tolist() for row in range(count)] == whole["input_ids"]
    assert got.segments.tolist() == [x for types in whole["token_type_ids"] for x in types]
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


# Token ids kept on disk: used while nothing has changed, made anew otherwise, never misread.


@pytest.fixture
def split(tmp_path):
    return Split(get_task("rte"), write_rte(tmp_path / "RTE"), "train")


def assert_same(left: Features, right: Features) -> None:
    """Compare the arrays and their types, without `digest`, which the cache itself goes by."""
    for field in fields(Features):
        ours, theirs = getattr(left, field.name), getattr(right, field.name)
        assert getattr(ours, "dtype", None) == getattr(theirs, "dtype", None)
        assert np.array_equal(ours, theirs)


def test_a_second_run_reads_the_cache(tokenizer, albert_dir, split, tmp_path, monkeypatch):
    kept, expected = tmp_path / "cached.safetensors", encode(split.examples(), tokenizer, 40)
    (tmp_path / "file").write_text("")
    for path in (kept, tmp_path / "file/cached", tmp_path / "RTE"):  # two that cannot be written
        assert_same(cached_features(path, split, tokenizer, 40), expected)
    monkeypatch.setattr(tasks, "read_table", None)  # no text is read
    for later in (tokenizer, load_tokenizer(albert_dir)):
        assert_same(cached_features(kept, split, later, 40), expected)


def test_the_cache_is_refreshed_when_anything_changes(tokenizer, albert_dir, split, tmp_path):
    path, task, kept = split.path, split.task, tmp_path / "cached.safetensors"
    text, times = path.read_text(), os.stat(path)
    cased = load_tokenizer(albert_dir, do_lower_case=False)
    relabelled = text.replace("\tentailment", "\tnot_entailment", 1)
    variants = [
        (text, task, tokenizer, 40),
        (text.replace("man", "cat", 1), task, tokenizer, 40),  # of the same size
        (relabelled, task, tokenizer, 40),
        (relabelled, replace(task, labels=task.labels[::-1]), tokenizer, 40),
        (relabelled, task, tokenizer, 9),
        (relabelled, task, cased, 9),
        (relabelled[: relabelled.rindex("\n", 0, -1)], task, cased, 9),
        (relabelled, replace(task, text_columns=("sentence1",)), cased, 9),
        (relabelled, replace(task, labels=(), label_column="index"), cased, 9),
    ]
    for content, used_task, used, length in variants:
        path.write_text(content)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # it tells nothing
        part = split._replace(task=used_task)
        for _ in range(2):
            got = cached_features(kept, part, used, length)
            assert_same(got, encode(part.examples(), used, length))


def test_no_flipped_or_missing_byte_is_read(tokenizer, split, tmp_path):
    kept = tmp_path / "cached.safetensors"
    cached_features(kept, split, tokenizer, 40)
    content, fingerprint = kept.read_bytes(), features_fingerprint(split, tokenizer, 40)
    header = 8 + struct.unpack("<Q", content[:8])[0]
    damaged = [content[:end] for end in range(0, len(content), 997)]
    for place in range(header, len(content), 97):
        flipped = bytes([content[place] ^ 1])
        damaged.append(content[:place] + flipped + content[place + 1 :])
    for damage in damaged:
        kept.write_bytes(damage)
        assert read_cache(kept, fingerprint) is None
