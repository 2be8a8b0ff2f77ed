"""Rules and baselines at equal costs: chosen on some examples, measured on the others.

A method is a rule with all its settings, or a baseline: truncation stops everyone at one layer, the
coin stops each example at one of two layers, the oracle stops it at its first right one. The best
settings of a method under each cost are chosen on the calibration part. Their metric and cost are
those of the report part, so that no number profits from having been chosen. Intervals are 95%
percentile intervals of a bootstrap that draws examples, and models where there are several. All
methods share the draws, so that differences are paired.

A metric is an array (…, 1 + draws): its value first, then that in each draw.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from exit_lab.choice import TOLERANCE, Parts
from exit_lab.metrics import bootstrap_weights, interval
from exit_lab.sweep import COIN, FULL_DEPTH, ORACLE, TRUNCATION, Sweep
from exit_lab.tables import concave_hull, frontier
from glue.tables import as_csv
from glue.tasks import primary_metric
from modeling.errors import UserError
from modeling.exit_settings import describe
from utils.files import write_text
from utils.markdown import markdown_table

BASELINES = (TRUNCATION, COIN, ORACLE, FULL_DEPTH)  # methods that are no rule
DRAWS = 1000  # of the intervals
MOST_LIMITS = 6  # columns of a table


class Bootstrap(NamedTuple):
    """How often each draw takes each example, and which share each model has."""

    examples: np.ndarray  # (1 + draws, examples)
    models: np.ndarray  # (1 + draws, models), rows sum to 1


def make_bootstrap(examples: int, models: int, draws: int, seed: int) -> Bootstrap:
    """Draw examples, and models whose shares are spread by √(n/(n−1)).

    Drawn plainly, n models differ from their own mean by (n−1)/n of the variance that others would
    have (Davison and Hinkley 1997, section 2.3): a third too little for three seeds.
    """
    shares = bootstrap_weights(models, draws, seed + 1) / models
    equal, spread = shares[0], np.sqrt(models / max(1, models - 1))
    return Bootstrap(bootstrap_weights(examples, draws, seed), equal + spread * (shares - equal))


@dataclass(frozen=True)
class Frontier:
    """One model's best settings of a method, by rising cost.

    settings: their descriptions, (points,).
    exit_layer: of the report part, (points, examples).
    allowed: the cost that they were chosen by, (points,).
    cost, metric: on the report part, (points,) and (points, 1 + draws).
    mixes: does a coin between two settings give the costs between them?
    """

    settings: tuple[str, ...]
    exit_layer: np.ndarray
    allowed: np.ndarray
    cost: np.ndarray
    metric: np.ndarray
    mixes: bool = False

    def positions(self, costs: np.ndarray | float, by: np.ndarray | None = None) -> np.ndarray:
        """The setting that answers at each cost; −1 where even the cheapest costs more.

        2.3 is a coin's: setting 2 for 0.7 of the examples, setting 3 for the other 0.3.
        by: what the settings cost (default: what they were chosen by).
        """
        by = self.allowed if by is None else by
        found = np.searchsorted(by, np.asarray(costs) + TOLERANCE, "right") - 1.0
        if self.mixes:
            between = np.interp(costs, by, np.arange(len(by)))
            found = np.where(found < 0, found, np.maximum(found, between))
        return found

    def names(self, position: float) -> str:
        """The one setting at a position, or the two of a mixture."""
        first = int(position)
        return " or ".join(self.settings[first : first + 1 + (position > first)])

    def along(self, costs: np.ndarray) -> np.ndarray:
        """The metric at costs of the report part, none below the cheapest: (costs, 1 + draws).

        A setting that was chosen as dearer never counts as cheaper.
        """
        return mixed(self.metric, self.positions(costs, np.maximum.accumulate(self.cost)))


def mixed(values: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Values (settings, …) at positions between the settings: (positions, …)."""
    first = np.asarray(positions).astype(int)
    share = np.reshape(positions - first, first.shape + (1,) * (values.ndim - 1))
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
    return Frontier(
        tuple(names[i] for i in best),
        exits[best][:, parts.report],
        cost[best],
        swept.cost(exits[best], parts.report),
        swept.main_metric(exits[best], parts.report, weights),
        mixes,
    )


