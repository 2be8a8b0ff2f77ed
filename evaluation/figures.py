"""Pictures of the trade-off between answers and cost."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from glue.files import write_file

BARS, LINE, WINDOW = "#b8c7dc", "#b3412e", "#f1e3b5"
BELOW = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "frameon": False}  # of a legend


def save_figure(figure: Figure, path: Path) -> None:
    """Write a PNG in one step."""
    write_file(path, partial(figure.savefig, dpi=150, bbox_inches="tight", format="png"))
    plt.close(figure)


def two_scales(x: str, left: str, right: str) -> tuple[Figure, Axes, Axes]:
    """Two panels over one axis of whole numbers, with a scale on either side."""
    figure, panel = plt.subplots(figsize=(6.4, 3.6))
    other = panel.twinx()
    panel.set(xlabel=x, ylabel=left)
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    other.set_ylabel(right)
    return figure, panel, other


def exits_figure(
    exits_per_layer: Sequence[int],
    metric_per_layer: Sequence[float],
    metric: str,
    cost: float,
    title: str,
) -> Figure:
    """Exits per layer as bars, the metric of every layer's answers as a line."""
    layers = range(1, len(exits_per_layer) + 1)
    figure, left, right = two_scales("layer", "examples", metric)
    left.bar(layers, exits_per_layer, color=BARS, label="examples that exit here")
    right.plot(layers, metric_per_layer, color=LINE, marker="o", label=f"{metric} of the layer")
    right.set_ylim(min(0.4, *metric_per_layer) - 0.02, 1.02)
    left.set_title(f"{title}: computation cost {cost:.2f}", loc="left", fontsize=10)
    figure.legend(ncol=2, **BELOW)
    for side in (left, right):
        side.spines["top"].set_visible(False)
    return figure


# Of a sweep.


class RuleCurve(NamedTuple):
    """Settings of one rule, and the best of them; metric and cost are fractions of 1."""

    rule: str
    number: int  # of the rule among those swept, for its colour
    cost: np.ndarray  # (settings,)
    metric: np.ndarray  # (settings,)
    frontier: np.ndarray  # (points,) numbers of settings in order of cost
    low: np.ndarray  # (points,) 95% bootstrap band of the metric
    high: np.ndarray


