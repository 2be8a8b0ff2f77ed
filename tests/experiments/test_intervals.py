"""Intervals, against simulated truths."""

import numpy as np
import pytest

from experiments.comparison.intervals import (
    cost_to_reach,
    difference,
    resampled_means,
    seed_factor,
    simultaneous,
)
from experiments.comparison.methods import Outcomes, at_budgets, choose_frontier, halves


def test_the_cost_of_a_bar_and_its_interval():
    """Two seeds whose score is the cost, plus or minus 0.1: the bar is met at 0.1 more or less."""
    costs = np.array([[0.0] * 40, [1.0] * 40])
    method = []
    for shift in (-0.1, 0.1):
        outcomes = Outcomes(score=costs + shift, cost=costs)
        method.append([choose_frontier(outcomes, parts) for parts in halves(40)])
    grid = np.arange(0, 1.01, 0.01)
    assert at_budgets(method, [0.3]).score.mean(-1)[0] == pytest.approx([0.2, 0.4])
    cost = cost_to_reach(method, np.full(1001, 0.5), grid)
    reach = 0.1 * np.sqrt(2)  # both draws the one seed, spread by √(n/(n−1))
    assert cost == pytest.approx([0.5, 0.5 - reach, 0.5 + reach], abs=0.011)
    assert cost_to_reach(method, np.full(1001, 2.0), grid).text() == "inf [inf, inf]"


@pytest.mark.slow
@pytest.mark.parametrize("between_seeds", [0.0, 0.02])
def test_simultaneous_intervals_cover_all_their_truths_nearly_always(between_seeds):
    """Ten gains of 1 point over 400 examples and 3 seeds: all inside in about 95% of studies."""
    rng, covered, studies = np.random.default_rng(0), 0, 120
    for _ in range(studies):
        hardness = rng.normal(0, 0.3, (1, 1, 400))
        seeds = rng.normal(0, between_seeds, (10, 3, 1))
        tables = 0.01 + hardness + seeds + rng.normal(0, 0.3, (10, 3, 400))
        estimates = simultaneous([[table] for table in tables])
        covered += all(estimate.low <= 0.01 <= estimate.high for estimate in estimates)
    assert covered / studies >= 0.88


def test_few_seeds_that_differ_widen_an_interval():
    alike = np.random.default_rng(0).normal(size=(3, 500))
    assert seed_factor([alike]) == pytest.approx(1.2, abs=0.2)
    differ = alike + np.array([[-1.0], [0.0], [1.0]])
    assert seed_factor([differ]) > 2
    many = np.random.default_rng(1).normal(size=(5, 500))
    assert seed_factor([alike]) <= seed_factor(difference(differ, many)) < seed_factor([differ])


def test_networks_with_other_numbers_of_seeds_are_resampled_apart():
    tables = [np.array([[x] * 50 for x in seeds]) for seeds in ((0.0, 1.0, 2.0), (5.0, 9.0))]
    (estimate,) = simultaneous([difference(*tables)])
    assert estimate.value == pytest.approx(1 - 7)
    variance = np.var([0, 1, 2], ddof=1) / 3 + np.var([5, 9], ddof=1) / 2
    drawn = sum(resampled_means(table)[1:].var() for table in tables)
    assert drawn == pytest.approx(variance, rel=0.1)
    assert estimate.high - estimate.value > 1.96 * np.sqrt(variance)
