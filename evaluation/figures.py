"""What all pictures share, and those of an evaluation: exits.png and confusion.png."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from sklearn.metrics import ConfusionMatrixDisplay

from evaluation.answers import MOST
from evaluation.job import Job
from modeling.exit_settings import describe
from utils.files import write_file

INK, SOFT, LINE = "#1d2733", "#5d6a78", "#b3412e"
# Apart for every kind of colour vision (Okabe and Ito), and from INK and LINE.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#7a5ab5", "#8a7a1e")
# Decorates what draws a figure.
styled = rc_context(
    {
        "text.parse_math": False,  # a "$" in a label or a text is only a "$"
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "axes.titlelocation": "left",
        "axes.titlesize": 10,
        "axes.titlecolor": INK,
        "grid.color": "#e3e7ec",
        "legend.frameon": False,
        "legend.fontsize": 8.5,
    }
)


@styled
def save_figure(figure: Figure, path: Path, listed_in: Path | None = None) -> None:
    """Write a PNG in one step."""
    draw = partial(figure.savefig, dpi=150, bbox_inches="tight", format="png")
    write_file(path, draw, listed_in)


# Of an evaluation.


@styled
def plot_confusion(path: Path, scores: dict[str, Any]) -> None:
    """Draw confusion.png: how many examples of each label get each answer."""
    counts, names = np.array(scores["confusion"]), list(scores["classes"])
    size = 2.5 + 0.5 * min(len(names), MOST)
    figure = Figure(figsize=(size, size))
    panel = figure.subplots()
    few = len(names) <= MOST
    display = ConfusionMatrixDisplay(counts, display_labels=names if few else None)
    display.plot(ax=panel, cmap="Blues", colorbar=False, include_values=few)
    panel.set(xlabel="answer", ylabel="label")
    panel.tick_params(axis="x", rotation=90 if few else 0)
    save_figure(figure, path, listed_in=path.parent)


@styled
def plot_exits(
    path: Path, job: Job, ends: np.ndarray, summary: dict[str, Any], by_window: np.ndarray
) -> None:
    """exits.png: the metric of every layer; below, exits per layer, coloured by what ended the
    pass.

    ends: exit layers, (examples,); by_window: which of them a window of layers decided, bool.
    """
    config, metric = job.model.config, job.task.primary_metric
    reached, curve = summary["metrics"][metric], summary[f"{metric}_per_layer"]
    layers, figure = np.arange(1, len(curve) + 1), Figure(figsize=(7.2, 4.8))
    top, bottom = figure.subplots(2, sharex=True)
    top.set_ylabel(metric)
    bottom.set(xlabel="layer", ylabel="examples that exit")
    bottom.xaxis.set_major_locator(MaxNLocator(nbins=13, integer=True))
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
        panel.grid(axis="y")
        panel.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.align_ylabels()
    top.set_title(
        f"{job.task.shown_name}: {metric} {reached:.3f} at a computation cost of "
        f"{summary['computation_cost']:.2f}\n{describe(setting)}"
    )
    save_figure(figure, path, listed_in=path.parent)
