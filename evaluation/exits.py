"""Where examples exit: the layers' statistics as CSV, and exits.png."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from evaluation.figures import COLOURS, INK, LINE, SOFT, save_figure, stacked, styled
from evaluation.job import Job
from evaluation.predictions import Predictions
from glue.tables import as_csv
from modeling.exit_settings import describe
from modeling.rules import exit_scores, normalised_entropy


def layer_table(
    all_logits: torch.Tensor, labels: torch.Tensor, exit_layer: torch.Tensor | None = None
) -> str:
    """CSV with loss, entropy and accuracy of every layer.

    Over all samples or, given the `exit_layer` of each, over those that exit at the layer.
    Regression has neither entropy nor accuracy: these fields stay empty.
    """
    rows = []
    for layer, logits in enumerate(all_logits, start=1):
        here = slice(None) if exit_layer is None else exit_layer == layer
        chosen, truth, numbers = logits[here], labels[here], []
        if len(truth) and logits.shape[-1] == 1:
            numbers = [F.mse_loss(chosen[:, 0], truth.float())]
        elif len(truth):
            entropy = normalised_entropy(exit_scores(chosen)).mean()
            accuracy = (chosen.argmax(-1) == truth).float().mean()
            numbers = [F.cross_entropy(chosen, truth), entropy, accuracy]
        texts = [*(f"{number:.6f}" for number in numbers), "", "", ""][:3]
        row = {"layer": layer, "samples": len(truth)}
        rows.append(row | dict(zip(("loss", "entropy", "accuracy"), texts, strict=True)))
    return as_csv(rows)


@styled
def plot_exits(
    path: Path, job: Job, predictions: Predictions, summary: dict[str, Any], by_window: np.ndarray
) -> None:
    """exits.png: the metric of every layer; below, exits per layer, coloured by what ended the
    pass.

    by_window: which exits a window of layers decided, (examples,) bool.
    """
    config, metric = job.model.config, job.task.primary_metric
    reached, curve = summary["metrics"][metric], summary[f"{metric}_per_layer"]
    layers, ends = np.arange(1, len(curve) + 1), predictions["exit_layer"].numpy()
    figure, top, bottom = stacked("layer", metric, "examples that exit")
    top.plot(layers, curve, color=LINE, marker="o", markersize=4, label="everyone exits here")
    for value, name, color, style in (
        (curve[-1], "full depth", INK, ":"),
        (reached, "early exit", COLOURS[0], "--"),
    ):
        top.axhline(value, color=color, linestyle=style, linewidth=1.2, label=f"{name} {value:.3f}")
    top.margins(y=0.06)
    setting = config.keys_read()
    ran_all, base = ends == len(curve), np.zeros(len(layers))
    for cause, rows, color in (
        (config.exit_rule().cause or setting[config.rule_key], ~by_window & ~ran_all, "#9db4d3"),
        ("window", by_window & ~ran_all, "#e2b866"),
        ("all layers run", ran_all, "#cfd6de"),
    ):
        counts = np.bincount(ends[rows], minlength=len(curve) + 1)[1:]
        if counts.any():
            bottom.bar(layers, counts, bottom=base, color=color, width=0.72, label=cause)
        base = base + counts
    whole = bottom.bar(layers, base, alpha=0)  # not seen but for the numbers above
    shown = [f"{count:.0f}" if count else "" for count in base]
    bottom.bar_label(whole, shown, padding=2, fontsize=8, color=SOFT)
    for panel in (top, bottom):
        panel.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    top.set_title(
        f"{job.task.shown_name}: {metric} {reached:.3f} at a computation cost of "
        f"{summary['computation_cost']:.2f}\n{describe(setting)}"
    )
    save_figure(figure, path, listed_in=path.parent)
