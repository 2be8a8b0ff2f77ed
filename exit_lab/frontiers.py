"""What each method can do at a cost: chosen on some examples, measured on the others.

A method is a rule with all its settings, or a baseline: truncation stops everyone at one layer, the
coin stops each example at one of two layers, the oracle stops it at its first right one. The best
settings of a method under each cost are chosen on the calibration part. Their metric and cost are
those of the report part, so that no number profits from having been chosen. Intervals are 95%
percentile intervals of a bootstrap that draws examples, and models where there are several. All
methods share the draws, so that differences are paired.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.stats import norm

from evaluation.keys import describe
from exit_lab.choice import TOLERANCE, Parts, bootstrap_weights, interval
from exit_lab.sweep import COIN, FULL_DEPTH, ORACLE, TRUNCATION, Sweep
from exit_lab.tables import concave_hull, frontier

BASELINES = (TRUNCATION, COIN, ORACLE, FULL_DEPTH)  # methods that are no rule
# A difference of so many standard errors is found, at the 5% level, by 4 of 5 studies like this.
MDE_Z = norm.ppf(0.975) + norm.ppf(0.8)


class Estimate(NamedTuple):
    """A number, its 95% interval, and its standard error."""

    value: float
    low: float
    high: float
    error: float

    @property
    def clear(self) -> bool:
        """Does the interval leave out 0, by more than rounding?"""
        return self.low > TOLERANCE or self.high < -TOLERANCE

    @property
    def min_detectable(self) -> float:
        """The smallest true value that 4 of 5 such studies would tell from 0."""
        return MDE_Z * self.error


class Point(NamedTuple):
    """A method at a cost, on the report part of one model's examples; no cost for an area."""

    settings: str
    cost: float | None
    metric: float
    drawn: np.ndarray  # the metric in each draw, (draws,)


class Bootstrap(NamedTuple):
    """How often each draw takes each example, and which share each model has."""

    examples: np.ndarray  # (draws, examples)
    models: np.ndarray  # (draws, models), rows sum to 1


def make_bootstrap(examples: int, models: int, draws: int, seed: int) -> Bootstrap:
    """Draw examples, and models whose shares are spread by √(n/(n−1)).

    Drawn plainly, n models differ from their own mean by (n−1)/n of the variance that others would
    have (Davison and Hinkley 1997, section 2.3): a third too little for three seeds.
    """
    equal = np.full(models, 1 / models)
    shares = np.random.default_rng(seed + 1).multinomial(models, equal, size=draws) / models
    spread = np.sqrt(models / max(1, models - 1))
    return Bootstrap(bootstrap_weights(examples, draws, seed), equal + spread * (shares - equal))


