"""Depth batching keeps its promise: a bad example fails by its number, once; all others answer."""

import random
from collections.abc import Iterator
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
BAD = {
    "out of range": ([5, 90], [0, 0]),
    "negative": ([5, -1], [0, 0]),
    "a segment out of range": ([5, 6], [0, 2]),
    "fractions": ([5.5, 6.0], [0, 0]),
    "segments of another length": ([5, 6, 7], [0, 0]),
    "two rows": ([[5, 6]], [[0, 0]]),
    "no tokens": ([], []),
    "too many tokens": ([5] * TOO_LONG, [0] * TOO_LONG),
    "no segments": ([5, 6],),
    "None": None,
    "a draw that is none": ([5], [0], "x"),
}


def check(batcher: DepthBatcher, failing: list[int], count: int) -> None:
    """Each row of `failing` raises once, by its number; all others answer."""
    rows, messages = [], []
    while True:
        try:
            rows.extend(answer.row for answer in batcher.answers())
            break
        except UserError as error:
            messages.append(str(error))
    assert sorted(int(message.split()[1]) for message in messages) == failing
    assert sorted(rows) == [i for i in range(count) if i not in failing]


@given(st.lists(st.sampled_from([*BAD, "good"]), max_size=12), st.integers(1, 4))
@example(kinds=["good", *BAD, "good"], slots=3)
def test_any_mixture(kinds, slots):
    batcher = DepthBatcher(tiny_model(), slots=slots)
    batcher.submit({**BAD, "good": GOOD}[kind] for kind in kinds)
    failing = [row for row, kind in enumerate(kinds) if kind != "good"]
    check(batcher, failing, len(kinds))


def test_a_source_that_raises_takes_no_other_with_it():
    def breaks() -> Iterator:
        yield GOOD
        raise OSError("the disk is gone")

    batcher = DepthBatcher(tiny_model(), slots=2)
    for source in ([GOOD] * 2, breaks(), *[[GOOD]] * 1100):
        batcher.submit(source)
    check(batcher, [3], 1104)


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
