"""Cascades and the commonest class, as the confirmation compares them, on answers made by hand."""

import numpy as np
import pytest

from experiments.comparison.confirmation import (
    after_words,
    recalibrated,
    stopping,
    stopping_cascade,
    with_depth_0,
)
from experiments.comparison.methods import Outcomes
from experiments.comparison.recordings import Answers
from experiments.comparison.rivals import by_shares, learnt_schedule, patient_and_confident

ROWS = np.arange(200)
LABELS = (ROWS % 4 == 0).astype(float)  # a quarter is 1


def network(cost: float, right: np.ndarray, sureness: np.ndarray) -> Answers:
    """A network without exits, which is right on some rows, with log odds of so much."""
    side = np.where(right, 1, -1) * np.where(LABELS == 1, 1, -1) * sureness
    logits = np.stack([-side, side], -1)[None] / 2
    return Answers(logits, LABELS, cost=np.full((1, len(ROWS)), cost))


def test_the_commonest_class_is_an_answer_for_nothing():
    outcomes = with_depth_0(Outcomes(np.ones((1, 200)), np.ones((1, 200))), LABELS, ROWS[:100])
    assert outcomes.score.mean(1).tolist() == [0.75, 1.0]
    assert outcomes.cost.mean(1).tolist() == [0.0, 1.0]


def test_a_cascade_pays_for_both_networks_and_asks_the_second_where_the_first_is_in_doubt():
    in_doubt = ROWS % 2 == 0
    first = network(0.2, right=~in_doubt, sureness=np.where(in_doubt, 0.1, 5.0))
    second = network(0.6, right=np.full(200, True), sureness=np.full(200, 5.0))
    outcomes = stopping_cascade([first, second], ROWS[:100])
    alone, both = outcomes.cost[:2].mean(1), outcomes.cost[2:].mean(1)
    assert alone.tolist() == pytest.approx([0.2, 0.6])
    assert both.max() <= 0.8 + 1e-9
    # Half of the rows go on: as right as the second network, for 0.2 + 0.6 / 2.
    ideal = np.isclose(both, 0.5) & (outcomes.score[2:].mean(1) == 1)
    assert ideal.any()
    exits = Answers(
        np.concatenate([first.logits, second.logits]),
        LABELS,
        cost=np.array([[0.2] * 200, [0.8] * 200]),
    )
    assert stopping(exits, ROWS[:100]).cost.mean(1).tolist() == pytest.approx(both.tolist())


def test_recalibrated_answers_are_as_sure_as_they_are_right():
    """It is as sure of every answer; of those that say 1, 50 are right and 37 wrong."""
    right = (ROWS % 4 != 3) | (ROWS % 16 == 3)
    answers = network(0.2, right, sureness=np.full(200, 5.0))
    says_1 = answers.logits[0].argmax(-1) == 1
    share = right[says_1].mean()
    logits = recalibrated(answers, ROWS).logits[0]
    odds_of_1 = (logits[:, 1] - logits[:, 0])[says_1]
    assert odds_of_1 == pytest.approx(np.log(share / (1 - share)), abs=0.05)


def test_a_bag_of_words_before_the_exits_is_an_exit_for_nothing():
    in_doubt = ROWS % 8 < 4  # half of either class; half of these are right
    words = network(0.0, ~in_doubt | (ROWS % 16 < 8), np.where(in_doubt, 0.1, 5.0))
    exits = network(0.6, right=np.full(200, True), sureness=np.full(200, 5.0))
    outcomes = stopping(after_words(exits, words), ROWS[:96])
    costs = outcomes.cost.mean(1)
    assert set(costs) > {0.0}
    # Half of the rows are answered for nothing; the others pay for the exit, and all are right.
    half_paid = np.isclose(costs, 0.6 * in_doubt.mean())
    assert outcomes.score.mean(1)[half_paid].tolist() == [1.0] * half_paid.sum()
    assert half_paid.any()


@pytest.mark.parametrize("rule", [by_shares, patient_and_confident, learnt_schedule])
def test_a_rival_lets_those_exit_that_are_sure(rule):
    in_doubt = ROWS % 8 < 4  # half of either class; all of them are wrong after the first exit
    first = network(0.2, right=~in_doubt, sureness=np.where(in_doubt, 0.1, 5.0))
    last = network(0.8, right=np.full(200, True), sureness=np.full(200, 5.0))
    exits = Answers(
        np.concatenate([first.logits, last.logits]),
        LABELS,
        cost=np.concatenate([first.cost, last.cost]),
    )
    outcomes = rule(exits, ROWS[:96])
    costs, scores = outcomes.cost.mean(1), outcomes.score.mean(1)
    # A half exits for 0.2, the other one for 0.8, and all are right.
    assert scores[np.isclose(costs, 0.5)].tolist()
    assert scores[np.isclose(costs, 0.5)].max() == 1
    assert scores[costs < 0.45].max(initial=0) < 1
