"""A sweep as rows: every setting, the frontier that no other setting beats, and truncation."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from exit_lab.sweep import COIN, ORACLE, TRUNCATION, Sweep
from glue.tables import as_csv
from glue.tasks import primary_metric
from modeling.exit_settings import Setting
from utils.files import write_text


def write_tables(swept: Sweep, output: Path) -> None:
    """Write sweep.csv, with truncation's rows last, and frontier.csv, with all baselines'."""
    rows, layers, metric = sweep_table(swept), layer_table(swept), primary_metric(swept.task)
    best = frontier_table(rows, metric)
    baselines = [
        *frontier_table(layers, metric),
        *hull_table(layers, metric, COIN),
        *hull_table(layer_table(swept, ORACLE), metric, ORACLE),
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
    exits, metrics = swept.exits_per_layer(exit_layer), swept.metrics(exit_layer)
    costs, measured = swept.cost(exit_layer), swept.measured(exit_layer)
    keys = dict.fromkeys(key for grid in swept.grids for key in grid.values)
    rows = []
    for i, head in enumerate(heads):
        row = {key: head.get(key, "") for key in ("rule", *keys, "layer")}
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


def frontier_table(rows: Sequence[dict[str, Any]], metric: str) -> list[dict[str, Any]]:
    """The rows of `sweep_table` on the frontier; `settings` counts those with the same point."""
    cost, value = points_of(rows, metric)
    return [
        {**rows[i], "settings": int(((cost == cost[i]) & (value == value[i])).sum())}
        for i in frontier(cost, value)
    ]


def hull_table(rows: Sequence[dict[str, Any]], metric: str, name: str) -> list[dict[str, Any]]:
    """The rows between which a coin gives every cost, as rows of a method of that name."""
    return [{**rows[i], "rule": name} for i in concave_hull(*points_of(rows, metric))]


def points_of(rows: Sequence[dict[str, Any]], metric: str) -> tuple[np.ndarray, np.ndarray]:
    cost, value = (np.array([row[name] for row in rows]) for name in ("compute_ratio", metric))
    return cost, value


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
