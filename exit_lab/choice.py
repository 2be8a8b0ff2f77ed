"""Choosing a setting: under a cost, within a drop, or with a guarantee.

Everything is chosen on one part of the labelled examples and reported on the other.

The guarantee is distribution-free risk control, "Learn then Test" (Angelopoulos, Bates, Candès,
Jordan and Lei, 2021): settings are tested in a fixed order, from the deepest on, each against the
hypothesis that its risk exceeds α. Testing stops at the first that is not rejected, so each test
may use the whole error budget δ: with probability ≥ 1 − δ over the draw of the calibration
examples, every setting before the stop has a risk of at most α. The order must not depend on these
examples, not even on their texts: it is a walk through the grid from its deepest corner to its most
eager one. Several rules mean several walks, which share δ evenly (Bonferroni).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.stats import binom

from evaluation.exit_metrics import at_exit
from evaluation.sweep import Sweep
from exit_lab.goals import Goal, MaxCost, MaxLatency, MaxRisk
from modeling.errors import UserError
from modeling.keys import Key

TOLERANCE = 1e-9  # of comparisons between sums that are equal on paper


class Parts(NamedTuple):
    """Numbers of the examples that choose, and of those that report, in rising order."""

    calibration: np.ndarray
    report: np.ndarray


def split(examples: int, fraction: float, seed: int) -> Parts:
    """Split so many examples at random, with `fraction` of them for calibration.

    Raises UserError when one part would be empty.
    """
    count = round(examples * fraction) if 0 < fraction < 1 else 0
    if not 0 < count < examples:
        raise UserError(
            f"calibration_fraction = {fraction:g} of {examples} examples leaves {count} that "
            f"choose and {examples - count} that report; both parts need some"
        )
    order = np.random.default_rng(seed).permutation(examples)
    return Parts(np.sort(order[:count]), np.sort(order[count:]))


@dataclass(frozen=True)
class Choice:
    """The outcome of --pick."""

    setting: int | None  # its number in the sweep; None where no setting qualifies
    reason: str  # how it was chosen, for a message
    max_drop: float | None = None  # the largest loss that was asked for, in units of the metric
    risk: MaxRisk | None = None  # what is guaranteed, if anything


def choose(swept: Sweep, goal: Goal, rules: Sequence[str], rows: np.ndarray) -> Choice:
    """Choose the setting that `goal` asks for by the examples `rows`.

    A setting that gives all examples the same answer is chosen only where no other is allowed.

    rules: those whose settings a guarantee tests; the other goals look at all settings.
    """
    if isinstance(goal, MaxRisk):
        return control_risk(swept, rules, rows, goal)
    varied = answers_vary(swept, rows)
    metric = swept.main_metric(swept.exit_layer, rows)
    if isinstance(goal, MaxLatency):
        p95_ms = swept.p95_ms(swept.exit_layer, rows)
        is_allowed = p95_ms <= goal.limit_ms + TOLERANCE
        if not is_allowed.any():
            return Choice(None, f"the fastest setting takes {p95_ms.min():.3g} ms for 95% of them")
        return Choice(
            first_allowed(is_allowed, -metric, p95_ms, varied),
            f"best setting with 95% of the answers within {goal.limit_ms:g} ms, one text at a "
            "time, by the times of the recorded pass",
        )
    cost = swept.cost(swept.exit_layer, rows)
    if isinstance(goal, MaxCost):
        is_allowed = cost <= goal.limit + TOLERANCE
        if not is_allowed.any():
            return Choice(None, f"the cheapest setting costs {cost.min():.4f}")
        return Choice(
            first_allowed(is_allowed, -metric, cost, varied),
            f"best setting at a cost of at most {goal.limit:g}",
        )
    full_depth = swept.full_depth_metrics(rows)[swept.task.primary_metric][0]
    return Choice(
        first_allowed(metric >= full_depth - goal.limit - TOLERANCE, cost, -metric, varied),
        f"cheapest setting within {goal.limit:g} of full depth",
        max_drop=goal.limit,
    )


def answers_vary(swept: Sweep, rows: np.ndarray) -> np.ndarray:
    """Tell which settings give some examples several answers: (settings,).

    All count as such where the examples have one label.
    """
    if is_constant(swept.labels[rows]):
        return np.ones(len(swept.settings), dtype=bool)
    predictions = swept.predictions[:, rows]
    return np.array(
        [not is_constant(at_exit(predictions, exits[rows])) for exits in swept.exit_layer]
    )


def is_constant(values: np.ndarray) -> bool:
    """Tell whether all rows of an array are equal."""
    return bool((values == values[:1]).all())


def first_allowed(
    is_allowed: np.ndarray,
    primary: np.ndarray,
    secondary: np.ndarray,
    varied: np.ndarray | None = None,
) -> int | None:
    """Return the number of the allowed setting with the lowest `primary` value.

    Of several such settings it is the one with the lowest `secondary` value; None where no setting
    is allowed. All arrays are (settings,).

    varied: of `answers_vary`; the other settings come last.
    """
    is_last = np.zeros_like(is_allowed) if varied is None else ~varied
    order = np.lexsort((secondary, primary, is_last))  # NumPy's last key counts first
    allowed = order[is_allowed[order]]
    return int(allowed[0]) if len(allowed) else None


# With a guarantee.


def losses(
    predictions: np.ndarray,
    labels: np.ndarray,
    exit_layer: np.ndarray,
    full_depth: np.ndarray | None = None,
) -> np.ndarray:
    """Return 1 where full depth is right and the early exit wrong, else 0: (settings, examples).

    The mean, which is the risk, is an upper bound of the drop of accuracy: that also credits the
    examples that early exit puts right. The loss whose mean is the drop itself is −1, 0 or 1; it
    has no exact test, and the general bounds need several times the examples. A loss of 0 or 1 is
    a Bernoulli variable, for which the binomial test is exact.

    predictions: (layers, examples) class ids; labels: (examples,); exit_layer: (settings,
    examples), 1-based; full_depth: (examples,), the last layer's answers as it was trained, where
    `predictions` are recalibrated.
    """
    early = at_exit(predictions, exit_layer)
    if full_depth is None:
        full_depth = predictions[-1]
    is_lost = (full_depth == labels) & (early != labels)
    return is_lost.astype(float)


def count_certified(path_losses: np.ndarray, alpha: float, delta: float) -> int:
    """Count the settings at the start of a path whose risk is certified to be at most α.

    With probability ≥ 1 − δ all of them have such a risk. A p-value is the probability of at most
    so many losses when each example is lost with probability α. It is valid for every risk above α,
    where so few losses are rarer still.

    path_losses: (path, examples) of 0 or 1, in the order fixed beforehand.
    """
    examples = path_losses.shape[1]
    p_values = binom.cdf(path_losses.sum(1), examples, alpha)
    is_rejected = p_values <= delta
    return len(is_rejected) if is_rejected.all() else int(is_rejected.argmin())


def fixed_sequence(grid: Mapping[str, Sequence[float]], keys: Mapping[str, Key]) -> list[int]:
    """Walk through a rule's settings from the deepest to the most eager: their numbers, in order.

    All keys go from their deepest to their most eager value at once, one step of one key at a time
    as far as the numbers of their values allow. The walk follows from the grid alone.

    Args:
        grid: the values of each key, rising; settings are numbered with the last key fastest.
        keys: which say whether low or high values let examples exit early.
    """
    lengths = [len(values) for values in grid.values()]
    if not lengths:
        return [0]  # a rule without keys has one setting
    steps = max(1, sum(length - 1 for length in lengths))
    walk = []
    for step in range(steps + 1):
        places = []  # of each key's value in the grid
        for name, length in zip(grid, lengths, strict=True):
            last = length - 1
            place = (2 * step * last + steps) // (2 * steps)  # last · step / steps, rounded
            places.append(last - place if keys[name].eager_when_low else place)
        walk.append(int(np.ravel_multi_index(places, lengths)))
    return list(dict.fromkeys(walk))  # without repetitions: a step may round to the one before


def control_risk(swept: Sweep, rules: Sequence[str], rows: np.ndarray, goal: MaxRisk) -> Choice:
    """Choose the cheapest setting of `rules` whose risk is at most α with probability ≥ 1 − δ.

    `rows` are the calibration examples, an independent draw of the data that the model will meet.
    See the module's docstring for the test and `losses` for the risk. Raises UserError for
    regression and for several labels, where an answer is not simply right or wrong.
    """
    if swept.task.is_regression or swept.task.multi_label:
        raise UserError(
            "--pick risk needs a task with classes, one for each example; pick by max_drop or "
            "max_cost"
        )
    examples = len(rows)
    share_of_delta = goal.delta / len(rules)
    predictions, labels = swept.predictions[:, rows], swept.labels[rows]
    full_depth = swept.full_depth_answers[rows]
    keys = swept.config.table.exit_keys
    tested = 0
    passed: list[int] = []
    for rule in rules:
        path = swept.of_rule(rule).start + np.array(fixed_sequence(swept.grids[rule], keys))
        path_losses = losses(predictions, labels, swept.exit_layer[path][:, rows], full_depth)
        count = count_certified(path_losses, goal.risk, share_of_delta)
        tested += len(path)
        passed += path[:count].tolist()
    paths = "path" if len(rules) == 1 else "paths"
    test = (
        f"the test of risk {goal.risk:g} and delta {goal.delta:g} on {examples} calibration "
        f"examples, of {tested} along {len(rules)} fixed {paths} ({', '.join(rules)})"
    )
    if passed:
        costs = swept.cost(swept.exit_layer, rows)
        has_passed = np.isin(np.arange(len(costs)), passed)
        return Choice(
            first_allowed(has_passed, costs, costs, answers_vary(swept, rows)),
            f"cheapest of {len(passed)} settings that pass {test}",
            risk=goal,
        )
    # Without a single loss the p-value is (1 − α)^examples.
    needed = math.ceil(math.log(share_of_delta) / math.log1p(-goal.risk))
    if examples < needed:
        advice = (
            f"even a setting without a single loss needs {needed} examples to show this: raise "
            "--calibration_fraction, allow a higher risk or delta, or test fewer --rules"
        )
    else:
        advice = "the deepest setting of the grid already fails: start --grid from deeper settings"
    return Choice(None, f"no setting passes {test}; {advice}")
