"""Choosing a setting: under a cost, within a drop, or with a guarantee.

Everything is chosen on one part of the labelled examples and reported on the other.

The guarantee is distribution-free risk control, "Learn then Test" (Angelopoulos, Bates, Candès,
Jordan and Lei, 2021): settings are tested in a fixed order, from the deepest on, each against the
hypothesis that its risk exceeds α. Testing stops at the first that is not rejected, so each test
may spend the whole error budget δ: with probability ≥ 1 − δ over the draw of the calibration
examples, every setting before the stop has a risk of at most α. The order must not depend on these
examples, not even on their texts: it is a walk through the grid from its deepest corner to its most
eager one. Several rules mean several walks, which share δ evenly (Bonferroni).
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import binom

from answers.sweep import Sweep
from elbert_base.errors import UserError
from elbert_base.keys import Key
from glue.metrics import at_exit

TOLERANCE = 1e-9  # of comparisons between sums that are equal on paper


class Parts(NamedTuple):
    """Numbers of the examples that choose, and of those that report."""

    calibration: np.ndarray
    report: np.ndarray


def split(examples: int, fraction: float, seed: int) -> Parts:
    """A random split with `fraction` of the examples for calibration.

    Raises UserError when one part would be empty.
    """
    count = round(examples * fraction) if 0 < fraction < 1 else 0
    if not 0 < count < examples:
        raise UserError(
            f"calibration_fraction = {fraction:g} of {examples} examples leaves "
            f"{count} to choose by and {examples - count} to report on; each needs some"
        )
    order = np.random.default_rng(seed).permutation(examples)
    return Parts(np.sort(order[:count]), np.sort(order[count:]))


def first_allowed(allowed: np.ndarray, *order: np.ndarray) -> int | None:
    """The allowed setting that is least by the first of `order`, then by the next; None of none."""
    ranked = np.lexsort(order[::-1])
    found = ranked[allowed[ranked]]
    return int(found[0]) if len(found) else None


# With a guarantee.


def losses(predictions: np.ndarray, labels: np.ndarray, exit_layer: np.ndarray) -> np.ndarray:
    """1 where full depth is right and the early exit wrong, else 0: (settings, examples).

    Its mean, the risk, is an upper bound of the drop of accuracy, which also credits the examples
    that early exit puts right. The drop's own loss in {-1, 0, 1} has no exact test, and the general
    bounds need several times the examples; this one is a coin, and the binomial test of a coin is
    exact.
    """
    early, full = at_exit(predictions, exit_layer), predictions[-1]
    return ((full == labels) & (early != labels)).astype(float)


def certified(path_losses: np.ndarray, alpha: float, delta: float) -> int:
    """Number of settings of a path, from its start, that have a risk ≤ α with probability ≥ 1 − δ.

    path_losses: (path, examples) of 0 or 1, in the order fixed beforehand. A p-value is the
    probability of at most so many events when each of the examples has probability α. It is valid
    for every risk above α, where few events are rarer still.
    """
    p_values = binom.cdf(path_losses.sum(1), path_losses.shape[1], alpha)
    rejected = p_values <= delta
    return len(rejected) if rejected.all() else int(rejected.argmin())


def fixed_sequence(grid: Mapping[str, Sequence[float]], keys: Mapping[str, Key]) -> list[int]:
    """A walk through a grid, the values of each key, from its deepest corner to its most eager one.

    All keys move from their deepest to their most eager value at once, one step of one key at a
    time as far as their counts allow. It follows from the grid alone.
    """
    lengths = list(map(len, grid.values()))
    steps = max(1, sum(length - 1 for length in lengths))
    walk = []
    for step in range(steps + 1):
        corner = []
        for key, length in zip(grid, lengths, strict=True):
            moved = (2 * step * (length - 1) + steps) // (2 * steps)  # rounded
            corner.append(length - 1 - moved if keys[key].eager_when_low else moved)
        walk.append(int(np.ravel_multi_index(corner, lengths)) if lengths else 0)
    return list(dict.fromkeys(walk))


class Choice(NamedTuple):
    """Outcome of picking: a setting's number, None when none qualifies, and how it was chosen."""

    setting: int | None
    reason: str


def control_risk(
    swept: Sweep, rules: Sequence[str], rows: np.ndarray, goal: Mapping[str, float]
) -> Choice:
    """The cheapest setting of `rules` whose risk is at most α with probability ≥ 1 − δ.

    `rows` are the calibration examples, an independent draw of the data that the model will meet.
    See the module's docstring for the test and `losses` for the risk. Raises UserError for
    scores, which are neither right nor wrong.
    """
    alpha, delta, examples = goal["risk"], goal["delta"], len(rows)
    if swept.task.is_regression or swept.task.multi_label:
        raise UserError(
            "--pick risk needs a task with classes, one an example; pick by max_drop or max_cost"
        )
    share = delta / len(rules)
    tested, passed = 0, []
    predictions, labels = swept.predictions[:, rows], swept.labels[rows]
    keys = swept.config.table.exit_keys
    for rule in rules:
        path = swept.of_rule(rule).start + np.array(fixed_sequence(swept.grids[rule], keys))
        path_losses = losses(predictions, labels, swept.exit_layer[path][:, rows])
        tested += len(path)
        passed += [*path[: certified(path_losses, alpha, share)]]
    reason = (
        f"{len(passed)} of {tested} settings along {len(rules)} fixed "
        f"path{'s' if len(rules) > 1 else ''} ({', '.join(rules)}) have a risk ≤ {alpha:g}, "
        f"together with probability ≥ {1 - delta:g}, by {examples} calibration examples"
    )
    if passed:
        costs = swept.cost(swept.exit_layer[passed], rows)
        return Choice(int(passed[costs.argmin()]), reason)
    needed = math.ceil(math.log(share) / math.log1p(-alpha))
    advice = "the deepest setting of the grid already fails: start --grid from deeper settings"
    if examples < needed:
        advice = (
            f"even a setting without a single loss needs {needed} examples to show this: raise "
            "--calibration_fraction, allow a higher risk or delta, or test fewer --rules"
        )
    return Choice(None, f"{reason}; {advice}")


def choose(
    swept: Sweep, goal: Mapping[str, float], rules: Sequence[str], rows: np.ndarray
) -> Choice:
    """Choose what --pick asks for on the examples `rows`; a guarantee tests only `rules`."""
    if "risk" in goal:
        return control_risk(swept, rules, rows, goal)
    metric, cost = (f(swept.exit_layer, rows) for f in (swept.main_metric, swept.cost))
    ((name, limit),) = goal.items()
    if name == "max_p95_ms":
        slowest = swept.p95_ms(swept.exit_layer, rows)
        return Choice(
            first_allowed(slowest <= limit + TOLERANCE, -metric, slowest),
            f"best setting with 95% of the answers within {limit:g} ms, one text at a time, by the "
            "times of the recorded pass",
        )
    if name == "max_cost":
        chosen = first_allowed(cost <= limit + TOLERANCE, -metric, cost)
        return Choice(chosen, f"best setting at a cost of at most {limit:g}")
    least = swept.main_metric(swept.truncations[-1:], rows)[0] - limit
    chosen = first_allowed(metric >= least - TOLERANCE, cost, -metric)
    return Choice(chosen, f"cheapest setting within {limit:g} of full depth")