class Point(NamedTuple):
    """A method at a cost, on the report part.

    settings, cost: of each model. metric: the mean over the models, (1 + draws,).
    """

    settings: tuple[str, ...]
    cost: np.ndarray
    metric: np.ndarray


class Estimate(NamedTuple):
    """A number and its 95% interval."""

    value: float
    low: float
    high: float

    @property
    def clear(self) -> bool:
        """Does the interval leave out 0, by more than rounding?"""
        return self.low > TOLERANCE or self.high < -TOLERANCE


def estimate(metric: np.ndarray) -> Estimate:
    """The value of a metric (1 + draws,), and its interval."""
    return Estimate(float(metric[0]), *map(float, interval(metric)))


@dataclass(frozen=True)
class FrontierSet:
    """All methods' frontiers, one a model, by name; the models share examples and draws."""

    frontiers: dict[str, list[Frontier]]
    bootstrap: Bootstrap
    layers: int
    parts: Parts

    @property
    def rules(self) -> list[str]:
        """The methods that are no baselines."""
        return [name for name in self.frontiers if name not in BASELINES]

    def mean_over_models(self, metrics: Sequence[np.ndarray]) -> np.ndarray:
        """The mean of each model's metric, (…, 1 + draws)."""
        return np.einsum("m...d,dm->...d", np.stack(metrics), self.bootstrap.models)

    def at(self, name: str, limits: float | np.ndarray) -> Point | None:
        """What a method does at a cost limit, or at one a model; None if a model's is too low.

        A mixture costs exactly the limit. Its metric is linear in it: of a metric that is no mean
        over the examples, that of a coin thrown once for all of them.
        """
        fronts = self.frontiers[name]
        limits = np.broadcast_to(limits, len(fronts))
        places = [front.positions(limit) for front, limit in zip(fronts, limits, strict=True)]
        if min(places) < 0:
            return None
        pairs = list(zip(fronts, places, strict=True))
        return Point(
            tuple(front.names(place) for front, place in pairs),
            np.array([mixed(front.cost, place) for front, place in pairs]),
            self.mean_over_models([mixed(front.metric, place) for front, place in pairs]),
        )

    def efficiency(self, point: Point) -> Estimate | None:
        """Exit efficiency η = (rule − coin) / (oracle − coin) at the point's own costs.

        1: every example exits where it should; 0: a coin would do. None where the oracle is no
        better than the coin.
        """
        coin, oracle = self.at(COIN, point.cost).metric, self.at(ORACLE, point.cost).metric
        defined = oracle - coin > TOLERANCE
        if not defined[0]:
            return None
        return estimate(((point.metric - coin)[defined]) / (oracle - coin)[defined])


def frontier_set(
    sweeps: Sequence[Sweep], parts: Parts, draws: int, seed: int, names: Sequence[str] = ()
) -> FrontierSet:
    """The frontiers of `names` (default: every rule and baseline), over several models."""
    names = names or [*(grid.rule for grid in sweeps[0].grids), *BASELINES]
    bootstrap = make_bootstrap(len(parts.report), len(sweeps), draws, seed)
    frontiers = {
        name: [frontier_of(swept, name, parts, bootstrap.examples) for swept in sweeps]
        for name in names
    }
    return FrontierSet(frontiers, bootstrap, sweeps[0].num_layers, parts)


# As tables.


def limits_of(layers: int) -> list[float]:
    """The costs to compare at: of truncation after some layers, closer where costs are low."""
    last = max(1, layers - 1)
    chosen = np.unique(np.geomspace(1, last, MOST_LIMITS).round().astype(int))
    return [n / layers for n in chosen.tolist()]


