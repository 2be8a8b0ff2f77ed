"""What all pictures share, and those of an evaluation: exits.png and confusion.png."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from sklearn.metrics import ConfusionMatrixDisplay

from answers.scores import MOST
from runs.files import RunFolder, write_file

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
def save_figure(figure: Figure, path: Path, results: RunFolder | None = None) -> None:
    """Write a PNG in one step; results: the folder of a run that it belongs to."""
    draw = partial(figure.savefig, dpi=150, bbox_inches="tight", format="png")
    if results:
        results.write(path, draw)
    else:
        write_file(path, draw)


# Of an evaluation.


@styled
def plot_confusion(path: Path, confusion: Sequence[Sequence[int]], names: Sequence[str]) -> None:
    """Draw confusion.png: how many examples of each label get each answer.

    confusion: a row a label, a column an answer. names: of the classes.
    """
    size = 2.5 + 0.5 * min(len(names), MOST)
    figure = Figure(figsize=(size, size))
    panel = figure.subplots()
    few = len(names) <= MOST
    display = ConfusionMatrixDisplay(np.array(confusion), display_labels=names if few else None)
    display.plot(ax=panel, cmap="Blues", colorbar=False, include_values=few)
    panel.set(xlabel="answer", ylabel="label")
    panel.tick_params(axis="x", rotation=90 if few else 0)
    save_figure(figure, path, RunFolder(path.parent))


@dataclass(frozen=True)
class ExitsPicture:
    """What exits.png shows."""

    title: str
    metric: str  # its name
    curve: Sequence[float]  # the metric of every layer, were everyone to exit there
    reached: float  # the metric with early exit
    exit_layer: np.ndarray  # (examples,), 1-based
    by_window: np.ndarray  # which of the exits a confidence window decided, (examples,) bool
    cause: str  # what decided the others


@styled
def plot_exits(path: Path, shown: ExitsPicture) -> None:
    """Draw exits.png: the metric of every layer; below, how many examples exit there, and why."""
    depth = len(shown.curve)
    layers, figure = np.arange(1, depth + 1), Figure(figsize=(7.2, 4.8))
    top, bottom = figure.subplots(2, sharex=True)
    top.set_ylabel(shown.metric)
    bottom.set(xlabel="layer", ylabel="examples that exit")
    bottom.xaxis.set_major_locator(MaxNLocator(nbins=13, integer=True))
    top.plot(layers, shown.curve, color=LINE, marker="o", markersize=4, label="everyone exits here")
    for value, name, color, style in (
        (shown.curve[-1], "full depth", INK, ":"),
        (shown.reached, "early exit", COLOURS[0], "--"),
    ):
        top.axhline(value, color=color, linestyle=style, linewidth=1.2, label=f"{name} {value:.3f}")
    top.margins(y=0.06)
    ran_all, base = shown.exit_layer == depth, np.zeros(depth)
    for cause, rows, color in (
        (shown.cause, ~shown.by_window & ~ran_all, "#9db4d3"),
        ("window", shown.by_window & ~ran_all, "#e2b866"),
        ("all layers run", ran_all, "#cfd6de"),
    ):
        counts = np.bincount(shown.exit_layer[rows], minlength=depth + 1)[1:]
        if counts.any():
            bottom.bar(layers, counts, bottom=base, color=color, width=0.72, label=cause)
        base = base + counts
    whole = bottom.bar(layers, base, alpha=0)  # invisible, it carries the numbers above the bars
    numbers = [f"{count:.0f}" if count else "" for count in base]
    bottom.bar_label(whole, numbers, padding=2, fontsize=8, color=SOFT)
    for panel in (top, bottom):
        panel.grid(axis="y")
        panel.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.align_ylabels()
    top.set_title(shown.title)
    save_figure(figure, path, RunFolder(path.parent))
