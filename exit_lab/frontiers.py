"""What each contender can do at a cost: chosen on some examples, measured on the others.

A contender is a rule with all its settings, or truncation: everyone stops at one layer. The best
settings of a contender under each cost are chosen on the calibration part. Their metric and cost
are those of the report part, so that no number profits from having been chosen. Intervals are 95%
percentile intervals of a bootstrap that draws examples, and models where there are several. All
contenders share the draws, so that differences are paired.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from evaluation.modes.base import describe
from exit_lab.choice import TOLERANCE, Parts, bootstrap_weights, interval
from exit_lab.sweep import TRUNCATION, Sweep
from exit_lab.tables import frontier

FULL_DEPTH = "full depth"  # like TRUNCATION, a contender that is no rule


class Estimate(NamedTuple):
    """A number and its 95% interval."""

    value: float
    low: float
    high: float


class Draws(NamedTuple):
    """A bootstrap: how often it draws each example, and which share each model has."""

    examples: np.ndarray  # (draws, examples)
    models: np.ndarray  # (draws, models), rows sum to 1


def make_draws(examples: int, models: int, draws: int, seed: int) -> Draws:
    """A bootstrap of examples, and of models whose shares are spread by √(n/(n−1)).

    Drawn plainly, n models differ from their own mean by (n−1)/n of the variance that others would
    have (Davison and Hinkley 1997, section 2.3): a third too little for three seeds.
    """
    equal = np.full(models, 1 / models)
    shares = np.random.default_rng(seed + 1).multinomial(models, equal, size=draws) / models
    spread = np.sqrt(models / max(1, models - 1))
    return Draws(bootstrap_weights(examples, draws, seed), equal + spread * (shares - equal))


@dataclass(frozen=True)
class Frontier:
    """One model's best settings of a contender, by rising cost.

    settings: their descriptions, (points,).
    exit_layer: of the report part, (points, examples).
    allowed: cost on the calibration part, (points,).
    cost, metric: on the report part, (points,); drawn: the metric in each draw, (points, draws).
    """

    settings: tuple[str, ...]
    exit_layer: np.ndarray
    allowed: np.ndarray
    cost: np.ndarray
    metric: np.ndarray
    drawn: np.ndarray

    def at(self, limit: float) -> int | None:
        """The point to use when a cost of at most `limit` is allowed; None where there is none."""
        point = int((self.allowed <= limit + TOLERANCE).sum()) - 1
        return point if point >= 0 else None

    def steps(self, costs: np.ndarray) -> np.ndarray:
        """The point that answers at each of `costs`, −1 where even the cheapest costs more.

        By the report part's cost. A point that was chosen as dearer never counts as cheaper.
        """
        return np.searchsorted(np.maximum.accumulate(self.cost), costs + TOLERANCE, "right") - 1


def contender(swept: Sweep, name: str) -> tuple[np.ndarray, list[str]]:
    """Exit layers (settings, examples) and descriptions of a contender's settings."""
    if name in (TRUNCATION, FULL_DEPTH):
        first = swept.num_layers - 1 if name == FULL_DEPTH else 0
        names = [f"layer {n}" for n in range(1, swept.num_layers + 1)]
        return swept.truncations[first:], names[first:]
    own = swept.of_rule(name)
    names = [describe(setting, swept.name_key) for setting in swept.settings[own]]
    return swept.exit_layer[own], names


def frontier_of(swept: Sweep, name: str, parts: Parts, weights: np.ndarray) -> Frontier:
    """A contender's frontier on the calibration part, measured on the report part."""
    exits, names = contender(swept, name)
    cost = swept.cost(exits, parts.calibration)
    best = frontier(cost, swept.main_metric(exits, parts.calibration))
    chosen = exits[best]
    return Frontier(
        tuple(names[i] for i in best),
        chosen[:, parts.report],
        cost[best],
        swept.cost(chosen, parts.report),
        swept.main_metric(chosen, parts.report),
        swept.main_metric(chosen, parts.report, weights),
    )


@dataclass(frozen=True)
class Field:
    """All contenders' frontiers, one a model, by name; the models share examples and draws."""

    frontiers: dict[str, list[Frontier]]
    draws: Draws
    layers: int
    parts: Parts
    seed: int

    @property
    def rules(self) -> list[str]:
        """The contenders that are rules."""
        return [name for name in self.frontiers if name not in (TRUNCATION, FULL_DEPTH)]

    def mixed(self, values: Sequence[np.ndarray]) -> np.ndarray:
        """Mean over the models in each draw, of (…, draws) from every model."""
        return np.einsum("m...d,dm->...d", np.stack(values), self.draws.models)

    def estimate(self, values: Sequence[float], drawn: Sequence[np.ndarray]) -> Estimate:
        """Of one number from every model, and its (draws,)."""
        return Estimate(float(np.mean(values)), *interval(self.mixed(drawn)))

    def area(self, name: str) -> tuple[list[float], list[np.ndarray]]:
        """The area under a contender's frontier, of every model, and in each draw.

        It is the mean metric over all costs from one layer to all layers. Where the contender
        cannot be so cheap, truncation answers.
        """
        pairs = zip(self.frontiers[name], self.frontiers[TRUNCATION], strict=True)
        areas = [area_under(own, cheap, self.layers) for own, cheap in pairs]
        return [value for value, _ in areas], [drawn for _, drawn in areas]


def area_under(own: Frontier, cheap: Frontier, layers: int) -> tuple[float, np.ndarray]:
    """The area and its (draws,); `cheap` answers where `own` cannot."""
    ends = (1 / layers, 1.0)
    edges = np.unique(np.r_[ends, own.cost, cheap.cost].clip(*ends))
    widths = np.diff(edges, append=1.0)
    widths = widths / widths.sum() if layers > 1 else np.ones(1)
    point, below = own.steps(edges), cheap.steps(edges)
    metric = np.where(point >= 0, own.metric[point], cheap.metric[below])
    drawn = np.where((point >= 0)[:, None], own.drawn[point], cheap.drawn[below])
    return float(widths @ metric), widths @ drawn


def make_field(sweeps: Sequence[Sweep], parts: Parts, draws: int, seed: int) -> Field:
    """The frontiers of every rule, of truncation and of full depth, over several models."""
    chances = make_draws(len(parts.report), len(sweeps), draws, seed)
    names = [*(grid.rule for grid in sweeps[0].grids), TRUNCATION, FULL_DEPTH]
    frontiers = {
        name: [frontier_of(swept, name, parts, chances.examples) for swept in sweeps]
        for name in names
    }
    return Field(frontiers, chances, sweeps[0].num_layers, parts, seed)