def frontier_figure(
    curves: Sequence[RuleCurve], full_depth: float, metric: str, title: str
) -> Figure:
    """Metric against cost: all rules' frontiers in one panel, then each with settings and band."""
    count = len(curves) + 1
    figure, panels = panels_of(count, count if count < 4 else -(-count // 2), (3.1, 2.6))
    for curve, panel in zip(curves, panels[1:], strict=True):
        color = plt.get_cmap("tab10").colors[curve.number % 10]
        panel.plot(curve.cost, curve.metric, ".", color="#b5b5b5", markersize=2, zorder=1)
        # What is best stays best at every higher cost.
        cost = np.r_[curve.cost[curve.frontier], 1.0]
        best, low, high = (
            np.r_[values, values[-1:]]
            for values in (curve.metric[curve.frontier], curve.low, curve.high)
        )
        panel.fill_between(cost, low, high, step="post", color=color, alpha=0.2, linewidth=0)
        for where, width in ((panel, 1.8), (panels[0], 1.3)):
            where.step(cost, best, where="post", color=color, linewidth=width, label=curve.rule)
        panel.set_title(curve.rule, fontsize=10, loc="left", color=color, weight="bold")
    panels[0].set_title("all rules", fontsize=10, loc="left")
    for panel in panels:
        panel.axhline(full_depth, color="black", linestyle="--", linewidth=0.9)
    panels[0].set_xlim(0, 1.02)
    shown = [values for c in curves for values in (c.low, c.high)]
    panels[0].set_ylim(*frame(np.concatenate([*shown, [full_depth]])))
    about = (
        f"{title}: best setting at or under each cost; band: 95% bootstrap; dots: all settings; "
        "dashed: full depth"
    )
    name_axes(figure, "computation cost (mean exit layer / layers)", metric, about)
    return figure


def panels_of(count: int, columns: int, size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    """`count` panels of about `size` inches with common axes; a column's lowest has its ticks."""
    rows, (width, height) = -(-count // columns), size
    inches = (width * columns, height * rows + 0.5)
    figure, axes = plt.subplots(rows, columns, figsize=inches, sharex=True, sharey=True)
    panels = list(np.atleast_1d(axes).flat)
    for number, panel in enumerate(panels):
        panel.set_visible(number < count)
        panel.tick_params(labelbottom=count - columns <= number)
        panel.spines[["top", "right"]].set_visible(False)
    return figure, panels[:count]


def name_axes(figure: Figure, x: str, y: str, title: str) -> None:
    figure.supxlabel(x, fontsize=10)
    figure.supylabel(y, fontsize=10)
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    figure.tight_layout()


def frame(values: np.ndarray) -> tuple[float, float]:
    """Limits of an axis that shows `values` with some air."""
    low, high = float(values.min()), float(values.max())
    air = 0.06 * (high - low) or 0.01
    return low - air, high + air


class RuleExits(NamedTuple):
    """Where the examples exit under one setting."""

    name: str
    exits: Sequence[int]  # per layer
    metric: float
    cost: float


def exits_by_rule_figure(rules: Sequence[RuleExits], metric: str, title: str) -> Figure:
    """A bar for each rule: the shares of examples that exit after each layer."""
    layers = len(rules[0].exits)
    colors = plt.get_cmap("viridis_r")(np.linspace(0.05, 0.95, layers))
    figure, panel = plt.subplots(figsize=(7.2, 0.42 * len(rules) + 1.5))
    for row, rule in enumerate(rules):
        shares = np.array(rule.exits) / sum(rule.exits)
        left = np.r_[0, shares.cumsum()[:-1]]
        panel.barh(row, shares, left=left, color=colors, height=0.7)
        for layer in np.flatnonzero(shares > 0.05):
            dark = np.dot(colors[layer][:3], (0.3, 0.6, 0.1)) < 0.5
            panel.text(
                left[layer] + shares[layer] / 2,
                row,
                str(layer + 1),
                ha="center",
                va="center",
                fontsize=8,
                color="white" if dark else "black",
            )
        panel.text(1.01, row, f"{rule.metric:.3f} at {rule.cost:.2f}", va="center", fontsize=9)
    panel.text(1.01, -0.9, f"{metric} at cost", va="center", fontsize=9, style="italic")
    panel.set_yticks(range(len(rules)), [rule.name for rule in rules])
    panel.set_ylim(len(rules) - 0.4, -0.6)
    panel.set_xlim(0, 1)
    panel.set_xlabel("share of examples; the number is the exit layer")
    panel.set_title(title, loc="left", fontsize=10, pad=16)
    panel.spines[["top", "right"]].set_visible(False)
    return figure


class Decision(NamedTuple):
    """How one example's answer grew, and where it was taken."""

    title: str
    scores: np.ndarray  # (layers, classes) probabilities, or (layers, 1) values
    exit_layer: int
    window: int  # layers of the window that ended there, 0 if none did
    truth: int | float


def decisions_figure(
    decisions: Sequence[Decision], class_names: Sequence[str], title: str
) -> Figure:
    """Class probabilities against layer for single examples; window shaded, exit marked."""
    figure, panels = panels_of(len(decisions), min(3, len(decisions)), (3.5, 2.5))
    for decision, panel in zip(decisions, panels, strict=True):
        draw_decision(panel, decision, class_names)
    name_axes(figure, "layer", "probability" if class_names else "predicted value", title)
    named = {}  # not every panel has a window
    for panel in panels:
        named |= dict(zip(*reversed(panel.get_legend_handles_labels()), strict=True))
    figure.legend(named.values(), named, ncol=len(named), fontsize=9, **BELOW)
    return figure


def draw_decision(panel: Axes, decision: Decision, class_names: Sequence[str]) -> None:
    """One example; what lies behind the exit was never computed and is drawn faintly."""
    layers = np.arange(1, len(decision.scores) + 1)
    end = decision.exit_layer
    colors = plt.get_cmap("Dark2").colors
    if decision.window:
        first = end - decision.window
        panel.axvspan(first + 0.5, end + 0.5, color=WINDOW, linewidth=0, label="window", zorder=0)
    for k, name in enumerate([f"p({name})" for name in class_names] or ["prediction"]):
        color = colors[k % len(colors)]
        values = decision.scores[:, k]
        panel.plot(layers[:end], values[:end], "o-", color=color, markersize=4, label=name)
        panel.plot(layers[end - 1 :], values[end - 1 :], "o:", color=color, markersize=3, alpha=0.3)
    panel.axvline(end, color=LINE, linewidth=1.4, label="exit", zorder=1)
    if not class_names:
        panel.axhline(decision.truth, color="black", linestyle="--", linewidth=0.9, label="label")
    panel.set_title(decision.title, fontsize=8.5, loc="left")
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.set_xlim(0.5, len(layers) + 0.5)


def heatmap_figure(
    values: np.ndarray, exit_layer: np.ndarray, value_name: str, title: str
) -> Figure:
    """Examples × layers, sorted by exit layer; the line is where each example exits.

    values (layers, examples), exit_layer (examples,) 1-based.
    """
    order = np.lexsort((-values[0], exit_layer))
    layers, examples = values.shape
    figure, panel = plt.subplots(figsize=(6.0, 4.6))
    image = panel.imshow(
        values[:, order].T,
        aspect="auto",
        interpolation="nearest",
        cmap="viridis",
        extent=(0.5, layers + 0.5, examples, 0),
    )
    # Twice, so that the line has a white edge on any colour.
    border = np.r_[exit_layer[order], exit_layer[order][-1:]] + 0.5
    for color, width in (("white", 2.5), (LINE, 1.3)):
        panel.step(border, np.arange(examples + 1), where="pre", color=color, linewidth=width)
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.set_xlabel("layer")
    panel.set_ylabel("examples, sorted by exit layer")
    panel.set_title(f"{title} (line: the exit)", loc="left", fontsize=10)
    figure.colorbar(image, label=value_name)
    return figure
