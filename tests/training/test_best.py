"""The best of the dev evaluations, and when there have been enough."""

from pathlib import Path

import pytest

from modeling.errors import UserError
from training.best import Best


def test_the_first_of_equal_values_is_the_best_and_patience_counts_from_there():
    best, seen = Best(patience=2), []
    for step, value in ((10, 0.5), (20, 0.7), (30, 0.7), (40, 0.6)):
        assert not best.enough
        seen.append(best.note(step, value))
    assert seen == [True, True, False, False]
    assert best.enough
    assert (best.step, best.value) == (20, 0.7)


def test_without_patience_there_are_never_enough():
    best = Best()
    for step in range(1, 50):
        best.note(step, -step)
    assert not best.enough


@pytest.mark.parametrize("kept", [None, {}, {"step": "3", "value": None, "since": 0}])
def test_a_checkpoint_without_a_best_is_refused(kept):
    with pytest.raises(UserError, match="checkpoint-3 was not written by a training"):
        Best(patience=1).resume(Path("checkpoint-3"), kept)


def test_a_checkpoint_keeps_the_best():
    best, again = Best(patience=2), Best(patience=2)
    best.note(10, 0.5)
    best.note(20, 0.4)
    again.resume(Path("checkpoint-3"), best.state())
    assert again == best
