"""Rules compared at equal costs, with the baselines, over several models; a choice's report."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from exit_lab.choice import TOLERANCE, Parts, bootstrap_weights, interval
from exit_lab.frontiers import (
    Estimate,
    FrontierSet,
    Point,
    frontier_set,
    rules_and_baselines,
)
from exit_lab.sweep import COIN, FULL_DEPTH, ORACLE, TRUNCATION, Sweep
from glue.tables import as_csv
from glue.tasks import primary_metric
from modeling.errors import UserError
from utils.files import write_text
from utils.markdown import markdown_table

DRAWS = 1000  # of the intervals
MOST_LIMITS = 6  # columns of a table
AREA = "area"  # the column after the limits


def limits_of(layers: int) -> list[float]:
    """The costs to compare at: of truncation after some layers, closer where costs are low."""
    last = max(1, layers - 1)
    chosen = np.unique(np.geomspace(1, last, MOST_LIMITS).round().astype(int))
    return [n / layers for n in chosen.tolist()]


class Cell(NamedTuple):
    """A method at a cost limit, or the area under its frontier: means over the models.

    over_coin: the metric less that of the coin at the same cost; over_full_depth: less full
    depth's; both paired. efficiency: η, see `FrontierSet.efficiency`.
    cost: on the report part; None for an area. settings: of each model.
    """

    metric: Estimate
    over_coin: Estimate | None
    over_full_depth: Estimate | None = None
    efficiency: Estimate | None = None
    cost: float | None = None
    settings: tuple[str, ...] = ()

    def row(self) -> dict[str, Any]:
        """The cell as a row of compare.csv."""
        row = dict(zip(("metric", "low", "high"), self.metric, strict=False))
        for name in ("over_coin", "over_full_depth", "efficiency"):
            columns = (name, f"{name}_low", f"{name}_high")
            row |= dict(zip(columns, getattr(self, name) or ("", "", ""), strict=False))
        return {**row, "cost": self.cost, "settings": "; ".join(self.settings)}


Cells = dict[str, list[Cell | None]]


def compare(found: FrontierSet, limits: Sequence[float]) -> Cells:
    """Each method's cells at the cost limits, then that of its area; None where it has none."""
    cells = {
        name: [*(cell_at(found, name, limit) for limit in limits), area_cell(found, name)]
        for name in found.frontiers
        if name != FULL_DEPTH
    }
    return {**cells, FULL_DEPTH: [cell_at(found, FULL_DEPTH, 1.0)] * len(limits) + [None]}


def cell_at(found: FrontierSet, name: str, limit: float) -> Cell | None:
    """A method's best setting at or under a cost limit; None where a model has none."""
    points = found.at(name, limit)
    if points is None:
        return None
    costs = [point.cost for point in points]
    coin = found.at(COIN, costs) if COIN in found.frontiers else None
    return Cell(
        found.estimate(points),
        found.estimate(points, coin) if coin else None,
        found.estimate(points, found.at(FULL_DEPTH, 1.0)),
        found.efficiency(points) if ORACLE in found.frontiers else None,
        float(np.mean(costs)),
        tuple(point.settings for point in points),
    )


def area_cell(found: FrontierSet, name: str) -> Cell:
    area = found.area(name)
    coin = found.area(COIN) if COIN in found.frontiers else None
    return Cell(found.estimate(area), found.estimate(area, coin) if coin else None)


# As tables.


def limit_columns(limits: Sequence[float]) -> list[str]:
    return [f"cost ≤ {limit:.2f}" for limit in limits]


def metric_at_cost(cell: Cell | None) -> str:
    """ "83.1 [81.0, 85.2] at 0.42": 100 × the metric, its interval, the cost."""
    if cell is None:
        return "–"
    value, low, high = (100 * number for number in cell.metric[:3])
    at = "" if cell.cost is None else f" at {cell.cost:.2f}"
    return f"{value:.1f} [{low:.1f}, {high:.1f}]{at}"


def difference(found: Estimate | None) -> str:
    """In points; bold where the interval leaves out 0."""
    if found is None:
        return "–"
    value, low, high = (100 * number for number in found[:3])
    text = f"{value:+.1f} [{low:+.1f}, {high:+.1f}]"
    return f"**{text}**" if found.clear else text


def share(found: Estimate | None) -> str:
    return f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]" if found else "–"