@dataclass(frozen=True)
class Frontier:
    """One model's best settings of a method, by rising cost.

    settings: their descriptions, (points,).
    exit_layer: of the report part, (points, examples).
    allowed: the cost that they were chosen by, (points,).
    cost, metric: on the report part, (points,); drawn: the metric in each draw, (points, draws).
    mixes: does a coin between two settings give the costs between them?
    """

    settings: tuple[str, ...]
    exit_layer: np.ndarray
    allowed: np.ndarray
    cost: np.ndarray
    metric: np.ndarray
    drawn: np.ndarray
    mixes: bool = False

    def positions(self, chosen_by: np.ndarray, costs: np.ndarray) -> np.ndarray:
        """The setting that answers at each cost; −1 where even the cheapest costs more.

        2.3 is a coin's: setting 2 for 0.7 of the examples, setting 3 for the other 0.3.
        """
        found = np.searchsorted(chosen_by, costs + TOLERANCE, "right") - 1.0
        if self.mixes:
            between = np.interp(costs, chosen_by, np.arange(len(chosen_by)))
            found = np.where(found < 0, found, np.maximum(found, between))
        return found

    def index(self, limit: float) -> int | None:
        """The setting to use when a cost of at most `limit` is allowed; None where none is."""
        (position,) = self.positions(self.allowed, np.array([limit]))
        return int(position) if position >= 0 else None

    def at(self, limit: float) -> Point | None:
        """What the method does when a cost of at most `limit` is allowed; None if that is too low.

        A mixture costs exactly the limit. Its metric is linear in it: of a metric that is no mean
        over the examples, that of a coin thrown once for all of them.
        """
        positions = self.positions(self.allowed, np.array([limit]))
        if positions[0] < 0:
            return None
        number = int(positions[0])
        two = self.settings[number : number + 1 + (positions[0] > number)]
        cost, metric, drawn = (
            mixed(values, positions)[0] for values in (self.cost, self.metric, self.drawn)
        )
        return Point(" or ".join(two), float(cost), float(metric), drawn)

    def along(self, costs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Is there a setting at each cost, its metric, and that in each draw: (costs, draws).

        By the report part's cost. A setting that was chosen as dearer never counts as cheaper.
        """
        positions = self.positions(np.maximum.accumulate(self.cost), costs)
        return positions >= 0, mixed(self.metric, positions), mixed(self.drawn, positions)


def mixed(values: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Values (settings, …) at positions between the settings: (positions, …)."""
    first = positions.astype(int).clip(0)
    share = (positions - first).clip(0).reshape(-1, *[1] * (values.ndim - 1))
    return (1 - share) * values[first] + share * values[(first + 1).clip(max=len(values) - 1)]


def method_settings(swept: Sweep, name: str) -> tuple[np.ndarray, list[str]]:
    """Exit layers (settings, examples) and descriptions of a method's settings."""
    layers = [f"layer {n}" for n in range(1, swept.num_layers + 1)]
    if name == FULL_DEPTH:
        return swept.truncations[-1:], layers[-1:]
    if name == ORACLE:
        return swept.oracle, [f"oracle to {layer}" for layer in layers]
    if name in (TRUNCATION, COIN):
        return swept.truncations, layers
    own = swept.of_rule(name)
    names = [describe(setting, swept.name_key) for setting in swept.settings[own]]
    return swept.exit_layer[own], names


def frontier_of(swept: Sweep, name: str, parts: Parts, weights: np.ndarray) -> Frontier:
    """A method's frontier on the calibration part, measured on the report part."""
    exits, names = method_settings(swept, name)
    mixes = name in (COIN, ORACLE)
    rows = parts.report if name == ORACLE else parts.calibration  # the oracle knows every label
    cost, metric = swept.cost(exits, rows), swept.main_metric(exits, rows)
    best = concave_hull(cost, metric) if mixes else frontier(cost, metric)
    chosen = exits[best]
    return Frontier(
        tuple(names[i] for i in best),
        chosen[:, parts.report],
        cost[best],
        swept.cost(chosen, parts.report),
        swept.main_metric(chosen, parts.report),
        swept.main_metric(chosen, parts.report, weights),
        mixes,
    )


@dataclass(frozen=True)
class FrontierSet:
    """All methods' frontiers, one a model, by name; the models share examples and draws."""

    frontiers: dict[str, list[Frontier]]
    bootstrap: Bootstrap
    layers: int
    parts: Parts
    seed: int

    @property
    def rules(self) -> list[str]:
        """The methods that are no baselines."""
        return [name for name in self.frontiers if name not in BASELINES]

    def at(self, name: str, limits: float | Sequence[float]) -> list[Point] | None:
        """A method's points, one a model, at a cost limit or at one a model; None without any."""
        limits = np.broadcast_to(limits, len(self.frontiers[name])).tolist()
        points = [
            front.at(limit) for front, limit in zip(self.frontiers[name], limits, strict=True)
        ]
        return None if None in points else points

    def area(self, name: str) -> list[Point]:
        """The mean metric over all costs from one layer to all layers, of every model.

        Where a rule cannot be so cheap, truncation answers.
        """
        cheap = self.frontiers.get(TRUNCATION, self.frontiers[name])
        pairs = zip(self.frontiers[name], cheap, strict=True)
        areas = [area_under(own, other, self.layers) for own, other in pairs]
        return [Point("", None, value, drawn) for value, drawn in areas]

    def mean_over_models(self, values: Sequence[np.ndarray]) -> np.ndarray:
        """Mean over the models in each draw, of (…, draws) from every model."""
        return np.einsum("m...d,dm->...d", np.stack(values), self.bootstrap.models)

    def estimate(self, points: Sequence[Point], less: Sequence[Point] | None = None) -> Estimate:
        """The mean metric of points, one a model; with `less`, the paired difference to these."""
        value, drawn = self.mean_metric(points, less)
        return Estimate(value, *interval(drawn), float(drawn.std()))

    def mean_metric(
        self, points: Sequence[Point], less: Sequence[Point] | None
    ) -> tuple[float, np.ndarray]:
        values, drawn = [point.metric for point in points], [point.drawn for point in points]
        if less:
            values = [value - other.metric for value, other in zip(values, less, strict=True)]
            drawn = [own - other.drawn for own, other in zip(drawn, less, strict=True)]
        return float(np.mean(values)), self.mean_over_models(drawn)

    def efficiency(self, points: Sequence[Point]) -> Estimate | None:
        """Exit efficiency η = (rule − coin) / (oracle − coin) at the points' own costs.

        1: every example exits where it should; 0: a coin would do. None where the oracle is no
        better than the coin.
        """
        costs = [point.cost for point in points]
        coin, oracle = self.at(COIN, costs), self.at(ORACLE, costs)
        if coin is None or oracle is None:
            return None
        (gain, gains), (room, rooms) = (self.mean_metric(p, coin) for p in (points, oracle))
        if room <= TOLERANCE:
            return None
        drawn = gains / np.where(rooms > TOLERANCE, rooms, np.nan)
        low, high = np.nanquantile(drawn, (0.025, 0.975))
        return Estimate(gain / room, float(low), float(high), float(np.nanstd(drawn)))


def area_under(own: Frontier, cheap: Frontier, layers: int) -> tuple[float, np.ndarray]:
    """The mean metric over all costs and its (draws,); `cheap` answers where `own` cannot."""
    ends = (1 / layers, 1.0)
    edges = np.unique(np.r_[ends, own.cost, cheap.cost].clip(*ends))
    widths = np.diff(edges, append=1.0)
    if own.mixes:  # straight lines between the edges, not steps
        widths = (widths + np.r_[0, widths[:-1]]) / 2
    widths = widths / widths.sum() if layers > 1 else np.ones(1)
    there, metric, drawn = own.along(edges)
    _, cheap_metric, cheap_drawn = cheap.along(edges)
    metric = np.where(there, metric, cheap_metric)
    return float(widths @ metric), widths @ np.where(there[:, None], drawn, cheap_drawn)


def frontier_set(
    methods: Mapping[str, tuple[Sequence[Sweep], str]], parts: Parts, draws: int, seed: int
) -> FrontierSet:
    """The frontiers of methods, with the same draws of examples and models.

    methods: a method's name -> the sweep of each model, and the name of a rule of theirs or of a
    baseline.
    """
    sweeps, _ = next(iter(methods.values()))
    bootstrap = make_bootstrap(len(parts.report), len(sweeps), draws, seed)
    frontiers = {
        name: [frontier_of(swept, rule, parts, bootstrap.examples) for swept in models]
        for name, (models, rule) in methods.items()
    }
    return FrontierSet(frontiers, bootstrap, sweeps[0].num_layers, parts, seed)


def rules_and_baselines(
    sweeps: Sequence[Sweep], parts: Parts, draws: int, seed: int
) -> FrontierSet:
    """The frontiers of every rule and every baseline, over several models."""
    names = [*(grid.rule for grid in sweeps[0].grids), *BASELINES]
    return frontier_set({name: (sweeps, name) for name in names}, parts, draws, seed)
