"""The figure of docs/results.md: accuracy by cost."""

from pathlib import Path

import numpy as np

from answers.figures import COLOURS, Figure, save_figure, styled
from experiments.comparison.methods import Methods, at_budgets
from experiments.comparison.names import ELBERT, MINILM, MINILM_EQUAL, TRUNCATED_MINILM
from experiments.comparison.tables import FINE_BUDGETS

# The curves: the method, its label, and where the label stands.
CURVES = (
    (MINILM_EQUAL, "MiniLM, exits with equal weights", (0.145, 85.6)),
    (TRUNCATED_MINILM, "MiniLM truncated, one network", (0.52, 86.7)),
    (MINILM, "MiniLM, exits with the published loss", (0.23, 74.5)),
    (ELBERT, "one shared layer, exits (ELBERT)", (0.55, 81.2)),
)


@styled
def draw_comparison(methods: Methods, path: Path) -> None:
    """Draw accuracy on SST-2 against cost, with bands of two standard errors of the seeds."""
    figure = Figure(figsize=(6.9, 4.2), layout="constrained")
    panel = figure.subplots()
    panel.grid()
    for colour, (title, label, place) in zip(COLOURS, CURVES, strict=False):
        if ("SST-2", title) not in methods:
            continue
        results = at_budgets(methods["SST-2", title], FINE_BUDGETS)
        by_seed = 100 * results.score.mean(-1)  # (budgets, seeds)
        seeds = by_seed.shape[1]
        cost = results.cost.mean(1)
        accuracy = by_seed.mean(1)
        band = np.zeros_like(accuracy)
        if seeds > 1:
            band = 2 * by_seed.std(1, ddof=1) / np.sqrt(seeds)
        # One network has a few costs and nothing in between: a staircase.
        is_staircase = title == TRUNCATED_MINILM
        panel.plot(
            cost,
            accuracy,
            color=colour,
            linewidth=2,
            drawstyle="steps-post" if is_staircase else "default",
        )
        panel.fill_between(
            cost,
            accuracy - band,
            accuracy + band,
            color=colour,
            alpha=0.15,
            linewidth=0,
            step="post" if is_staircase else None,
        )
        panel.annotate(label, place, color=colour)
    panel.set(xlabel="cost: FLOPs, 1 = MiniLM's six layers", ylabel="accuracy on SST-2, %")
    save_figure(figure, path)