def comparison(sweeps: Sequence[Sweep], found: FrontierSet, cells: Cells) -> str:
    """The tables of compare.md: the metric, its differences to coin and full depth, efficiency."""
    limits = limits_of(found.layers)
    several = len(sweeps) > 1
    models = f"mean of {len(sweeps)} models, " if several else ""
    drawn = "models and examples" if several else "examples"
    chosen, reported = map(len, found.parts)
    shown = [name for name in cells if name not in (COIN, ORACLE, FULL_DEPTH)]

    def table(names: Sequence[str], columns: Sequence[str], text: Any) -> str:
        rows = ([name, *map(text, cells[name][: len(columns)])] for name in names)
        return markdown_table(["", *columns], rows)

    columns = limit_columns(limits)
    return "\n\n".join(
        [
            f"{sweeps[0].task.name}, 100 × {primary_metric(sweeps[0].task)}: {models}best setting "
            f"at or under each cost, chosen on {chosen} examples, reported on the other {reported} "
            f"[95% interval, drawing {drawn}] at its cost there. "
            f"{TRUNCATION}: everyone stops at one layer. {COIN}: at one of two layers, by chance, "
            f"for exactly the cost. {ORACLE}: each example stops at its first right layer, as far "
            f"as the cost allows. {AREA}: mean over all costs from one layer to all.",
            table(list(cells), [*columns, AREA], metric_at_cost),
            f"Less the {COIN} at the same cost, in points (paired; bold: the interval leaves out "
            "0):",
            table(shown, [*columns, AREA], lambda cell: difference(cell and cell.over_coin)),
            "Less full depth:",
            table(shown, columns, lambda cell: difference(cell and cell.over_full_depth)),
            f"Exit efficiency: what a rule gains over the {COIN}, as a share of what the {ORACLE} "
            "gains at the same cost:",
            table(shown, columns, lambda cell: share(cell and cell.efficiency)),
        ]
    )


def write_comparison(sweeps: Sequence[Sweep], parts: Parts, seed: int, output: Path) -> FrontierSet:
    """Print the comparison and write it as compare.md; with the settings as compare.csv."""
    if any(not np.array_equal(swept.labels, sweeps[0].labels) for swept in sweeps):
        raise UserError("the models were recorded on different examples; give all the same data")
    found = rules_and_baselines(sweeps, parts, DRAWS, seed)
    limits = limits_of(found.layers)
    cells = compare(found, limits)
    text = comparison(sweeps, found, cells) + "\n"
    rows = [
        {"rule": name, "max_cost": limit, **cell.row()}
        for name, row in cells.items()
        for limit, cell in zip([*limits, AREA], row, strict=True)
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

    def metrics_on(rows: np.ndarray, weights: np.ndarray | None = None) -> dict[str, np.ndarray]:
        early, deep = (swept.metrics(exits, rows, weights) for exits in (chosen, full))
        found = {}
        for name in early:
            found[name] = early[name][0]
            found[f"{name}, drop from full depth"] = deep[name][0] - early[name][0]
        return found

    calibration, report = map(metrics_on, parts)
    drawn = metrics_on(parts.report, bootstrap_weights(len(parts.report), DRAWS, seed))
    rows = [
        (name, f"{calibration[name]:.4f}", f"{report[name]:.4f}", "{:.4f} … {:.4f}".format(*ends))
        for name, ends in ((name, interval(values)) for name, values in drawn.items())
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
    found = frontier_set({name: ([swept], name) for name in (COIN, ORACLE)}, parts, DRAWS, seed)
    exits, name = swept.exit_layer[setting][None], primary_metric(swept.task)
    here = Point(
        "",
        swept.cost(exits, parts.report)[0],
        swept.main_metric(exits, parts.report)[0],
        swept.main_metric(exits, parts.report, found.bootstrap.examples)[0],
    )
    (coin,) = found.at(COIN, here.cost)
    over, efficiency = found.estimate([here], [coin]), found.efficiency([here])
    verdict = "Better than" if over.low > TOLERANCE else "Not shown to be better than"
    return (
        f"{verdict} a coin that stops each example at {coin.settings} for the same cost, "
        f"{coin.cost:.4f}:\n"
        f"  {name} {over.value:+.4f} [{over.low:+.4f}, {over.high:+.4f}]\n"
        f"  exit efficiency, its gain over the coin as a share of the oracle's: {share(efficiency)}"
    )
