"""Pictures of the trade-off between answers and cost."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from glue.files import write_file

BARS, LINE, WINDOW = "#b8c7dc", "#b3412e", "#f1e3b5"


def save_figure(figure: Figure, path: Path) -> None:
    """Write a PNG in one step."""
    write_file(path, partial(figure.savefig, dpi=150, bbox_inches="tight", format="png"))
    plt.close(figure)


def exits_figure(
    exits_per_layer: Sequence[int],
    metric_per_layer: Sequence[float],
    metric: str,
    cost: float,
    title: str,
) -> Figure:
    """Exits per layer as bars, the metric of every layer's answers as a line."""
    layers = range(1, len(exits_per_layer) + 1)
    figure, left = plt.subplots(figsize=(6.4, 3.6))
    left.bar(layers, exits_per_layer, color=BARS, label="examples that exit here")
    left.set_xlabel("layer")
    left.set_ylabel("examples")
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    right = left.twinx()
    right.plot(layers, metric_per_layer, color=LINE, marker="o", label=f"{metric} of the layer")
    right.set_ylabel(metric)
    right.set_ylim(min(0.4, *metric_per_layer) - 0.02, 1.02)
    left.set_title(f"{title}: computation cost {cost:.2f}", loc="left", fontsize=10)
    handles = [artist.get_legend_handles_labels() for artist in (left, right)]
    figure.legend(
        [h for pair in handles for h in pair[0]],
        [text for pair in handles for text in pair[1]],
        loc="upper center",
        bbox_to_anchor=(0.5, 0.0),
        ncol=2,
        frameon=False,
    )
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
    columns = count if count < 4 else -(-count // 2)
    rows = -(-count // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(3.1 * columns, 2.6 * rows + 0.4), sharex=True, sharey=True
    )
    panels = list(np.atleast_1d(axes).flat)
    for curve, panel in zip(curves, panels[1:], strict=False):
        color = plt.get_cmap("tab10").colors[curve.number % 10]
        panel.plot(curve.cost, curve.metric, ".", color="#b5b5b5", markersize=2, zorder=1)
        cost, low, high = (
            to_full_cost(values) for values in (curve.cost[curve.frontier], curve.low, curve.high)
        )
        cost[-1] = 1.0
        panel.fill_between(cost, low, high, step="post", color=color, alpha=0.2, linewidth=0)
        draw_frontier(panel, curve, color, 1.8)
        draw_frontier(panels[0], curve, color, 1.3)
        panel.set_title(curve.rule, fontsize=10, loc="left", color=color, weight="bold")
    panels[0].set_title("all rules", fontsize=10, loc="left")
    for panel in panels[:count]:
        panel.axhline(full_depth, color="black", linestyle="--", linewidth=0.9)
        panel.spines[["top", "right"]].set_visible(False)
    hide_unused(panels, count, columns)
    panels[0].set_xlim(0, 1.02)
    shown = [values for c in curves for values in (c.low, c.high)]
    panels[0].set_ylim(*frame(np.concatenate([*shown, [full_depth]])))
    figure.supxlabel("computation cost (mean exit layer / layers)", fontsize=10)
    figure.supylabel(metric, fontsize=10)
    figure.suptitle(
        f"{title}: best setting at or under each cost; band: 95% bootstrap; dots: all settings; "
        "dashed: full depth",
        fontsize=10,
        x=0.01,
        ha="left",
    )
    figure.tight_layout()
    return figure


def hide_unused(panels: Sequence[Axes], used: int, columns: int) -> None:
    """Hide the panels behind the first `used`; the lowest one of a column carries its ticks."""
    for number, panel in enumerate(panels):
        panel.set_visible(number < used)
        panel.tick_params(labelbottom=used - columns <= number)


def to_full_cost(values: np.ndarray) -> np.ndarray:
    """With the last value once more: what is best stays best at every higher cost."""
    return np.r_[values, values[-1:]]


def draw_frontier(panel: Axes, curve: RuleCurve, color: Any, width: float) -> None:
    cost, metric = (to_full_cost(v[curve.frontier]) for v in (curve.cost, curve.metric))
    cost[-1] = 1.0
    panel.step(cost, metric, where="post", color=color, linewidth=width, label=curve.rule)


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
    """A bar a rule: the shares of examples that exit after each layer."""
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
    columns = min(3, len(decisions))
    rows = -(-len(decisions) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(3.5 * columns, 2.5 * rows + 0.7), sharex=True, sharey=True
    )
    panels = list(np.atleast_1d(axes).flat)
    for decision, panel in zip(decisions, panels, strict=False):
        draw_decision(panel, decision, class_names)
    hide_unused(panels, len(decisions), columns)
    figure.supxlabel("layer", fontsize=10)
    figure.supylabel("probability" if class_names else "predicted value", fontsize=10)
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    figure.tight_layout()
    named = {}  # not every panel has a window
    for panel in panels:
        named |= dict(zip(*reversed(panel.get_legend_handles_labels()), strict=True))
    figure.legend(
        list(named.values()),
        list(named),
        loc="upper center",
        bbox_to_anchor=(0.5, 0.0),
        ncol=len(named),
        frameon=False,
        fontsize=9,
    )
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
    panel.spines[["top", "right"]].set_visible(False)


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
