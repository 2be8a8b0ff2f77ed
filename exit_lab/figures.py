"""The figure of a sweep: metric against cost."""

import numpy as np
from matplotlib.figure import Figure

from answers.figures import COLOURS, INK, SOFT, styled
from answers.sweep import COIN, FULL_DEPTH, ORACLE, TRUNCATION
from exit_lab.compare import FrontierSet
from glue.metrics import interval
from glue.tasks import Task

COLUMNS = 4  # of panels


def padded_limits(values: np.ndarray) -> tuple[float, float]:
    """Limits of an axis that shows `values` with some air."""
    low, high = float(np.min(values)), float(np.max(values))
    air = 0.06 * (high - low) or 0.01
    return low - air, high + air


def curve_of(found: FrontierSet, name: str) -> np.ndarray:
    """A method's points from its cheapest cost to the last that changes.

    (4, points): cost, metric and the ends of its interval.
    """
    front = found.frontiers[name]
    # What was chosen as dearer never counts as cheaper.
    cost, metric = np.maximum.accumulate(front.cost), front.metric
    kept = np.r_[True, np.diff(metric[:, 0]) != 0]
    return np.stack([cost, metric[:, 0], *interval(metric)])[:, kept]


@styled
def frontier_figure(found: FrontierSet, task: Task) -> Figure:
    """A panel a rule: its frontier with its interval, the other rules' in grey, the baselines."""
    curves = {name: curve_of(found, name) for name in found.frontiers}
    columns = min(COLUMNS, len(found.rules))
    rows = -(-len(found.rules) // columns)
    figure = Figure(figsize=(max(6.4, 3.1 * columns), 3 * rows + 1.2))
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    full, coin, layers = (curves[name] for name in (FULL_DEPTH, COIN, TRUNCATION))
    for panel in grid.flat[len(found.rules) :]:
        panel.remove()
    for number, (name, panel) in enumerate(zip(found.rules, grid.flat, strict=False)):
        panel.grid()
        for other in found.rules:
            panel.step(*curves[other][:2], where="post", color=SOFT, alpha=0.35, linewidth=1)
        curve, colour = curves[name], COLOURS[number % len(COLOURS)]
        panel.fill_between(curve[0], *curve[2:], step="post", color=colour, alpha=0.2, lw=0)
        panel.step(*curve[:2], where="post", color=colour, linewidth=2)
        panel.plot(*layers[:2], "o", color=SOFT, markersize=4, label=TRUNCATION)
        panel.plot(*coin[:2], color=SOFT, linewidth=1.4, label=COIN)
        panel.plot(*curves[ORACLE][:2], "--", color=INK, linewidth=1.2, label=ORACLE)
        panel.axhline(full[1, 0], color=INK, linestyle=":", linewidth=1, label=FULL_DEPTH)
        panel.set_title(name, weight="bold", color=colour)
        panel.tick_params(labelbottom=number >= len(found.rules) - columns)
    rules = [curves[name] for name in found.rules]
    shown = np.concatenate([line for curve in (*rules, coin, full) for line in curve[1:]])
    grid[0, 0].set(ylabel=task.primary_metric, ylim=padded_limits(shown))
    grid[0, 0].set_xlim(*padded_limits(np.array([1 / found.layers, *(c[0, -1] for c in rules)])))
    chosen, reported = map(len, found.parts)
    figure.suptitle(
        f"{task.shown_name}: {task.primary_metric} against computation cost "
        f"(mean exit layer / layers)\n"
        f"best setting at or under each cost, chosen on {chosen} examples, shown on the "
        f"other {reported}; band: 95% interval",
        y=0.95,
        va="bottom",
        fontsize=9,
    )
    handles = grid[0, 0].get_legend_handles_labels()
    figure.legend(*handles, ncol=4, loc="upper center", bbox_to_anchor=(0.5, 0.0))
    return figure
