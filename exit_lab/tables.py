"""A sweep as rows: every setting, the frontier that no other setting beats, and truncation."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from exit_lab.sweep import COIN, ORACLE, TRUNCATION, Sweep
from glue.tables import as_csv
from glue.tasks import primary_metric
from utils.files import write_text


def write_tables(swept: Sweep, output: Path) -> None:
    """Write sweep.csv, with truncation's rows last, and frontier.csv, with all baselines'."""
    rows, metric = sweep_table(swept), primary_metric(swept.task)
    layers, coin, oracle = (layer_table(swept, name) for name in (TRUNCATION, COIN, ORACLE))
    best = best_rows(rows, metric)
    baselines = [
        *best_rows(layers, metric),
        *best_rows(coin, metric, concave_hull),
        *best_rows(oracle, metric, concave_hull),
    ]
    write_text(output / "sweep.csv", as_csv([*rows, *layers]))
    write_text(output / "frontier.csv", as_csv([*best, *baselines]))
    print(f"{len(rows)} settings: {output / 'sweep.csv'}; {len(best)} on the frontier")


def sweep_table(swept: Sweep) -> list[dict[str, Any]]:
    """A row a setting: rule, its keys, every metric, cost, exits per layer."""
    heads = [{**setting, "rule": setting[swept.name_key]} for setting in swept.settings]
    return filled(swept, heads, swept.exit_layer)


def layer_table(swept: Sweep, name: str = TRUNCATION) -> list[dict[str, Any]]:
    """A row as `sweep_table` has it for each layer at which everyone stops, by any rule or none.

    For the oracle: a row for each layer that is the last it may look at.
    """
    layers = range(1, swept.num_layers + 1)
    exits = swept.oracle if name == ORACLE else swept.truncations
    return filled(swept, [{"rule": name, "layer": n} for n in layers], exits)


def filled(
    swept: Sweep, heads: Sequence[dict[str, Any]], exit_layer: np.ndarray
) -> list[dict[str, Any]]:
    """Rows that begin with what `heads` hold, and then say what these exits come to."""
    keys = dict.fromkeys(key for grid in swept.grids for key in grid.values)
    columns = {name: values.tolist() for name, values in swept.columns(exit_layer).items()}
    exits = swept.exits_per_layer(exit_layer).tolist()
    rows = []
    for i, head in enumerate(heads):
        row = {key: head.get(key, "") for key in ("rule", *keys, "layer")}
        row |= {name: values[i] for name, values in columns.items()}
        rows.append(row | {f"exits_{n}": count for n, count in enumerate(exits[i], start=1)})
    return rows


def frontier(cost: np.ndarray, metric: np.ndarray) -> np.ndarray:
    """The settings that no other beats: none is as good on both cost and metric, better on one.

    (settings,), (settings,) -> their numbers in order of cost; of equal ones the first.
    """
    order = np.lexsort((np.arange(len(cost)), -metric, cost))
    best_before = np.maximum.accumulate(np.r_[-np.inf, metric[order][:-1]])
    return order[metric[order] > best_before]


def concave_hull(cost: np.ndarray, metric: np.ndarray) -> np.ndarray:
    """The settings of the frontier that no mixture of two others beats, by rising cost."""
    hull: list[int] = []
    for i in frontier(cost, metric):
        while len(hull) > 1 and (metric[hull[-1]] - metric[hull[-2]]) * (
            cost[i] - cost[hull[-2]]
        ) <= (metric[i] - metric[hull[-2]]) * (cost[hull[-1]] - cost[hull[-2]]):
            hull.pop()
        hull.append(int(i))
    return np.array(hull)


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
