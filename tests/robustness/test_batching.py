"""Depth batching keeps its promise: a bad example fails by its number, once; all others answer."""

import random
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from modeling import UserError
from modeling.cpu_packing import packed_weights
from modeling.depth_batching import DepthBatcher
from tests.conftest import TINY, tiny_model
from tests.forks import FORKS

GOOD = ([5, 6, 7], [0, 0, 1])
TOO_LONG = TINY["max_position_embeddings"] + 1
BAD = {"no tokens": ([], []), "too many tokens": ([5] * TOO_LONG, [0] * TOO_LONG)}


@given(st.lists(st.sampled_from([*BAD, "good"]), max_size=12), st.integers(1, 4))
@example(kinds=["good", *BAD, "good"], slots=3)
def test_a_bad_example_raises_once_by_its_number_and_all_others_answer(kinds, slots):
    batcher, rows, failed = DepthBatcher(tiny_model(), slots=slots), [], []
    batcher.submit({**BAD, "good": GOOD}[kind] for kind in kinds)
    while len(rows) + len(failed) < len(kinds):
        try:
            rows.extend(answer.row for answer in batcher.answers())
        except UserError as error:
            failed.append(int(str(error).split()[1]))
    assert sorted(failed) == [row for row, kind in enumerate(kinds) if kind != "good"]
    assert sorted(rows) == [row for row, kind in enumerate(kinds) if kind == "good"]


def batch(count: int, found) -> None:
    """Answer so many texts of mixed lengths; puts the memory after 2,000 and at the end."""
    torch.set_num_threads(1)
    draw, model = random.Random(0), tiny_model(max_position_embeddings=200, num_hidden_layers=3)
    lengths = (draw.randint(3, 200) for _ in range(count))
    batcher = DepthBatcher(model, slots=32)
    batcher.submit(([5] * length, [0] * length) for length in lengths)
    with packed_weights(model):
        for number, _ in enumerate(batcher.answers(), 1):
            if number in (2_000, count):
                found.put(int(Path("/proc/self/statm").read_text().split()[1]))  # pages


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_texts():
    """oneDNN keeps a program for every shape that it meets: there must be few."""
    found = FORKS.SimpleQueue()
    process = FORKS.Process(target=batch, args=(8_000, found))
    process.start()
    process.join()
    assert process.exitcode == 0
    first, last = found.get(), found.get()
    assert last < 1.2 * first
