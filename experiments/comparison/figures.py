"""The figures of the comparisons: accuracy by cost."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes

from evaluation.figures import COLOURS, INK, SOFT, Figure, save_figure, styled


class Curve(NamedTuple):
    """What a method gets at rising costs.

    Attributes:
        cost: (costs,).
        accuracy: in percent, (costs, seeds).
    """

    cost: np.ndarray
    accuracy: np.ndarray


class Dot(NamedTuple):
    """A network of fixed depth: its cost, and its accuracy in percent, mean of the seeds."""

    cost: float
    accuracy: float


class Panel(NamedTuple):
    """What one panel shows: methods that were trained alike.

    Attributes:
        curves: methods by their labels; the last one is drawn as what stands behind the others.
        fixed_depths: by the number of layers.
    """

    curves: Mapping[str, Curve]
    fixed_depths: Mapping[int, Dot]


@styled
def draw_comparison(panels: Mapping[str, Panel], path: Path, all_layers: str) -> None:
    """Draw accuracy against cost, with bands of two standard errors of the seeds.

    Args:
        panels: by their titles; all have the same labels.
        all_layers: what a cost of 1 is, such as "six layers".
    """
    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    all_axes = figure.subplots(1, len(panels), sharex=True, sharey=True)
    depths = {depth for panel in panels.values() for depth in panel.fixed_depths}
    label = f"fixed-depth networks of {min(depths)} to {max(depths)} layers"
    for axes, (title, panel) in zip(all_axes, panels.items(), strict=True):
        axes.grid()
        axes.set_title(title)
        draw_curves(axes, panel.curves)
        draw_depths(axes, panel.fixed_depths, label)
        axes.set(xlabel=f"cost: FLOPs, 1 = {all_layers}")
    all_axes[0].set(ylabel="accuracy on SST-2, %")
    handles, labels = all_axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    save_figure(figure, path)


def draw_curves(axes: Axes, curves: Mapping[str, Curve]) -> None:
    """Draw methods as lines, each in its band."""
    colours = [*COLOURS[: len(curves) - 1], SOFT]
    for (label, curve), colour in zip(curves.items(), colours, strict=True):
        accuracy = curve.accuracy.mean(1)
        band = 2 * curve.accuracy.std(1, ddof=1) / np.sqrt(curve.accuracy.shape[1])
        axes.plot(curve.cost, accuracy, color=colour, linewidth=2, label=label)
        low, high = accuracy - band, accuracy + band
        axes.fill_between(curve.cost, low, high, color=colour, alpha=0.12, linewidth=0)


def draw_depths(axes: Axes, fixed_depths: Mapping[int, Dot], label: str) -> None:
    """Draw fixed-depth networks as dots with their number of layers."""
    for depth, dot in fixed_depths.items():
        axes.plot(dot.cost, dot.accuracy, "o", color=INK, label=label)
        axes.annotate(f" {depth}", dot, va="top", color=INK)
        label = "_"  # one entry of the legend is enough
