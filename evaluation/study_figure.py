"""The picture of a comparison of methods."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evaluation.figures import BELOW, frame, plt

COLORS = plt.get_cmap("tab10").colors


DifferenceCurves = Mapping[str, Sequence[tuple[float, Sequence[float] | None]]]


def study_figure(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    full_depth: float,
    differences: DifferenceCurves,
    metric: str,
) -> Figure:
    """Left the metric against the cost; right each method's difference to the first, by limit.

    curves: costs and metrics of each method's settings; a method with one setting is a marker, and
    one with none keeps its place, so that a method looks the same in the pictures of all tasks.
    differences: (limit, (value, low, high, …) or None) of each method but the first.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    looks = {name: looks_of(number) for number, name in enumerate(curves)}
    drawn = {name: np.array(points) for name, points in curves.items() if len(points[0])}
    for name, (cost, values) in drawn.items():
        size = 7 if len(cost) == 1 else 3
        left.plot(cost, 100 * values, label=name, markersize=size, **looks[name])
    left.axhline(100 * full_depth, color="black", linestyle="--", linewidth=0.9, label="full depth")
    left.set(xlabel="computation cost", ylabel=f"100 × {metric}", xlim=(0, 1.02))
    left.set_ylim(*frame(100 * np.concatenate([[full_depth], *(y for _, y in drawn.values())])))
    draw_differences(right, {k: v for k, v in differences.items() if k in drawn}, looks)
    right.set(xlabel="cost limit", ylabel=f"difference to {next(iter(curves))}, 95% interval")
    for panel in (left, right):
        panel.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.legend(*left.get_legend_handles_labels(), ncol=4, fontsize=9, **BELOW)
    return figure


def draw_differences(panel: Axes, differences: DifferenceCurves, looks: Mapping[str, dict]) -> None:
    """The methods side by side at each limit."""
    panel.axhline(0, color="black", linewidth=0.9)
    for number, (name, row) in enumerate(differences.items()):
        aside = (number - (len(differences) - 1) / 2) * 0.08 / len(differences)
        for limit, cell in row:
            if cell:
                value, low, high = 100 * np.array(cell[:3])
                look = {"color": looks[name]["color"], "linewidth": 1.2}
                panel.plot([limit + aside] * 2, [low, high], **look)
                panel.plot(limit + aside, value, markersize=4, **look | looks[name])


def looks_of(number: int) -> dict:
    """Colour, marker and width of a method; the first is the boldest."""
    color = "black" if number == 0 else COLORS[(number - 1) % 10]
    width = 2.2 if number == 0 else 1.2
    return {"color": color, "marker": "osD^vP*Xhd"[number % 10], "linewidth": width}
