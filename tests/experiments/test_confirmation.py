"""Cascades, the majority class and the tables of the confirmation, on answers made by hand."""

from pathlib import Path

import numpy as np
import pytest

from experiments.comparison.confirmation import (
    after_words,
    claim_cells,
    read_times,
    recalibrated,
    stopping,
    stopping_cascade,
    with_depth_0,
)
from experiments.comparison.methods import Method, Outcomes, choose_frontier, halves
from experiments.comparison.recordings import Answers
from experiments.comparison.rivals import by_shares, learnt_schedule, patient_and_confident

ROWS = np.arange(200)
LABELS = (ROWS % 4 == 0).astype(float)  # a quarter is 1


def network(cost: float, right: np.ndarray, sureness: np.ndarray) -> Answers:
    """A network without exits, which is right on some rows, with log odds of so much."""
    side = np.where(right, 1, -1) * np.where(LABELS == 1, 1, -1) * sureness
    logits = np.stack([-side, side], -1)[None] / 2
    return Answers(logits, LABELS, cost=np.full((1, len(ROWS)), cost))


def test_the_majority_class_is_an_answer_for_nothing():
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


def constant_method(score: float) -> Method:
    """A method of three seeds that scores so much at every cost from 0 to 1, but for noise."""
    rng = np.random.default_rng(0)
    costs = np.array([[0.0] * 200, [1.0] * 200])
    method = []
    for _ in range(3):
        outcomes = Outcomes(score + rng.normal(0, 0.01, 200) + 1e-6 * costs, costs)
        method.append([choose_frontier(outcomes, parts) for parts in halves(200)])
    return method


def test_claims_are_differences_of_methods_that_a_population_has():
    methods = {"rows": {"a": constant_method(0.9), "b": constant_method(0.8)}}
    cells = claim_cells(methods, [("a", "b"), ("a", "c")])
    assert {row for _, row in cells} == {"rows: a − b"}
    assert [cost for cost, _ in cells] == ["0.2", "0.3", "0.4", "0.5"]
    assert all(text.startswith("**+10.0 [") for text in cells.values())


def test_times_are_read_by_row_and_column(tmp_path: Path):
    table = tmp_path / "times.md"
    table.write_text(
        "| mean ms (range of rounds), p95 | PyTorch | ONNX, int8 |\n"
        "|---|---|---|\n"
        "| Hugging Face's | 9.4 (9.2–12.0), 11.7 | |\n"
        "| exits, cost 1 | 6.8 (6.8–8.0), 8.9 | 2.5 (2.3–4.4), 3.5 |\n"
    )
    assert read_times(table) == {
        "Hugging Face's": {"PyTorch": "9.4, 11.7", "ONNX, int8": ""},
        "exits, cost 1": {"PyTorch": "6.8, 8.9", "ONNX, int8": "2.5, 3.5"},
    }
