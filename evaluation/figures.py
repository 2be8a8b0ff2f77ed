"""What all pictures share, and the picture of the parity experiment's training."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from utils.files import write_file

matplotlib.rcParams["text.parse_math"] = False  # a "$" in a label or a text is only a "$"

INK, SOFT, GRID = "#1d2733", "#5d6a78", "#e3e7ec"
LINE = "#b3412e"
# Apart for every kind of colour vision (Okabe and Ito), and from INK and LINE.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#7a5ab5", "#8a7a1e")
CAUSES = ("#9db4d3", "#e2b866", "#cfd6de")  # of an exit, in the order that they are given
BELOW = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "frameon": False}  # of a legend


def save_figure(figure: Figure, path: Path) -> None:
    """Write a PNG in one step."""
    write_file(path, partial(figure.savefig, dpi=150, bbox_inches="tight", format="png"))
    plt.close(figure)


def clear_frame(panel: Axes, axis: str = "y") -> None:
    """Leave of a panel's frame the axes, over a pale grid."""
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(axis=axis, color=GRID, linewidth=0.8)
    panel.set_axisbelow(True)


def stacked(x: str, upper: str, lower: str) -> tuple[Figure, Axes, Axes]:
    """Two panels, one above the other, over one axis of whole numbers."""
    figure, (top, bottom) = plt.subplots(2, figsize=(7.2, 4.8), sharex=True)
    top.set_ylabel(upper)
    bottom.set(xlabel=x, ylabel=lower)
    bottom.xaxis.set_major_locator(MaxNLocator(nbins=13, integer=True))
    clear_frame(top)
    clear_frame(bottom)
    figure.align_ylabels()
    return figure, top, bottom


def set_titles(panel: Axes, title: str, subtitle: str) -> None:
    """A bold title over lines that say more, all from the panel's left edge."""
    lines = subtitle.count("\n") + 1
    style = {"in_layout": False}
    panel.set_title(
        title, loc="left", pad=8 + 11.5 * lines, fontsize=11, weight="bold", color=INK, **style
    )
    panel.annotate(
        subtitle,
        (0, 1),
        xytext=(0, 5),
        xycoords="axes fraction",
        textcoords="offset points",
        fontsize=8.5,
        color=SOFT,
        **style,
    )


def annotate(panel: Axes, text: str, point: tuple[float, float], **style: Any) -> None:
    """A small word just above a point."""
    style = {"textcoords": "offset points", "fontsize": 8, "color": SOFT, **style}
    panel.annotate(text, point, (0, 2), **style)


def padded_limits(values: np.ndarray) -> tuple[float, float]:
    """Limits of an axis that shows `values` with some air."""
    low, high = float(np.min(values)), float(np.max(values))
    air = 0.06 * (high - low) or 0.01
    return low - air, high + air


def training_figure(history: Sequence[Any], most_steps: int, title: str) -> Figure:
    """Accuracy and expected steps at the end of every `training.parity.Epoch`, on scales that all
    runs share."""
    figure, top, bottom = stacked("epoch", "accuracy", "steps")
    epochs = [epoch.epoch for epoch in history]
    top.plot(epochs, [epoch.accuracy for epoch in history], "o-", color=LINE, markersize=4)
    top.axhline(0.5, color=SOFT, linestyle=":", linewidth=1.2)
    annotate(top, "chance", (epochs[-1], 0.5), ha="right")
    top.set_ylim(0, 1.03)
    bottom.plot(epochs, [epoch.steps for epoch in history], "o-", color=COLOURS[0], markersize=4)
    bottom.set_ylim(0, most_steps)
    set_titles(top, title, "accuracy at sampled halting steps; expected steps until halting")
    return figure
