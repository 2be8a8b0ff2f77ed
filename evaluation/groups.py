"""Who pays for early exit? Metric, cost and exits of each group of examples, with intervals."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from evaluation.exit_metrics import bootstrap_weights, interval
from evaluation.measures import labels_of, predictions_of
from glue.metrics import weighted_metrics
from glue.splits import Split
from modeling.errors import UserError
from runs.console import markdown_table
from runs.job import Job

MOST_GROUPS = 50
RESAMPLES = 400
SEED = 42
Row = dict[str, Any]


def read_groups(split: Split, column: str, limit: int | None = None) -> list[str]:
    """Read the group of each example, at most `limit` where it is given, from a column.

    Raises UserError for a column that the file does not have, and for more than MOST_GROUPS groups.
    """
    groups = split.cells(column, limit)
    count = len(set(groups))
    if count > MOST_GROUPS:
        raise UserError(
            f"--group_column {column} has {count} values in {split.path}, at most {MOST_GROUPS} "
            "can be compared: give a column with a few values"
        )
    return groups


def group_rows(
    job: Job, groups: Sequence[str], logits: Tensor, full_depth: Tensor, exit_layer: np.ndarray
) -> list[Row]:
    """Measure each group of examples, the largest first, as a row of a table.

    The *drop* is how far the main metric is below that of full depth; its interval draws examples,
    each with both answers. `drop_minus_others` compares it with the drop of all other examples.

    Args:
        groups: of each example, by name.
        logits: of the exits taken, (examples, num_labels).
        full_depth: of the last layer, (examples, num_labels).
        exit_layer: (examples,), 1-based.
    """
    names, counts = np.unique(np.asarray(groups, dtype=object).astype(str), return_counts=True)
    labels = labels_of(job.features)
    answers = [predictions_of(each, job.task.multi_label) for each in (logits, full_depth)]
    metric = job.task.primary_metric
    layers = job.config.num_hidden_layers

    def metrics(rows: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Compute the metric of early exit and of full depth, (1 + resamples,) each."""
        weights = bootstrap_weights(len(rows), RESAMPLES, seed).astype(float)
        values = [
            weighted_metrics(job.task, answer[None, rows], labels[rows], weights)[metric][0]
            for answer in answers
        ]
        return values[0], values[1]

    table = []
    for number in np.argsort(-counts, kind="stable"):
        is_in_group = np.asarray(groups) == names[number]
        rows, others = np.flatnonzero(is_in_group), np.flatnonzero(~is_in_group)
        early, full = metrics(rows, SEED)
        drop = full - early
        row = {
            "group": names[number],
            "examples": len(rows),
            metric: float(early[0]),
            f"{metric}_full_depth": float(full[0]),
            **with_interval("drop", drop),
        }
        if len(others):
            other_early, other_full = metrics(others, SEED + 1)
            row |= with_interval("drop_minus_others", drop - (other_full - other_early))
        row["computation_cost"] = float(exit_layer[rows].mean() / layers)
        for layer in range(1, layers + 1):
            row[f"exits_{layer}"] = int((exit_layer[rows] == layer).sum())
        table.append(row)
    return table


def with_interval(name: str, values: np.ndarray) -> Row:
    """Return a value and its 95% interval as three cells; values: (1 + resamples,)."""
    low, high = interval(values)
    return {name: float(values[0]), f"{name}_low": float(low), f"{name}_high": float(high)}


def group_lines(table: Sequence[Row], metric: str) -> list[str]:
    """Format the groups for the console, and say who pays."""
    columns = ["group", "examples", metric, "full depth", "drop [95% interval]"]
    columns += ["drop, minus that of the others", "computation cost", "exits per layer"]
    rows = []
    payers = []
    for row in table:
        exits = [value for name, value in row.items() if name.startswith("exits_")]
        rows.append(
            [
                row["group"],
                str(row["examples"]),
                f"{row[metric]:.4f}",
                f"{row[f'{metric}_full_depth']:.4f}",
                interval_text(row, "drop"),
                interval_text(row, "drop_minus_others"),
                f"{row['computation_cost']:.4f}",
                " ".join(map(str, exits)),
            ]
        )
        if row.get("drop_minus_others_low", 0) > 0:
            payers.append(row["group"])
    verdict = "no group is shown to lose more than the others by early exit"
    if payers:
        verdict = f"loses more than the others by early exit: {', '.join(payers)}"
    return ["", markdown_table(columns, rows), f"groups: {verdict}"]


def interval_text(row: Row, name: str) -> str:
    """Write "+0.0123 [-0.0100, +0.0300]"; "–" where there is no such value."""
    if name not in row:
        return "–"
    return f"{row[name]:+.4f} [{row[f'{name}_low']:+.4f}, {row[f'{name}_high']:+.4f}]"
