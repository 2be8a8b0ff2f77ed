"""A sweep as tables: every setting, the frontier that no other setting beats, the baselines."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from answers.sweep import COIN, ORACLE, TRUNCATION, Sweep
from glue.metrics import concave_hull, frontier
from glue.tables import as_csv
from runs.files import RunFolder


def write_tables(swept: Sweep, output: Path) -> None:
    """Write sweep.csv, with truncation's rows last, and frontier.csv, with all baselines'."""
    rows, layers = rows_of(swept), rows_of(swept, TRUNCATION)
    metric = swept.task.primary_metric
    best = best_rows(rows, metric)
    baselines = best_rows(layers, metric)
    for name in (COIN, ORACLE):
        baselines += best_rows(rows_of(swept, name), metric, concave_hull)
    results = RunFolder(output)
    results.write_text("sweep.csv", as_csv([*rows, *layers]))
    results.write_text("frontier.csv", as_csv([*best, *baselines]))
    print(f"{len(rows)} settings: {output / 'sweep.csv'}; {len(best)} on the frontier")


def rows_of(swept: Sweep, baseline: str = "") -> list[dict[str, Any]]:
    """A row a setting: rule, its keys, every metric, cost, exits per layer.

    Of a baseline a row for each layer at which everyone stops, by any rule or none; of the oracle
    for each that is the last it may look at.
    """
    heads = [{**setting, "rule": setting[swept.config.rule_key]} for setting in swept.settings]
    exit_layer = swept.exit_layer
    if baseline:
        heads = [{"rule": baseline, "layer": n + 1} for n in range(swept.num_layers)]
        exit_layer = swept.exits_of(baseline)
    keys = dict.fromkeys(itertools.chain(*swept.grids.values()))
    columns = {name: values.tolist() for name, values in swept.columns(exit_layer).items()}
    exits = swept.exits_per_layer(exit_layer).tolist()
    rows = []
    for i, head in enumerate(heads):
        row = {key: head.get(key, "") for key in ("rule", *keys, "layer")}
        row |= {name: values[i] for name, values in columns.items()}
        rows.append(row | {f"exits_{n}": count for n, count in enumerate(exits[i], start=1)})
    return rows


def best_rows(
    rows: Sequence[dict[str, Any]],
    metric: str,
    best: Callable[[np.ndarray, np.ndarray], np.ndarray] = frontier,
) -> list[dict[str, Any]]:
    """The rows on the frontier, or on the hull; `settings` counts those with the same point."""
    cost, value = (np.array([row[name] for row in rows]) for name in ("compute_ratio", metric))
    return [
        {**rows[i], "settings": int(((cost == cost[i]) & (value == value[i])).sum())}
        for i in best(cost, value)
    ]
