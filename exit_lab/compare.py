"""Rules compared at equal costs: each one's best setting under a limit, over several models."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from exit_lab.choice import Parts, best_under_cost, bootstrap_weights, interval
from exit_lab.sweep import Sweep
from exit_lab.tables import describe
from glue.files import write_text
from glue.tables import as_csv
from glue.tasks import primary_metric
from modeling.errors import UserError

LIMITS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)


@dataclass(frozen=True)
class Cell:
    """A rule at a cost limit: numbers of the report part, means over the models."""

    metric: float
    low: float  # 95% bootstrap interval of the metric
    high: float
    cost: float
    settings: tuple[str, ...]  # of each model


@dataclass(frozen=True)
class Taken:
    """One model's chosen setting, seen on the report part."""

    metric: float
    draws: np.ndarray  # the metric in each bootstrap draw
    cost: float
    setting: str


def seen_on_report(
    swept: Sweep, exit_layer: np.ndarray, rows: np.ndarray, weights: np.ndarray, setting: str
) -> Taken:
    """exit_layer (1, examples) on the report part `rows`; weights (draws, rows)."""
    return Taken(
        float(swept.main_metric(exit_layer, rows)[0]),
        swept.main_metric(exit_layer, rows, weights)[0],
        float(swept.cost(exit_layer, rows)[0]),
        setting,
    )


def mean_cell(taken: Sequence[Taken]) -> Cell:
    """Mean over models that were asked the same examples, resampled together."""
    low, high = interval(np.mean([one.draws for one in taken], 0))
    metric, cost = (
        float(np.mean([getattr(t, name) for t in taken])) for name in ("metric", "cost")
    )
    return Cell(metric, low, high, cost, tuple(one.setting for one in taken))


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
    for rule in [*(grid.rule for grid in sweeps[0].grids), "fixed truncation"]:
        found = [best_of(swept, rule, parts, limits, weights) for swept in sweeps]
        at_limit = zip(*found, strict=True)
        result[rule] = [
            None if any(one is None for one in taken) else mean_cell(taken) for taken in at_limit
        ]
    full = [
        seen_on_report(swept, swept.truncations[-1:], parts.report, weights, "all layers")
        for swept in sweeps
    ]
    result["full depth"] = [mean_cell(full)] * len(limits)
    return result


def best_of(
    swept: Sweep, rule: str, parts: Parts, limits: Sequence[float], weights: np.ndarray
) -> list[Taken | None]:
    """One model's best setting of `rule` (or truncation) at each limit, on the report part."""
    if rule == "fixed truncation":
        exits = swept.truncations
        names = [f"layer {n}" for n in range(1, len(exits) + 1)]
    else:
        own = swept.of_rule(rule)
        exits = swept.exit_layer[own]
        names = [describe(setting, swept.name_key) for setting in swept.settings[own]]
    cost = swept.cost(exits, parts.calibration)
    metric = swept.main_metric(exits, parts.calibration)
    chosen = [best_under_cost(cost, metric, limit) for limit in limits]
    return [
        None
        if i is None
        else seen_on_report(swept, exits[i : i + 1], parts.report, weights, names[i])
        for i in chosen
    ]


def comparison_table(cells: dict[str, list[Cell | None]], limits: Sequence[float]) -> str:
    """Markdown: a row a rule, a column a cost limit; metric × 100 [95% interval] at its cost."""

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
    write_text(output / "compare.csv", as_csv(comparison_rows(cells)))
    print(f"\n{text}")


def comparison_rows(cells: dict[str, list[Cell | None]]) -> list[dict[str, Any]]:
    return [
        {
            "rule": rule,
            "max_cost": limit,
            "metric": cell.metric,
            "low": cell.low,
            "high": cell.high,
            "cost": cell.cost,
            "settings": "; ".join(cell.settings),
        }
        for rule, row in cells.items()
        for limit, cell in zip(LIMITS, row, strict=True)
        if cell
    ]
