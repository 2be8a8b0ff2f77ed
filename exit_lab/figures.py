"""The figure of a sweep: metric against cost."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evaluation.exit_metrics import interval
from evaluation.figures import COLOURS, INK, SOFT, styled
from evaluation.sweep import FULL_DEPTH, ORACLE, RANDOM_MIXTURE, TRUNCATION
from exit_lab.frontiers import FrontierSet
from glue.tasks import Task

COLUMNS = 4  # of panels
LEGEND = {  # what the baselines are
    TRUNCATION: "all at one layer (truncation)",
    RANDOM_MIXTURE: "random exits",
    ORACLE: "best possible exits (oracle)",
    FULL_DEPTH: "all layers",
}


def padded_limits(values: np.ndarray) -> tuple[float, float]:
    """Return limits of an axis that shows `values` with some air around them."""
    low, high = float(np.min(values)), float(np.max(values))
    air = 0.06 * (high - low) or 0.01
    return low - air, high + air


def curve_of(fronts: FrontierSet, name: str) -> np.ndarray:
    """Return a method's points from its cheapest cost to the last that changes the metric.

    (4, points): cost, metric and the two ends of its interval.
    """
    front = fronts.frontiers[name]
    # A setting that was chosen as dearer never counts as cheaper.
    cost = np.maximum.accumulate(front.cost)
    metric = front.metric[:, 0]
    low, high = interval(front.metric)
    changes = np.diff(metric) != 0
    is_drawn = np.concatenate(([True], changes))
    return np.stack([cost, metric, low, high])[:, is_drawn]


@styled
def frontier_figure(fronts: FrontierSet, task: Task) -> Figure:
    """Draw a panel for each rule: its frontier with its interval, the other rules and baselines."""
    curves = {name: curve_of(fronts, name) for name in fronts.frontiers}
    rules = fronts.rules
    columns = min(COLUMNS, len(rules))
    rows = -(-len(rules) // columns)  # rounded up
    figure = Figure(figsize=(max(6.4, 3.1 * columns), 3 * rows + 1.2))
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for unused in grid.flat[len(rules) :]:
        unused.remove()
    for number, rule in enumerate(rules):
        panel = grid.flat[number]
        draw_panel(panel, curves, rules, rule, colour=COLOURS[number % len(COLOURS)])
        is_lowest = number >= len(rules) - columns
        panel.tick_params(labelbottom=is_lowest)
    # All panels share the axes of the first. Truncation and the oracle may leave them.
    in_view = [*(curves[rule] for rule in rules), curves[RANDOM_MIXTURE], curves[FULL_DEPTH]]
    values = np.concatenate([curve[1:].ravel() for curve in in_view])
    largest_costs = [curves[rule][0, -1] for rule in rules]
    grid[0, 0].set(ylabel=task.primary_metric, ylim=padded_limits(values))
    grid[0, 0].set_xlim(*padded_limits(np.array([1 / fronts.layers, *largest_costs])))
    for panel in grid[-1]:
        panel.set_xlabel("computation cost")
    figure.suptitle(
        f"{task.shown_name}: the best setting at each cost, chosen on "
        f"{len(fronts.parts.calibration)} examples,\nshown on the other "
        f"{len(fronts.parts.report)}; band: 95% interval",
        y=0.95,
        va="bottom",
        fontsize=9,
    )
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, ncol=2, loc="upper center", bbox_to_anchor=(0.5, 0.0))
    return figure


def draw_panel(
    panel: Axes, curves: dict[str, np.ndarray], rules: list[str], rule: str, colour: str
) -> None:
    """Draw a rule's frontier in `colour`, the other rules' in grey, and the baselines.

    curves: of all methods by name, see `curve_of`.
    """
    panel.grid()
    label = "the other rules"
    for other in rules:
        if other != rule:
            cost, metric, _, _ = curves[other]
            panel.step(cost, metric, where="post", color=SOFT, alpha=0.35, linewidth=1, label=label)
            label = "_"  # one entry of the legend is enough
    cost, metric, low, high = curves[rule]
    panel.fill_between(cost, low, high, step="post", color=colour, alpha=0.2, lw=0)
    panel.step(cost, metric, where="post", color=colour, linewidth=2)
    cost, metric, _, _ = curves[TRUNCATION]
    panel.plot(cost, metric, "o", color=SOFT, markersize=4, label=LEGEND[TRUNCATION])
    cost, metric, _, _ = curves[RANDOM_MIXTURE]
    panel.plot(cost, metric, color=SOFT, linewidth=1.4, label=LEGEND[RANDOM_MIXTURE])
    cost, metric, _, _ = curves[ORACLE]
    panel.plot(cost, metric, "--", color=INK, linewidth=1.2, label=LEGEND[ORACLE])
    full_depth = curves[FULL_DEPTH][1, 0]
    panel.axhline(full_depth, color=INK, linestyle=":", linewidth=1, label=LEGEND[FULL_DEPTH])
    panel.set_title(rule, weight="bold", color=colour)
