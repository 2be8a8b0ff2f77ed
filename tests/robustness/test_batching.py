"""Depth batching keeps its promise: a bad example fails by its number, once; all others answer."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from modeling import UserError
from modeling.cpu_packing import packed_weights
from modeling.depth_batching import DepthBatcher
from tests.conftest import TINY, tiny_model
from tests.forks import FORKS
from tests.models import tiny_ponder

LONGEST = TINY["max_position_embeddings"]
GOOD = ([5, 6, 7], [0, 0, 1])
BAD = {
    "out of range": ([5, 90], [0, 0]),
    "far out of range": ([5, 2**70], [0, 0]),
    "negative": ([5, -1], [0, 0]),
    "a segment out of range": ([5, 6], [0, 2]),
    "fractions": ([5.5, 6.0], [0, 0]),
    "not numbers": (["a", "b"], [0, 0]),
    "truth values": ([True, False], [0, 0]),
    "segments of another length": ([5, 6, 7], [0, 0]),
    "one segment for all": ([5, 6, 7], [0]),
    "two rows": ([[5, 6]], [[0, 0]]),
    "no tokens": ([], []),
    "too many tokens": ([5] * (LONGEST + 1), [0] * (LONGEST + 1)),
    "no segments": ([5, 6],),
    "nothing": (),
    "None": None,
    "a number": 7,
    "four parts": ([5], [0], 0.5, 1),
    "a draw that is none": ([5], [0], "x"),
    "a draw out of range": ([5], [0], float("nan")),
}


def everything(batcher: DepthBatcher, ordered: bool = False) -> tuple[list, list[str]]:
    """All answers, and the messages of all that failed."""
    answers, messages = [], []
    while True:
        try:
            answers.extend(batcher.in_order() if ordered else batcher.answers())
            return answers, messages
        except UserError as error:
            messages.append(str(error))


def check(batcher: DepthBatcher, failing: list[int], count: int, ordered: bool = False) -> None:
    answers, messages = everything(batcher, ordered)
    assert [int(message.split()[1]) for message in messages] == failing
    rows = [answer.row for answer in answers]
    assert (rows if ordered else sorted(rows)) == [i for i in range(count) if i not in failing]


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("bad", BAD.values(), ids=list(BAD))
def test_a_bad_example_fails_alone(bad, ordered):
    batcher = DepthBatcher(tiny_model(), slots=3, window=4)
    batcher.submit([GOOD] * 7 + [bad] + [GOOD] * 7)
    check(batcher, [7], 15, ordered)


@given(st.lists(st.sampled_from([*BAD, "good"]), max_size=12), st.integers(1, 4), st.booleans())
def test_any_mixture(kinds, slots, ordered):
    batcher = DepthBatcher(tiny_model(), slots=slots, window=5)
    batcher.submit({**BAD, "good": GOOD}[kind] for kind in kinds)
    failing = [row for row, kind in enumerate(kinds) if kind != "good"]
    answers, messages = everything(batcher, ordered)
    assert sorted(int(message.split()[1]) for message in messages) == failing
    assert sorted(answer.row for answer in answers) == sorted({*range(len(kinds))} - {*failing})


class Wordless(Exception):
    """An error that cannot say what it is."""

    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize("step", ["embed", "start"])
@pytest.mark.parametrize(
    "error", [KeyError("x"), TypeError("x"), MemoryError(), ZeroDivisionError(), Wordless()]
)
def test_any_error_of_the_model_is_the_rows(step, error, monkeypatch):
    """Raised whenever the one of 9 tokens is among them."""
    model = tiny_ponder() if step == "start" else tiny_model()
    really, width = getattr(model, step), []

    def embed(ids: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
        width[:] = [ids.shape[1]]
        if step == "embed" and ids.shape[1] == 9:
            raise error
        return embed_really(ids, types)

    def start(*arguments):
        if width == [9]:
            raise error
        return really(*arguments)

    embed_really = model.embed
    monkeypatch.setattr(model, "embed", embed)
    if step == "start":
        monkeypatch.setattr(model, "start", start)
    batcher = DepthBatcher(model, slots=4)
    batcher.submit([([5] * 3, [0] * 3)] * 6 + [([5] * 9, [0] * 9)] + [([5] * 3, [0] * 3)] * 6)
    check(batcher, [6], 13)


class Half:
    """An iterator that raises at every other call, and goes on."""

    def __init__(self) -> None:
        self.calls = 0

    def __iter__(self) -> Iterator:
        return self

    def __next__(self) -> tuple:
        self.calls += 1
        if self.calls > 6:
            raise StopIteration
        if self.calls % 2:
            raise RuntimeError("not this one")
        return GOOD


def test_a_source_that_raises_takes_no_other_with_it():
    def breaks() -> Iterator:
        yield GOOD
        raise OSError("the disk is gone")

    batcher = DepthBatcher(tiny_model(), slots=2, window=3)
    for source in ([GOOD] * 2, breaks(), Half(), [GOOD] * 2):
        batcher.submit(source)
    check(batcher, [3, 4, 6, 8], 12)


def test_many_submissions_before_the_first_answer():
    batcher = DepthBatcher(tiny_model(), slots=8)
    for _ in range(1100):
        batcher.submit([GOOD])
    check(batcher, [], 1100)


def resident() -> float:
    """This process's memory in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 1e6


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
                found.put(resident())


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_texts():
    """oneDNN keeps a program for every shape that it meets: there must be few."""
    found = FORKS.SimpleQueue()
    count = 40_000 if settings().max_examples >= 1000 else 8_000
    process = FORKS.Process(target=batch, args=(count, found))
    process.start()
    process.join()
    assert process.exitcode == 0
    first, last = found.get(), found.get()
    print(f"{first:.0f} MB after 2,000 texts, {last:.0f} MB after {count}")
    assert last < 1.2 * first
