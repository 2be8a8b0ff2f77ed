"""95% intervals over seeds and examples, by a bootstrap that draws both.

A *table* has the score of each example with each seed, (seeds, examples). A *contrast* is a list of
independent tables whose means add up; a difference of methods is one.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np
from scipy.stats import t as student

from answers.exit_metrics import bootstrap_weights
from exit_lab.estimates import Estimate, widen_shares
from experiments.comparison.methods import Method, at_budgets

RESAMPLES = 1000
EXAMPLE_DRAWS, SEED_DRAWS = 1, 2  # random seeds of the resamples

Contrast = list[np.ndarray]


def difference(table: np.ndarray, other: np.ndarray) -> Contrast:
    """Return the contrast of two tables.

    Where both have as many seeds they are paired: the same seed saw the data in the same order.
    """
    if len(table) == len(other):
        return [table - other]
    return [table, -other]


@cache
def shares_of(count: int, random_seed: int) -> np.ndarray:
    """Return the share of each of so many in every resample: (count, 1 + RESAMPLES).

    The first column is the sample itself, with equal shares.
    """
    return bootstrap_weights(count, RESAMPLES, random_seed).T / count


def resampled_means(tables: np.ndarray) -> np.ndarray:
    """Return the means of tables (…, seeds, examples) in every resample: (…, 1 + RESAMPLES).

    All tables of as many examples share the resamples of these, and so do all of as many seeds.
    """
    seeds, examples = tables.shape[-2:]
    seed_shares = widen_shares(shares_of(seeds, SEED_DRAWS).T).T
    by_seed = tables @ shares_of(examples, EXAMPLE_DRAWS)  # (…, seeds, 1 + RESAMPLES)
    return (by_seed * seed_shares).sum(-2)


def seed_factor(contrast: Contrast) -> float:
    """Return how much wider Student's t makes an interval that rests on so few seeds.

    The degrees of freedom are Welch and Satterthwaite's: the square of the mean's variance, over
    the sum of the squares of its parts, each divided by its own degrees of freedom.
    """
    examples = contrast[0].shape[1]
    by_example = np.sum([table.mean(0) for table in contrast], axis=0)
    variance = by_example.var(ddof=1) / examples
    squares = variance**2 / (examples - 1)
    for table in contrast:
        seeds = len(table)
        if seeds == 1:
            continue
        # Means over examples differ between seeds by chance as well; this part is counted above.
        noise = table.mean(0).var(ddof=1) / table.shape[1] / (seeds - 1)
        of_seeds = max(0.0, table.mean(1).var(ddof=1) / seeds - noise)
        variance += of_seeds
        squares += of_seeds**2 / (seeds - 1)
    freedom = variance**2 / squares if squares else np.inf
    return float(student.ppf(0.975, freedom) / student.ppf(0.975, np.inf))


def simultaneous(contrasts: Sequence[Contrast]) -> list[Estimate]:
    """Estimate the means of contrasts, with limits that hold all at once with 95% probability.

    The intervals' width is that of the largest deviation among all (max-T).
    """
    resamples = []  # (contrasts, 1 + RESAMPLES)
    for contrast in contrasts:
        resamples.append(sum(resampled_means(table) for table in contrast))
    resamples = np.stack(resamples)
    means = resamples[:, 0]
    deviations = resamples[:, 1:].T - means  # (RESAMPLES, contrasts)
    errors = deviations.std(0)
    largest = np.abs(deviations / np.where(errors > 0, errors, 1)).max(1)
    factors = [seed_factor(contrast) for contrast in contrasts]
    reach = np.quantile(largest, 0.95) * errors * factors
    estimates = []
    for mean, half_width in zip(means.tolist(), reach.tolist(), strict=True):
        estimates.append(Estimate(mean, mean - half_width, mean + half_width))
    return estimates


def cost_to_reach(
    method: Method, bar: np.ndarray, budgets: Sequence[float] | np.ndarray
) -> Estimate:
    """Estimate the least cost at which a method's score reaches a bar; ∞ where it never does.

    The interval's ends are the 2.5% and the 97.5% quantile of the resamples, each of which has a
    bar of its own.

    Args:
        bar: a score in every resample, (1 + RESAMPLES,).
        budgets: those that are tried, rising.
    """
    results = at_budgets(method, budgets)
    reached = resampled_means(results.score) >= bar  # (budgets, 1 + RESAMPLES)
    first_budget = reached.argmax(0)
    mean_cost = results.cost.mean(1)
    least = np.where(reached.any(0), mean_cost[first_budget], np.inf)
    # Not np.quantile, which would take a mean of a number and ∞.
    ordered = np.sort(least[1:])
    low = ordered[round(0.025 * RESAMPLES)]
    high = ordered[round(0.975 * RESAMPLES) - 1]
    return Estimate(float(least[0]), float(low), float(high))
