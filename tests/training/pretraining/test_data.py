"""Text to MLM and SOP batches: exact repetition, for any number of processes."""

import os
from collections import Counter

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from training.pretraining.masking import TokenClass

SEP, MASK, UNK = 3, 4, 1


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
