"""The figure of docs/results.md: accuracy by cost."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from answers.figures import COLOURS, INK, SOFT, Figure, save_figure, styled
from experiments.comparison.methods import Method, at_budgets
from experiments.comparison.recordings import Answers

BUDGETS = np.arange(0.15, 1.0, 0.01)


@styled
def draw_comparison(
    curves: Mapping[str, Method], ordinary: Mapping[int, list[Answers]], path: Path
) -> None:
    """Draw accuracy against cost, with bands of two standard errors of the seeds.

    Args:
        curves: methods by their labels; the last one is drawn as what stands behind the others.
        ordinary: networks of one depth each, by that depth, of all seeds; each depth is a dot.
    """
    figure = Figure(figsize=(5.4, 5.0), layout="constrained")
    panel = figure.subplots()
    panel.grid()
    colours = [*COLOURS[: len(curves) - 1], SOFT]
    for (label, method), colour in zip(curves.items(), colours, strict=True):
        results = at_budgets(method, BUDGETS)
        is_reached = results.cost.mean(1) < BUDGETS + 0.01
        cost = results.cost.mean(1)[is_reached]
        by_seed = 100 * results.score.mean(-1)[is_reached]  # (budgets, seeds)
        accuracy = by_seed.mean(1)
        band = 2 * by_seed.std(1, ddof=1) / np.sqrt(by_seed.shape[1])
        panel.plot(cost, accuracy, color=colour, linewidth=2, label=label)
        low, high = accuracy - band, accuracy + band
        panel.fill_between(cost, low, high, color=colour, alpha=0.12, linewidth=0)
    label = "ordinary networks of 1 to 6 layers"
    for depth, networks in ordinary.items():
        cost = np.mean([answers.cost.mean() for answers in networks])
        accuracy = 100 * np.mean([answers.scores.mean() for answers in networks])
        panel.plot(cost, accuracy, "o", color=INK, label=label)
        panel.annotate(f" {depth}", (cost, accuracy), va="top", color=INK)
        label = "_"  # one entry of the legend is enough
    panel.set(xlabel="cost: FLOPs, 1 = six ordinary layers", ylabel="accuracy on SST-2, %")
    figure.legend(loc="outside lower left")
    save_figure(figure, path)
