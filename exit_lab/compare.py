"""Rules compared at equal costs, with truncation and with full depth, over several models."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from exit_lab.choice import Parts
from exit_lab.frontiers import FULL_DEPTH, Estimate, Field, make_field
from exit_lab.sweep import TRUNCATION, Sweep
from glue.tables import as_csv
from glue.tasks import primary_metric
from modeling.errors import UserError
from utils.files import write_text

MOST_LIMITS = 6  # columns of a table
AREA = "area"  # the column after the limits


def limits_of(layers: int) -> list[float]:
    """The costs to compare at: of truncation after some layers, closer where costs are low."""
    last = max(1, layers - 1)
    chosen = np.unique(np.geomspace(1, last, MOST_LIMITS).round().astype(int))
    return [n / layers for n in chosen.tolist()]


@dataclass(frozen=True)
class Cell:
    """A contender at a cost limit, or the area under its frontier: means over the models.

    over_truncation, over_full_depth: the metric less theirs; paired, and truncation's at the same
    limit.
    cost: on the report part; None for an area. settings: of each model.
    """

    metric: Estimate
    over_truncation: Estimate
    over_full_depth: Estimate | None
    cost: float | None = None
    settings: tuple[str, ...] = ()

    def row(self) -> dict[str, float | str | None]:
        """The cell as a row of compare.csv."""
        row = dict(zip(("metric", "low", "high"), self.metric, strict=True))
        for name in ("over_truncation", "over_full_depth"):
            difference = getattr(self, name) or ("", "", "")
            columns = (name, f"{name}_low", f"{name}_high")
            row |= dict(zip(columns, difference, strict=True))
        return {**row, "cost": self.cost, "settings": "; ".join(self.settings)}


Cells = dict[str, list[Cell | None]]


def compare(field: Field, limits: Sequence[float]) -> Cells:
    """Each contender's cells at the cost limits, then that of its area; None where it has none."""
    rows = {
        name: [*(cell_at(field, name, limit) for limit in limits), area_cell(field, name)]
        for name in [*field.rules, TRUNCATION]
    }
    return {**rows, FULL_DEPTH: [*(cell_at(field, FULL_DEPTH, limit) for limit in limits), None]}


def cell_at(field: Field, name: str, limit: float) -> Cell | None:
    """A contender's best setting at or under a cost limit; None where a model has none."""
    points = [
        front.at(1.0 if name == FULL_DEPTH else limit)  # whatever the limit
        for front in field.frontiers[name]
    ]
    if None in points:
        return None
    chosen = list(zip(field.frontiers[name], points, strict=True))
    values = [front.metric[i] for front, i in chosen]
    drawn = [front.drawn[i] for front, i in chosen]

    def over(other: str, allowed: float) -> Estimate:
        others = [(front, front.at(allowed)) for front in field.frontiers[other]]
        return field.estimate(
            [value - front.metric[i] for value, (front, i) in zip(values, others, strict=True)],
            [draws - front.drawn[i] for draws, (front, i) in zip(drawn, others, strict=True)],
        )

    return Cell(
        field.estimate(values, drawn),
        over(TRUNCATION, limit),
        over(FULL_DEPTH, 1.0),
        float(np.mean([front.cost[i] for front, i in chosen])),
        tuple(front.settings[i] for front, i in chosen),
    )


def area_cell(field: Field, name: str) -> Cell:
    values, drawn = field.area(name)
    others, others_drawn = field.area(TRUNCATION)
    over = field.estimate(np.subtract(values, others), np.subtract(drawn, others_drawn))
    return Cell(field.estimate(values, drawn), over, None)


# As tables.


def markdown(cells: Cells, limits: Sequence[float], text: Callable[[Cell], str]) -> str:
    """A row a contender, a column a cost limit, and one for the area where the rows have it."""
    width = max(map(len, cells.values()))
    heads = [*(f"cost ≤ {limit:.2f}" for limit in limits), AREA][:width]
    lines = [f"| | {' | '.join(heads)} |", "|---" * (width + 1) + "|"]
    for name, row in cells.items():
        shown = ["–" if cell is None else text(cell) for cell in row]
        lines.append(f"| {name} | {' | '.join(shown)} |")
    return "\n".join(lines)


def with_cost(cell: Cell) -> str:
    value, low, high = (100 * number for number in cell.metric)
    at = "" if cell.cost is None else f" at {cell.cost:.2f}"
    return f"{value:.1f} [{low:.1f}, {high:.1f}]{at}"


def difference(found: Estimate | None) -> str:
    """In points; bold where the interval leaves out 0."""
    if found is None:
        return "–"
    value, low, high = (100 * number for number in found)
    text = f"{value:+.1f} [{low:+.1f}, {high:+.1f}]"
    return f"**{text}**" if low > 0 or high < 0 else text


def comparison(sweeps: Sequence[Sweep], field: Field) -> str:
    """The tables of compare.md: the metric, and its differences to truncation and full depth."""
    limits = limits_of(field.layers)
    cells = compare(field, limits)
    models = f"mean of {len(sweeps)} models, " if len(sweeps) > 1 else ""
    drawn = "models and examples" if len(sweeps) > 1 else "examples"
    chosen, reported = map(len, field.parts)
    own = {name: cells[name] for name in field.rules}
    return "\n\n".join(
        [
            f"{sweeps[0].task.name}, 100 × {primary_metric(sweeps[0].task)}: {models}best setting "
            f"at or under each cost, chosen on {chosen} examples, reported on the other {reported} "
            f"[95% interval, drawing {drawn}] at its cost there. "
            f"{TRUNCATION}: everyone stops at one layer. {AREA}: mean over all costs from one "
            "layer to all.",
            markdown(cells, limits, with_cost),
            "Less truncation at the same limit, in points (paired; bold: the interval leaves out "
            "0):",
            markdown(own, limits, lambda cell: difference(cell.over_truncation)),
            "Less full depth:",
            markdown(
                {name: row[:-1] for name, row in cells.items() if name != FULL_DEPTH},
                limits,
                lambda cell: difference(cell.over_full_depth),
            ),
        ]
    )


def write_comparison(sweeps: Sequence[Sweep], parts: Parts, seed: int, output: Path) -> Field:
    """The comparison, printed and in compare.md; with the settings in compare.csv."""
    if any(not np.array_equal(swept.labels, sweeps[0].labels) for swept in sweeps):
        raise UserError("the models were recorded on different examples; give all the same data")
    field = make_field(sweeps, parts, 1000, seed)
    text = comparison(sweeps, field) + "\n"
    limits = limits_of(field.layers)
    rows = [
        {"rule": name, "max_cost": limit, **cell.row()}
        for name, row in compare(field, limits).items()
        for limit, cell in zip([*limits, AREA], row, strict=True)
        if cell
    ]
    write_text(output / "compare.md", text)
    write_text(output / "compare.csv", as_csv(rows))
    print(f"\n{text}")
    return field
