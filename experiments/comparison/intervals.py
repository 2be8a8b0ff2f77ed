"""95% intervals over seeds and examples, by a bootstrap that draws both.

A *table* has the score of each example with each seed, (seeds, examples). A *contrast* is a list of
independent tables whose means add up; a difference of methods is one.
"""

from collections.abc import Hashable, Sequence
from functools import cache

import numpy as np
from scipy.stats import norm as normal, t as student

from evaluation.exit_metrics import bootstrap_weights
from exit_lab.estimates import Estimate, widen_shares

RESAMPLES = 1000
EXAMPLE_DRAWS, SEED_DRAWS = 1, 2  # random seeds of the resamples

Contrast = list[np.ndarray]


def difference(table: np.ndarray, other: np.ndarray) -> Contrast:
    """Return the contrast of two tables.

    Where both have as many seeds they are paired in order: most have the same seeds, and the same
    seed saw the data in the same order.
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


def seed_variances(contrast: Contrast) -> list[float]:
    """Estimate the variance between seeds of each table of a contrast; 0 or less where none shows.

    Means over examples differ between seeds by chance as well; that part is left out.
    """
    variances = []
    for table in contrast:
        if len(table) == 1:
            variances.append(0.0)
            continue
        residuals = table - table.mean(0)
        noise = residuals.var(axis=0, ddof=1).mean() / table.shape[1]
        variances.append(float(table.mean(1).var(ddof=1) - noise))
    return variances


def standard_error(contrast: Contrast, of_seeds: Sequence[float]) -> tuple[float, float]:
    """Return the standard error of a contrast's mean, and its degrees of freedom.

    These are Welch and Satterthwaite's: the square of the mean's variance, over the sum of the
    squares of its parts, each divided by its own degrees of freedom. The parts are the examples,
    and the seeds of each table.

    of_seeds: the variance between the seeds of each table.
    """
    examples = contrast[0].shape[1]
    by_example = np.sum([table.mean(0) for table in contrast], axis=0)
    variance = by_example.var(ddof=1) / examples
    squares = variance**2 / (examples - 1)
    for table, of_one_seed in zip(contrast, of_seeds, strict=True):
        seeds = len(table)
        if seeds > 1:
            part = max(0.0, of_one_seed) / seeds
            variance += part
            squares += part**2 / (seeds - 1)
    freedom = variance**2 / squares if squares else np.inf
    return float(np.sqrt(variance)), float(freedom)


def simultaneous(
    contrasts: Sequence[Contrast], rows: Sequence[Hashable] | None = None
) -> list[Estimate]:
    """Estimate the means of contrasts, with limits that hold all at once with 95% probability.

    How far the furthest of all deviates in a bootstrap (max-T) says at which level each interval
    must hold. There, Student's t takes the place of the normal distribution, as the variance
    between few seeds is hardly known.

    rows: of each contrast, the methods that it compares. Contrasts of the same ones, at different
        costs, have one variance between seeds, the mean of theirs.
    """
    rows = rows or range(len(contrasts))
    resamples = []  # (contrasts, 1 + RESAMPLES)
    for contrast in contrasts:
        resamples.append(sum(resampled_means(table) for table in contrast))
    resamples = np.stack(resamples)
    means = resamples[:, 0]
    deviations = resamples[:, 1:].T - means  # (RESAMPLES, contrasts)
    errors = deviations.std(0)
    largest = np.abs(deviations / np.where(errors > 0, errors, 1)).max(1)
    tail = normal.sf(np.quantile(largest, 0.95))
    by_row: dict[Hashable, list[list[float]]] = {}
    for contrast, row in zip(contrasts, rows, strict=True):
        by_row.setdefault(row, []).append(seed_variances(contrast))
    estimates = []
    for mean, contrast, row in zip(means.tolist(), contrasts, rows, strict=True):
        error, freedom = standard_error(contrast, np.mean(by_row[row], axis=0))
        half_width = error * float(student.isf(tail, freedom))
        estimates.append(Estimate(mean, mean - half_width, mean + half_width))
    return estimates
