"""Intervals, against simulated truths."""

import numpy as np
import pytest

from experiments.comparison.intervals import (
    difference,
    resampled_means,
    seed_variances,
    simultaneous,
    standard_error,
)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("between_seeds", [0.0, 0.01, 0.02])
def test_simultaneous_intervals_cover_all_their_truths(between_seeds, seeds):
    """Twenty gains of 1 point over 400 examples: all inside in at least 93% of studies.

    Five pairs of methods at four costs, whose seeds' effects are the same at all costs.
    """
    rng = np.random.default_rng(0)
    studies = 200
    covered = 0
    for _ in range(studies):
        hardness = rng.normal(0, 0.3, (1, 1, 1, 400))
        effects = rng.normal(0, between_seeds, (5, 1, seeds, 1))
        tables = 0.01 + hardness + effects + rng.normal(0, 0.3, (5, 4, seeds, 400))
        contrasts = [[table] for pair in tables for table in pair]
        estimates = simultaneous(contrasts, rows=np.repeat(range(5), 4).tolist())
        covered += all(estimate.low <= 0.01 <= estimate.high for estimate in estimates)
    assert covered / studies >= 0.93


def test_a_standard_error_has_the_examples_and_the_seeds_in_it():
    """By a table with a known variance of both, and the freedom of the part that dominates."""
    rng = np.random.default_rng(0)
    alike = rng.normal(size=(3, 500))
    alike -= alike.mean(1, keepdims=True)
    error, freedom = standard_error([alike], seed_variances([alike]))
    assert error == pytest.approx(alike.mean(0).std(ddof=1) / np.sqrt(500))
    assert freedom == pytest.approx(499)
    differ = alike + np.array([[-1.0], [0.0], [1.0]])
    assert seed_variances([differ]) == pytest.approx([1.0], abs=0.2)
    error, freedom = standard_error([differ], seed_variances([differ]))
    assert error == pytest.approx(np.sqrt(1 / 3), rel=0.1)
    assert freedom == pytest.approx(2, abs=0.1)


def test_networks_with_other_numbers_of_seeds_are_resampled_apart():
    tables = [np.array([[x] * 50 for x in seeds]) for seeds in ((0.0, 1.0, 2.0), (5.0, 9.0))]
    (estimate,) = simultaneous([difference(*tables)])
    assert estimate.value == pytest.approx(1 - 7)
    variance = np.var([0, 1, 2], ddof=1) / 3 + np.var([5, 9], ddof=1) / 2
    drawn = sum(resampled_means(table)[1:].var() for table in tables)
    assert drawn == pytest.approx(variance, rel=0.1)
    assert estimate.high - estimate.value > 1.96 * np.sqrt(variance)  # few seeds widen it
