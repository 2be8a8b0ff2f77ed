"""A sweep as rows: every setting, and the frontier that no other setting beats."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evaluation.modes.base import Setting
from exit_lab.sweep import Sweep
from glue.files import write_text
from glue.tables import as_csv
from glue.tasks import primary_metric


def write_tables(swept: Sweep, output: Path) -> None:
    """sweep.csv and frontier.csv."""
    rows = table(swept)
    best = frontier_table(rows, primary_metric(swept.task))
    write_text(output / "sweep.csv", as_csv(rows))
    write_text(output / "frontier.csv", as_csv(best))
    print(f"{len(rows)} settings: {output / 'sweep.csv'}; {len(best)} on the frontier")


def table(swept: Sweep) -> list[dict[str, Any]]:
    """A row a setting: rule, its keys, every metric, cost, exits per layer."""
    exits = swept.exits_per_layer(swept.exit_layer)
    metrics = swept.metrics(swept.exit_layer)
    costs, measured = swept.cost(swept.exit_layer), swept.measured(swept.exit_layer)
    keys = list(dict.fromkeys(key for grid in swept.grids for key in grid.values))
    rows = []
    for i, setting in enumerate(swept.settings):
        row = {"rule": setting[swept.name_key], **{key: setting.get(key, "") for key in keys}}
        row |= {name: float(values[i]) for name, values in metrics.items()}
        row["compute_ratio"] = float(costs[i])
        row |= {name: float(values[i]) for name, values in measured.items()}
        row["exit_sample_ratio"] = 1 - int(exits[i, -1]) / len(swept.labels)
        row |= {f"exits_{n}": int(count) for n, count in enumerate(exits[i], start=1)}
        rows.append(row)
    return rows


def frontier(cost: np.ndarray, metric: np.ndarray) -> np.ndarray:
    """The settings that no other beats: none is as good on both cost and metric, better on one.

    (settings,), (settings,) -> their numbers in order of cost; of equal ones the first.
    """
    order = np.lexsort((np.arange(len(cost)), -metric, cost))
    best_before = np.maximum.accumulate(np.r_[-np.inf, metric[order][:-1]])
    return order[metric[order] > best_before]


def frontier_table(rows: Sequence[dict[str, Any]], metric: str) -> list[dict[str, Any]]:
    """The rows of `table` on the frontier; `settings` counts those with the same point."""
    cost, value = (np.array([row[name] for row in rows]) for name in ("compute_ratio", metric))
    return [
        {**rows[i], "settings": int(((cost == cost[i]) & (value == value[i])).sum())}
        for i in frontier(cost, value)
    ]


def nearest_setting(swept: Sweep, setting: Setting, exit_layer: np.ndarray) -> int:
    """Number of the swept setting that stands for `setting`, whose exits are (1, examples).

    The setting itself where the grid has it, else the one that agrees on most exits, if possible
    of the same rule.
    """
    if setting in swept.settings:
        return swept.settings.index(setting)
    rule = setting[swept.name_key]
    known = rule in [grid.rule for grid in swept.grids]
    own = swept.of_rule(rule) if known else slice(0, None)
    return own.start + int((swept.exit_layer[own] == exit_layer).sum(1).argmax())
