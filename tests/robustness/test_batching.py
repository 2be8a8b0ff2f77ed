"""Depth batching keeps its promise: a bad example fails by its number, once; all others answer."""

from hypothesis import example, given, strategies as st

from elbert import UserError
from modeling.depth_batching import DepthBatcher
from tests.conftest import TINY, tiny_model

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
