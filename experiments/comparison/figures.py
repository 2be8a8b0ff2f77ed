"""The figure of docs/results.md: accuracy by cost."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes

from evaluation.figures import COLOURS, INK, SOFT, Figure, save_figure, styled
from experiments.comparison.methods import Method, at_budgets
from experiments.comparison.recordings import Answers

BUDGETS = np.arange(0.15, 1.0, 0.01)


class Panel(NamedTuple):
    """What one panel shows: methods that were trained alike.

    Attributes:
        curves: methods by their labels; the last one is drawn as what stands behind the others.
        fixed_depths: networks by their depth, of all seeds; each depth is a dot.
    """

    curves: Mapping[str, Method]
    fixed_depths: Mapping[int, list[Answers]]


@styled
def draw_comparison(panels: Mapping[str, Panel], path: Path) -> None:
    """Draw accuracy against cost, with bands of two standard errors of the seeds.

    panels: by their titles; all have the same labels.
    """
    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    all_axes = figure.subplots(1, len(panels), sharex=True, sharey=True)
    for axes, (title, panel) in zip(all_axes, panels.items(), strict=True):
        axes.grid()
        axes.set_title(title)
        draw_curves(axes, panel.curves)
        draw_depths(axes, panel.fixed_depths)
        axes.set(xlabel="cost: FLOPs, 1 = six layers")
    all_axes[0].set(ylabel="accuracy on SST-2, %")
    handles, labels = all_axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    save_figure(figure, path)


def draw_curves(axes: Axes, curves: Mapping[str, Method]) -> None:
    """Draw methods as lines, each in its band, as far as they reach a cost."""
    colours = [*COLOURS[: len(curves) - 1], SOFT]
    for (label, method), colour in zip(curves.items(), colours, strict=True):
        results = at_budgets(method, BUDGETS)
        is_reached = results.cost.mean(1) < BUDGETS + 0.01
        cost = results.cost.mean(1)[is_reached]
        by_seed = 100 * results.score.mean(-1)[is_reached]  # (budgets, seeds)
        accuracy = by_seed.mean(1)
        band = 2 * by_seed.std(1, ddof=1) / np.sqrt(by_seed.shape[1])
        axes.plot(cost, accuracy, color=colour, linewidth=2, label=label)
        low, high = accuracy - band, accuracy + band
        axes.fill_between(cost, low, high, color=colour, alpha=0.12, linewidth=0)


def draw_depths(axes: Axes, fixed_depths: Mapping[int, list[Answers]]) -> None:
    """Draw fixed-depth networks as dots with their number of layers."""
    label = "fixed-depth networks of 1 to 6 layers"
    for depth, networks in fixed_depths.items():
        cost = np.mean([answers.cost.mean() for answers in networks])
        accuracy = 100 * np.mean([answers.scores.mean() for answers in networks])
        axes.plot(cost, accuracy, "o", color=INK, label=label)
        axes.annotate(f" {depth}", (cost, accuracy), va="top", color=INK)
        label = "_"  # one entry of the legend is enough
