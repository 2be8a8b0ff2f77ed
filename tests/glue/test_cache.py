"""Token ids kept on disk: used while nothing has changed, made anew otherwise, never misread."""

import os
import struct
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

import glue.tasks as tasks
from glue.features import Features, cached_features, encode, features_fingerprint, read_cache
from glue.tasks import Split, get_task
from modeling import load_tokenizer
from tests.conftest import write_rte


@pytest.fixture
def split(tmp_path):
    return Split(get_task("rte"), write_rte(tmp_path / "RTE"), "train")


@pytest.fixture
def kept(tmp_path) -> Path:
    return tmp_path / "cached.safetensors"


def same(left: Features, right: Features) -> bool:
    """Compare the arrays and their types, without `digest`, which the cache itself goes by."""
    arrays = [[getattr(x, f.name) for f in fields(x)] for x in (left, right)]
    types = [[getattr(array, "dtype", None) for array in side] for side in arrays]
    return types[0] == types[1] and all(map(np.array_equal, *arrays))


def test_a_second_run_reads_the_cache(tokenizer, albert_dir, split, kept, monkeypatch):
    first = cached_features(kept, split, tokenizer, 40)
    assert same(first, encode(split.examples(), tokenizer, 40))
    assert same(cached_features(kept, split, tokenizer, 40, overwrite=True), first)
    monkeypatch.setattr(tasks, "read_table", None)  # no text is read
    assert same(cached_features(kept, split, tokenizer, 40), first)  # the same tokenizer object
    assert same(cached_features(kept, split, load_tokenizer(albert_dir), 40), first)  # a later run


def test_the_cache_is_refreshed_when_anything_changes(tokenizer, albert_dir, split, kept):
    path, task = split.path, split.task
    text, times = path.read_text(), os.stat(path)
    cased = load_tokenizer(albert_dir, do_lower_case=False)
    turned = replace(task, labels=task.labels[::-1])
    single = replace(task, text_columns=("sentence1",))
    scores = replace(task, labels=(), label_column="index")
    relabelled = text.replace("\tentailment", "\tnot_entailment", 1)
    variants = [
        (text, task, tokenizer, 40),
        (text.replace("man", "cat", 1), task, tokenizer, 40),  # of the same size
        (relabelled, task, tokenizer, 40),
        (relabelled, turned, tokenizer, 40),
        (relabelled, turned, tokenizer, 9),
        (relabelled, turned, cased, 9),
        (relabelled[: relabelled.rindex("\n", 0, -1)], turned, cased, 9),
        (relabelled, single, cased, 9),
        (relabelled, scores, cased, 9),
    ]
    fingerprints = set()
    for content, used_task, used, length in variants:
        path.write_text(content)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # it tells nothing
        part = split._replace(task=used_task)
        for _ in range(2):
            got = cached_features(kept, part, used, length)
            assert same(got, encode(part.examples(), used, length))
        fingerprints.add(features_fingerprint(part, used, length))
    assert len(fingerprints) == len(variants)


def test_no_flipped_or_missing_byte_is_read(tokenizer, split, kept):
    cached_features(kept, split, tokenizer, 40)
    content, fingerprint = kept.read_bytes(), features_fingerprint(split, tokenizer, 40)
    header = 8 + struct.unpack("<Q", content[:8])[0]
    for place in range(header, len(content), 97):
        kept.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert read_cache(kept, fingerprint) is None
    for end in range(0, len(content), 997):
        kept.write_bytes(content[:end])
        assert read_cache(kept, fingerprint) is None


def test_a_directory_that_cannot_be_written_goes_without(tokenizer, split, tmp_path):
    (tmp_path / "file").write_text("")
    before = sorted(os.listdir(tmp_path))
    expected = encode(split.examples(), tokenizer, 40)
    for place in ("file/cached.safetensors", "RTE"):
        assert same(cached_features(tmp_path / place, split, tokenizer, 40), expected)
    assert sorted(os.listdir(tmp_path)) == before
