"""A sweep as tables: every setting, the frontier that no other setting beats, the baselines."""

from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from evaluation.frontier import concave_hull, frontier
from evaluation.sweep import ORACLE, RANDOM_MIXTURE, TRUNCATION, Sweep
from glue.tables import as_csv
from runs.folder import RunFolder

Row = dict[str, Any]  # of a CSV file: cells by column


def write_tables(swept: Sweep, output: Path) -> None:
    """Write sweep.csv, with truncation's rows last, and frontier.csv, with all baselines'."""
    metric = swept.task.primary_metric
    settings, truncations = setting_rows(swept), baseline_rows(swept, TRUNCATION)
    best_settings = best_rows(settings, metric)
    best_baselines = best_rows(truncations, metric)
    # A mixture of two rows costs and gains what lies between them, so only the hull counts.
    for baseline in (RANDOM_MIXTURE, ORACLE):
        best_baselines += best_rows(baseline_rows(swept, baseline), metric, concave_hull)
    results = RunFolder(output)
    results.write_text("sweep.csv", as_csv([*settings, *truncations]))
    results.write_text("frontier.csv", as_csv([*best_settings, *best_baselines]))
    print(f"{len(settings)} settings: {output / 'sweep.csv'}; {len(best_settings)} on the frontier")


def setting_rows(swept: Sweep) -> list[Row]:
    """Make a row for each setting: its rule and keys, then its results; see `result_rows`."""
    rule_key = swept.config.rule_key
    heads = [{**setting, "rule": setting[rule_key]} for setting in swept.settings]
    return result_rows(swept, heads, swept.exit_layer)


def baseline_rows(swept: Sweep, baseline: str) -> list[Row]:
    """Make a row for each layer of a baseline, with its results; see `result_rows`.

    The layer is where all examples stop; the oracle's is the last that it may look at.
    """
    heads = [{"rule": baseline, "layer": number + 1} for number in range(swept.num_layers)]
    return result_rows(swept, heads, swept.exits_of(baseline))


def result_rows(swept: Sweep, heads: Sequence[Row], exit_layer: np.ndarray) -> list[Row]:
    """Put the results of exits behind the heads of their rows.

    The columns are the same for settings and baselines: the rule, every key that the sweep varies,
    the layer, every metric and cost, and the number of examples that exit after each layer.

    exit_layer: (rows, examples), 1-based.
    """
    keys = dict.fromkeys(chain.from_iterable(swept.grids.values()))
    results = {name: values.tolist() for name, values in swept.columns(exit_layer).items()}
    exits_per_layer = swept.exits_per_layer(exit_layer).tolist()
    rows = []
    for number, head in enumerate(heads):
        row = {column: head.get(column, "") for column in ("rule", *keys, "layer")}
        for name, values in results.items():
            row[name] = values[number]
        for layer, count in enumerate(exits_per_layer[number], start=1):
            row[f"exits_{layer}"] = count
        rows.append(row)
    return rows


def best_rows(
    rows: Sequence[Row],
    metric: str,
    select: Callable[[np.ndarray, np.ndarray], np.ndarray] = frontier,
) -> list[Row]:
    """Select the rows on the frontier, or on the hull.

    Their column `settings` counts the rows with the same cost and metric.

    select: finds the best of (rows,) costs and metrics, as `frontier` or `concave_hull`.
    """
    cost = np.array([row["compute_ratio"] for row in rows])
    value = np.array([row[metric] for row in rows])
    best = []
    for number in select(cost, value):
        is_same = (cost == cost[number]) & (value == value[number])
        best.append({**rows[number], "settings": int(is_same.sum())})
    return best
