"""The best settings of each method, by cost: chosen on some examples, measured on the others.

A method is a rule with all its settings, or a baseline: truncation stops all examples at one layer,
the random mixture each at one of two layers by chance, the oracle each at its first right one. The
best settings under each cost are chosen on the calibration part; their metric and cost are those of
the held-out part. Intervals are 95% percentile intervals of a bootstrap that draws examples. All
methods share the resamples, so that differences are paired.

A metric is an array (…, 1 + resamples): its value first, then that in each resample.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evaluation.exit_metrics import bootstrap_weights
from evaluation.frontier import concave_hull, frontier
from evaluation.sweep import BASELINES, ORACLE, RANDOM_MIXTURE, TRUNCATION, Sweep
from exit_lab.choice import TOLERANCE, Parts
from exit_lab.estimates import Estimate, estimate


@dataclass(frozen=True)
class Mixture:
    """Two settings of a frontier, of which each example gets one at random.

    A single setting is a mixture with itself.
    """

    first: int  # their places on the frontier
    second: int
    share: float = 0.0  # of the examples that get the second

    def of(self, values: np.ndarray) -> np.ndarray:
        """Return the mean value under the mixture, (…), of values (settings, …)."""
        return (1 - self.share) * values[self.first] + self.share * values[self.second]


def mixture_within(costs: np.ndarray, limit: float, mixes: bool) -> Mixture | None:
    """Find what a method does under a cost limit; None where its cheapest setting costs more.

    Args:
        costs: of the settings on its frontier, rising, (settings,).
        mixes: may the method mix the last setting within the limit with the next one, so that the
            mean cost is the limit?
    """
    count = int(np.searchsorted(costs, limit + TOLERANCE, "right"))  # settings within the limit
    if count == 0:
        return None
    last_within = count - 1
    # A limit between two costs has a place such as 2.3: place 3 for 0.3 of the examples.
    place = float(np.interp(limit, costs, np.arange(len(costs))))
    share = place - last_within
    if not mixes or share <= 0:
        return Mixture(last_within, last_within)
    return Mixture(last_within, last_within + 1, share)


@dataclass(frozen=True)
class Point:
    """A method at a cost, on the held-out part."""

    settings: Sequence[int]  # numbers among the method's settings: one, or the two of a mixture
    cost: float
    metric: np.ndarray  # (1 + resamples,)


@dataclass(frozen=True)
class Frontier:
    """A method's best settings, by rising cost."""

    settings: np.ndarray  # their numbers among the method's settings, (points,)
    limit_cost: np.ndarray  # what a limit is compared with: the cost where they were chosen
    cost: np.ndarray  # on the held-out part, (points,)
    metric: np.ndarray  # on the held-out part, (points, 1 + resamples)
    mixes: bool  # may two settings be mixed, for the costs between them?

    def within(self, limit: float) -> Point | None:
        """Return the best point at or under a cost limit; None where even the cheapest costs more.

        A mixture costs exactly the limit. Its metric is linear in its share: for a metric that is
        not a mean over the examples, this means one draw of the setting for all of them.
        """
        mixture = mixture_within(self.limit_cost, limit, self.mixes)
        if mixture is None:
            return None
        places = sorted({mixture.first, mixture.second})
        return Point(
            settings=self.settings[places].tolist(),
            cost=float(mixture.of(self.cost)),
            metric=mixture.of(self.metric),
        )


def frontier_of(swept: Sweep, name: str, parts: Parts, resample_weights: np.ndarray) -> Frontier:
    """Choose a method's frontier on the calibration part, and measure it on the held-out part.

    resample_weights: how often each resample has each example, (1 + resamples, examples).
    """
    exits = swept.exits_of(name)
    # The oracle knows every label: there is nothing to choose for it that it does not know.
    rows = parts.report if name == ORACLE else parts.calibration
    cost = swept.cost(exits, rows)
    metric = swept.main_metric(exits, rows)
    mixes = name in (RANDOM_MIXTURE, ORACLE)
    settings = concave_hull(cost, metric) if mixes else frontier(cost, metric)
    return Frontier(
        settings=settings,
        limit_cost=cost[settings],
        cost=swept.cost(exits[settings], parts.report),
        metric=swept.main_metric(exits[settings], parts.report, resample_weights),
        mixes=mixes,
    )


@dataclass(frozen=True)
class FrontierSet:
    """All methods' frontiers of a model, by name; they share examples and resamples."""

    frontiers: dict[str, Frontier]
    resample_weights: np.ndarray  # how often each resample has each example, as `frontier_of`
    layers: int
    parts: Parts

    @property
    def rules(self) -> list[str]:
        """The methods that are not baselines."""
        return [name for name in self.frontiers if name not in BASELINES]

    def at(self, name: str, limit: float) -> Point:
        """Return a method's best point at or under a cost limit.

        Raises ValueError where even the method's cheapest setting costs more.
        """
        point = self.frontiers[name].within(limit)
        if point is None:
            raise ValueError(f"{name} has no setting at a cost of at most {limit}")
        return point

    def gain_over_mixture(self, point: Point) -> Estimate:
        """Return the point's metric less that of the random mixture at the same cost, paired."""
        return estimate(point.metric - self.at(RANDOM_MIXTURE, point.cost).metric)

    def efficiency(self, point: Point) -> Estimate | None:
        """Return the exit efficiency η = (rule − mixture) / (oracle − mixture) at a point's cost.

        1: every example exits where it should; 0: the random mixture is as good. None where the
        oracle is not better than the random mixture.
        """
        mixture = self.at(RANDOM_MIXTURE, point.cost).metric
        oracle = self.at(ORACLE, point.cost).metric
        is_defined = oracle - mixture > TOLERANCE  # (1 + resamples,)
        if not is_defined[0]:
            return None
        gain = (point.metric - mixture)[is_defined]
        return estimate(gain / (oracle - mixture)[is_defined])

    def elue_score(self, name: str) -> Estimate:
        """Return ELUE's score (Liu et al., 2022), with truncation in ElasticBERT's place.

        The mean, over the method's best settings, of the metric less that of the curve through
        truncation's best layers at the same cost.
        """
        front, layers = self.frontiers[name], self.frontiers[TRUNCATION]
        gains = []
        for cost, metric in zip(front.cost, front.metric, strict=True):
            between_layers = mixture_within(layers.cost, float(cost), mixes=True)
            if between_layers is not None:
                gains.append(metric - between_layers.of(layers.metric))
        return estimate(np.mean(gains, axis=0))


def frontier_set(
    swept: Sweep, parts: Parts, resamples: int, seed: int, names: Sequence[str] = ()
) -> FrontierSet:
    """Find the frontiers of the methods `names`, by default of every rule and baseline.

    seed: of the resamples.
    """
    resample_weights = bootstrap_weights(len(parts.report), resamples, seed)
    names = names or [*swept.grids, *BASELINES]
    frontiers = {name: frontier_of(swept, name, parts, resample_weights) for name in names}
    return FrontierSet(frontiers, resample_weights, swept.num_layers, parts)
