"""Rules compared at equal costs: each one's best setting under a limit, over several models."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from exit_lab.choice import Parts, best_under_cost, bootstrap_weights, interval
from exit_lab.sweep import Sweep
from exit_lab.tables import describe
from glue.files import write_text
from glue.tables import as_csv
from glue.tasks import primary_metric
from modeling.errors import UserError

LIMITS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
TRUNCATION = "fixed truncation"  # a row that is no rule


@dataclass(frozen=True)
class Cell:
    """A rule at a cost limit: numbers of the report part, means over the models."""

    metric: float
    low: float  # 95% bootstrap interval of the metric
    high: float
    cost: float
    settings: tuple[str, ...]  # of each model


class Candidate(NamedTuple):
    """One model's chosen setting."""

    swept: Sweep
    exit_layer: np.ndarray  # (1, examples)
    setting: str


def compare(
    sweeps: Sequence[Sweep],
    parts: Parts,
    limits: Sequence[float],
    draws: int = 1000,
    seed: int = 42,
) -> dict[str, list[Cell | None]]:
    """Each rule's best setting at or under each cost limit; None where it has none.

    Chosen on the calibration part, reported on the other, for each model; then the mean over
    models. Two rows are no rules: "fixed truncation" stops everybody at one layer, and "full
    depth" is the same at every limit.
    """
    if any(not np.array_equal(swept.labels, sweeps[0].labels) for swept in sweeps):
        raise UserError("the models were recorded on different examples; give all the same data")
    weights = bootstrap_weights(len(parts.report), draws, seed)
    result: dict[str, list[Cell | None]] = {}
    for rule in [*(grid.rule for grid in sweeps[0].grids), TRUNCATION]:
        found = [best_of(swept, rule, parts.calibration, limits) for swept in sweeps]
        at_limit = zip(*found, strict=True)
        result[rule] = [cell_of(chosen, parts.report, weights) for chosen in at_limit]
    full = [Candidate(swept, swept.truncations[-1:], "all layers") for swept in sweeps]
    result["full depth"] = [cell_of(full, parts.report, weights)] * len(limits)
    return result


def best_of(
    swept: Sweep, rule: str, rows: np.ndarray, limits: Sequence[float]
) -> list[Candidate | None]:
    """One model's best setting of `rule` (or truncation) at each limit, on the examples `rows`."""
    if rule == TRUNCATION:
        exits = swept.truncations
        names = [f"layer {n}" for n in range(1, len(exits) + 1)]
    else:
        own = swept.of_rule(rule)
        exits = swept.exit_layer[own]
        names = [describe(setting, swept.name_key) for setting in swept.settings[own]]
    cost, metric = swept.cost(exits, rows), swept.main_metric(exits, rows)
    chosen = [best_under_cost(cost, metric, limit) for limit in limits]
    return [None if i is None else Candidate(swept, exits[i : i + 1], names[i]) for i in chosen]


def cell_of(
    chosen: Sequence[Candidate | None], rows: np.ndarray, weights: np.ndarray
) -> Cell | None:
    """Mean over models that were asked the same examples `rows`, resampled together by `weights`
    (draws, rows); None where a model has no candidate."""
    if any(one is None for one in chosen):
        return None
    metric = float(np.mean([one.swept.main_metric(one.exit_layer, rows) for one in chosen]))
    drawn = [one.swept.main_metric(one.exit_layer, rows, weights)[0] for one in chosen]
    cost = float(np.mean([one.swept.cost(one.exit_layer, rows) for one in chosen]))
    settings = tuple(one.setting for one in chosen)
    return Cell(metric, *interval(np.mean(drawn, 0)), cost, settings)


def comparison_table(cells: dict[str, list[Cell | None]], limits: Sequence[float]) -> str:
    """Markdown: a row for each rule, a column for each cost limit.

    A cell is the metric × 100 with its 95% interval, at the cost that was reached.
    """

    def text(cell: Cell | None) -> str:
        if cell is None:
            return "–"
        low, high = 100 * cell.low, 100 * cell.high
        return f"{100 * cell.metric:.1f} [{low:.1f}, {high:.1f}] at {cell.cost:.2f}"

    lines = [
        "| rule | " + " | ".join(f"cost ≤ {limit:g}" for limit in limits) + " |",
        "|---" * (len(limits) + 1) + "|",
    ]
    for rule, row in cells.items():
        lines.append(f"| {rule} | " + " | ".join(map(text, row)) + " |")
    return "\n".join(lines)


def write_comparison(sweeps: Sequence[Sweep], parts: Parts, seed: int, output: Path) -> None:
    """The comparison as Markdown, printed and in compare.md; with the settings in compare.csv."""
    cells = compare(sweeps, parts, LIMITS, seed=seed)
    of_models = f"mean of {len(sweeps)} models, " if len(sweeps) > 1 else ""
    text = (
        f"{sweeps[0].task.name}, 100 × {primary_metric(sweeps[0].task)}: {of_models}best setting "
        f"at or under each cost, chosen on {len(parts.calibration)} examples, reported on the "
        f"other {len(parts.report)} [95% bootstrap interval] at its cost there\n\n"
        f"{comparison_table(cells, LIMITS)}\n"
    )
    write_text(output / "compare.md", text)
    rows = [
        {"rule": rule, "max_cost": limit, **vars(cell), "settings": "; ".join(cell.settings)}
        for rule, row in cells.items()
        for limit, cell in zip(LIMITS, row, strict=True)
        if cell
    ]
    write_text(output / "compare.csv", as_csv(rows))
    print(f"\n{text}")
