"""Methods that trained for themselves, each with models of several seeds, against one of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from scipy.stats import norm

from exit_lab.choice import Parts, interval
from exit_lab.compare import difference
from exit_lab.frontiers import FULL_DEPTH, Estimate, Field, frontier_of, make_draws
from exit_lab.metrics import taken
from exit_lab.sweep import Sweep

# A difference of so many standard errors is found, at the 5% level, by 4 of 5 studies like this.
SEEN = norm.ppf(0.975) + norm.ppf(0.8)


@dataclass(frozen=True)
class LearnedDepths(Sweep):
    """Models whose depth is learned, so that nothing of it is swept: each takes a layer's place."""

    costs: np.ndarray = field(kw_only=True)  # (models, examples), as shares of full depth

    def cost(self, exit_layer: np.ndarray, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        return taken(self.costs, exit_layer)[:, rows].mean(1, dtype=float)


class MethodSweeps(NamedTuple):
    """A rule, truncation or full depth, over the models that one method trained."""

    sweeps: Sequence[Sweep]  # of each seed's model
    rule: str


def field_of(contenders: Mapping[str, MethodSweeps], parts: Parts, draws: int, seed: int) -> Field:
    """All contenders' frontiers, with the same draws of examples and seeds."""
    sweeps = next(iter(contenders.values())).sweeps
    chances = make_draws(len(parts.report), len(sweeps), draws, seed)
    frontiers = {
        name: [frontier_of(swept, rule, parts, chances.examples) for swept in models]
        for name, (models, rule) in contenders.items()
    }
    return Field(frontiers, chances, sweeps[0].num_layers, parts, seed)


class Difference(NamedTuple):
    """A contender's metric less the reference's, of the same seeds, examples and cost limit."""

    value: float
    low: float  # 95% interval
    high: float
    visible: float  # the smallest true difference that 4 of 5 such studies would have found

    @property
    def clear(self) -> bool:
        """Does the interval leave out 0?"""
        return not self.low <= 0 <= self.high

    @property
    def estimate(self) -> Estimate:
        return Estimate(*self[:3])


Differences = dict[str, list[Difference | None]]  # by contender: one for each limit


def differences(found: Field, reference: str, limits: Sequence[float]) -> Differences:
    """Every other contender against the reference; None where one of the two has no setting."""
    return {
        name: [difference_at(found, name, reference, limit) for limit in limits]
        for name in found.frontiers
        if name != reference
    }


def difference_at(found: Field, name: str, reference: str, limit: float) -> Difference | None:
    """Full depth answers at every limit, at its own cost."""
    values, drawn, own_limit = [], [], 1.0 if name == FULL_DEPTH else limit
    for own, other in zip(found.frontiers[name], found.frontiers[reference], strict=True):
        points = own.at(own_limit), other.at(limit)
        if None in points:
            return None
        values.append(own.metric[points[0]] - other.metric[points[1]])
        drawn.append(own.drawn[points[0]] - other.drawn[points[1]])
    mixed = found.mixed(drawn)
    return Difference(float(np.mean(values)), *interval(mixed), float(SEEN * mixed.std()))


def curve(found: Field, name: str, limits: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Costs and metrics of a contender's points at or under the limits, means over the seeds."""
    points = set()
    for limit in limits:
        chosen = [(front, front.at(limit)) for front in found.frontiers[name]]
        if all(i is not None for _, i in chosen):
            pairs = [(front.cost[i], front.metric[i]) for front, i in chosen]
            points.add(tuple(np.mean(pairs, 0).tolist()))
    cost, metric = np.array(sorted(points)).reshape(-1, 2).T
    return cost, metric


# Tables.


def difference_table(found: Differences, limits: Sequence[float]) -> str:
    """Markdown: the differences in points, and last how small ones could have been seen."""
    head = [*(f"cost ≤ {limit:.2f}" for limit in limits), "visible from"]
    lines = [f"| | {' | '.join(head)} |", "|---" * (len(head) + 1) + "|"]
    for name, row in found.items():
        cells = [difference(cell and cell.estimate) for cell in row]
        seen = [cell.visible for cell in row if cell]
        visible = f"{100 * max(seen):.1f}" if seen else "–"
        lines.append(f"| {name} | {' | '.join([*cells, visible])} |")
    return "\n".join(lines)