class Cell(NamedTuple):
    """A method at a cost limit: means over the models.

    over_coin: the metric less that of the coin at the same cost; over_full_depth: less full
    depth's; both paired. efficiency: η, see `FrontierSet.efficiency`.
    cost: on the report part. settings: of each model.
    """

    metric: Estimate
    over_coin: Estimate
    over_full_depth: Estimate
    efficiency: Estimate | None
    cost: float
    settings: tuple[str, ...]

    def row(self) -> dict[str, Any]:
        """The cell as a row of compare.csv."""
        row = dict(zip(("metric", "low", "high"), self.metric, strict=True))
        for name in ("over_coin", "over_full_depth", "efficiency"):
            columns = (name, f"{name}_low", f"{name}_high")
            row |= dict(zip(columns, getattr(self, name) or ("", "", ""), strict=True))
        return {**row, "cost": self.cost, "settings": "; ".join(self.settings)}


Cells = dict[str, list[Cell | None]]


def compare(found: FrontierSet, limits: Sequence[float]) -> Cells:
    """Each method's cells at the cost limits; None where it has none."""
    cells = {
        name: [cell_at(found, name, limit) for limit in limits]
        for name in found.frontiers
        if name != FULL_DEPTH
    }
    return {**cells, FULL_DEPTH: [cell_at(found, FULL_DEPTH, 1.0)] * len(limits)}


def cell_at(found: FrontierSet, name: str, limit: float) -> Cell | None:
    """A method's best setting at or under a cost limit; None where a model has none."""
    point = found.at(name, limit)
    if point is None:
        return None
    return Cell(
        estimate(point.metric),
        estimate(point.metric - found.at(COIN, point.cost).metric),
        estimate(point.metric - found.at(FULL_DEPTH, 1.0).metric),
        found.efficiency(point),
        float(point.cost.mean()),
        point.settings,
    )


def metric_at_cost(cell: Cell | None) -> str:
    """ "83.1 [81.0, 85.2] at 0.42": 100 × the metric, its interval, the cost."""
    if cell is None:
        return "–"
    value, low, high = (100 * number for number in cell.metric)
    return f"{value:.1f} [{low:.1f}, {high:.1f}] at {cell.cost:.2f}"


def difference(found: Estimate | None) -> str:
    """In points; bold where the interval leaves out 0."""
    if found is None:
        return "–"
    value, low, high = (100 * number for number in found)
    text = f"{value:+.1f} [{low:+.1f}, {high:+.1f}]"
    return f"**{text}**" if found.clear else text


def share(found: Estimate | None) -> str:
    return f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]" if found else "–"


def comparison(sweeps: Sequence[Sweep], found: FrontierSet, cells: Cells) -> str:
    """The tables of compare.md: the metric, its differences to coin and full depth, efficiency."""
    several, task = len(sweeps) > 1, sweeps[0].task
    models = f"mean of {len(sweeps)} models, " if several else ""
    drawn = "models and examples" if several else "examples"
    chosen, reported = map(len, found.parts)
    shown = [name for name in cells if name not in (COIN, ORACLE, FULL_DEPTH)]
    columns = ["", *(f"cost ≤ {limit:.2f}" for limit in limits_of(found.layers))]

    def table(names: Sequence[str], text: Any) -> str:
        return markdown_table(columns, ([name, *map(text, cells[name])] for name in names))

    return "\n\n".join(
        [
            f"{task.name}, 100 × {primary_metric(task)}: {models}best setting "
            f"at or under each cost, chosen on {chosen} examples, reported on the other {reported} "
            f"[95% interval, drawing {drawn}] at its cost there. "
            f"{TRUNCATION}: everyone stops at one layer. {COIN}: at one of two layers, by chance, "
            f"for exactly the cost. {ORACLE}: each example stops at its first right layer, as far "
            "as the cost allows.",
            table(list(cells), metric_at_cost),
            f"Less the {COIN} at the same cost, in points (paired; bold: the interval leaves out "
            "0):",
            table(shown, lambda cell: difference(cell and cell.over_coin)),
            "Less full depth:",
            table(shown, lambda cell: difference(cell and cell.over_full_depth)),
            f"Exit efficiency: what a rule gains over the {COIN}, as a share of what the {ORACLE} "
            "gains at the same cost:",
            table(shown, lambda cell: share(cell and cell.efficiency)),
        ]
    )


