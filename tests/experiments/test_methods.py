"""What methods score at a cost, against tables worked by hand."""

import numpy as np
import pytest

from evaluation.sweep import RANDOM_MIXTURE
from exit_lab.choice import Parts
from experiments.comparison.methods import (
    Outcomes,
    choose_frontier,
    oracle_scores,
    outcomes_of,
)
from tests.experiments.builders import ALL_ROWS, two_layers

SAME_ROWS = Parts(calibration=ALL_ROWS, report=ALL_ROWS)


def test_a_random_mixture_has_every_cost_between_two_layers():
    outcomes = outcomes_of(two_layers(), ALL_ROWS, RANDOM_MIXTURE)
    score, cost = choose_frontier(outcomes, SAME_ROWS).at(0.75)
    assert cost == pytest.approx([0.75] * 4)
    assert score == pytest.approx([1, 0.5, 0.5, 0.5])  # half the first layer, half the second


def test_a_budget_is_met_on_the_half_that_reports_and_what_is_unspent_buys_nothing():
    """One setting costs 0.2 to 0.6 and scores 0, another 1 for everybody and scores 1."""
    cost = np.array([[0.2, 0.2, 0.6, 0.6], [1.0] * 4])
    outcomes = Outcomes(score=np.array([[0.0] * 4, [1.0] * 4]), cost=cost)
    halves = Parts(calibration=np.array([0, 1]), report=np.array([2, 3]))
    front = choose_frontier(outcomes, halves)
    # Half of 0.6 and half of 1, not what the half that chooses would mix.
    at_budget = front.at(0.8)
    assert at_budget.score == pytest.approx([0.5] * 2)
    assert at_budget.cost == pytest.approx([0.8] * 2)
    assert [x.mean() for x in front.at(2.0)] == [1, 1]


def test_the_oracle_exits_at_the_first_right_layer_as_far_as_the_cost_allows():
    # Layer 1 is right for two; each of the other two becomes right for half a cost more.
    scores = oracle_scores(two_layers(), [0.5, 0.625, 0.75, 1.0])
    assert scores == pytest.approx([0.5, 0.75, 1.0, 1.0])
