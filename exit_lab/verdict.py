"""What a choice came to, on the examples that did not choose: a table, and a word on truncation."""

from typing import Any

import numpy as np

from exit_lab.choice import Parts, bootstrap_weights, interval
from exit_lab.frontiers import frontier_of
from exit_lab.sweep import TRUNCATION, Sweep
from glue.tasks import primary_metric


def choice_table(swept: Sweep, setting: int, parts: Parts, seed: int) -> str:
    """Metrics, drop from full depth and cost of a setting on both parts, as Markdown."""
    chosen = swept.exit_layer[setting][None]
    weights = bootstrap_weights(len(parts.report), 1000, seed)
    full = swept.truncations[-1:]
    lines = [
        f"| | calibration ({len(parts.calibration)}) | report ({len(parts.report)})"
        " | 95% interval |",
        "|---|---|---|---|",
    ]

    def rows_on(examples: np.ndarray, weights: np.ndarray | None = None) -> dict[str, Any]:
        early, deep = (swept.metrics(e, examples, weights) for e in (chosen, full))
        return {
            text: value
            for name in early
            for text, value in (
                (name, early[name][0]),
                (f"{name}, drop from full depth", deep[name][0] - early[name][0]),
            )
        }

    calibration, report = map(rows_on, parts)
    for name, drawn in rows_on(parts.report, weights).items():
        low, high = interval(drawn)
        values = f"{calibration[name]:.4f} | {report[name]:.4f} | {low:.4f} … {high:.4f}"
        lines.append(f"| {name} | {values} |")
    costs = [swept.cost(chosen, rows)[0] for rows in parts]
    lines.append(f"| computation cost | {costs[0]:.4f} | {costs[1]:.4f} | |")
    if swept.seconds is not None:
        slowest = [swept.p95_ms(chosen, rows)[0] for rows in parts]
        lines.append(f"| p95 latency, ms (recorded) | {slowest[0]:.2f} | {slowest[1]:.2f} | |")
    return "\n".join(lines)


def against_truncation(swept: Sweep, setting: int, parts: Parts, seed: int) -> str:
    """Is a setting better than stopping everyone at one layer?

    Compared on the report part, paired, with the best layers that cost at most as much, and a
    little more; these are chosen on the calibration part, as the setting is.
    """
    weights = bootstrap_weights(len(parts.report), 1000, seed)
    chosen, name = swept.exit_layer[setting][None], primary_metric(swept.task)
    metric = swept.main_metric(chosen, parts.report)[0]
    drawn = swept.main_metric(chosen, parts.report, weights)[0]
    truncation = frontier_of(swept, TRUNCATION, parts, weights)
    first = truncation.at(swept.cost(chosen, parts.calibration)[0])
    lines, better = [], []
    for point in range(first, min(first + 2, len(truncation.cost))):
        low, high = interval(drawn - truncation.drawn[point])
        better.append(low > 0)
        lines.append(
            f"  everyone at {truncation.settings[point]}, cost {truncation.cost[point]:.4f}: "
            f"{name} {metric - truncation.metric[point]:+.4f} [{low:+.4f}, {high:+.4f}]"
        )
    verdict = "Better than" if better[0] else "Not shown to be better than"
    return "\n".join([f"{verdict} stopping everyone at one layer for the same cost:", *lines])