def write_comparison(sweeps: Sequence[Sweep], parts: Parts, seed: int, output: Path) -> FrontierSet:
    """Print the comparison and write it as compare.md; with the settings as compare.csv."""
    if any(not np.array_equal(swept.labels, sweeps[0].labels) for swept in sweeps):
        raise UserError("the models were recorded on different examples; give all the same data")
    found = frontier_set(sweeps, parts, DRAWS, seed)
    limits = limits_of(found.layers)
    cells = compare(found, limits)
    text = comparison(sweeps, found, cells) + "\n"
    rows = [
        {"rule": name, "max_cost": limit, **cell.row()}
        for name, row in cells.items()
        for limit, cell in zip(limits, row, strict=True)
        if cell
    ]
    write_text(output / "compare.md", text)
    write_text(output / "compare.csv", as_csv(rows))
    print(f"\n{text}")
    return found


# What a choice came to, on the examples that did not choose.


def choice_table(swept: Sweep, setting: int, parts: Parts, seed: int) -> str:
    """Metrics, drop from full depth and cost of a setting on both parts, as Markdown."""
    chosen, full = swept.exit_layer[setting][None], swept.truncations[-1:]

    def metrics_on(rows: np.ndarray, draws: int) -> dict[str, np.ndarray]:
        weights = bootstrap_weights(len(rows), draws, seed)
        early, deep = (swept.metrics(exits, rows, weights) for exits in (chosen, full))
        found = {}
        for name in early:
            found[name] = early[name][0]
            found[f"{name}, drop from full depth"] = deep[name][0] - early[name][0]
        return found

    calibration, report = metrics_on(parts.calibration, 0), metrics_on(parts.report, DRAWS)
    rows = [
        (name, f"{calibration[name][0]:.4f}", f"{value:.4f}", f"{low:.4f} … {high:.4f}")
        for name, (value, low, high) in ((name, estimate(drawn)) for name, drawn in report.items())
    ]
    costs = [swept.cost(chosen, part)[0] for part in parts]
    rows.append(("computation cost", *(f"{cost:.4f}" for cost in costs), ""))
    if swept.seconds is not None:
        slowest = [swept.p95_ms(chosen, part)[0] for part in parts]
        rows.append(("p95 latency, ms (recorded)", *(f"{ms:.2f}" for ms in slowest), ""))
    heads = [f"{name} ({len(part)})" for name, part in zip(Parts._fields, parts, strict=True)]
    return markdown_table(["", *heads, "95% interval"], rows)


def against_coin(swept: Sweep, setting: int, parts: Parts, seed: int) -> str:
    """Say whether a setting beats a coin between two layers that costs as much as it does.

    Compared on the report part, paired; the coin's layers are chosen on the calibration part.
    """
    found = frontier_set([swept], parts, DRAWS, seed, (COIN, ORACLE))
    exits, name = swept.exit_layer[setting][None], primary_metric(swept.task)
    (metric,) = swept.main_metric(exits, parts.report, found.bootstrap.examples)
    here = Point((), swept.cost(exits, parts.report), metric)
    coin = found.at(COIN, here.cost)
    over, efficiency = estimate(metric - coin.metric), found.efficiency(here)
    verdict = "Better than" if over.low > TOLERANCE else "Not shown to be better than"
    return (
        f"{verdict} a coin that stops each example at {coin.settings[0]} for the same cost, "
        f"{coin.cost[0]:.4f}:\n"
        f"  {name} {over.value:+.4f} [{over.low:+.4f}, {over.high:+.4f}]\n"
        f"  exit efficiency, its gain over the coin as a share of the oracle's: {share(efficiency)}"
    )
