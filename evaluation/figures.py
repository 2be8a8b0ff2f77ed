"""What all pictures share."""

from functools import partial
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

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


def stacked(x: str, upper: str, lower: str) -> tuple[Figure, Axes, Axes]:
    """Two panels, one above the other, over one axis of whole numbers."""
    figure = Figure(figsize=(7.2, 4.8))
    top, bottom = figure.subplots(2, sharex=True)
    top.set_ylabel(upper)
    bottom.set(xlabel=x, ylabel=lower)
    bottom.xaxis.set_major_locator(MaxNLocator(nbins=13, integer=True))
    for panel in (top, bottom):
        panel.grid(axis="y")
    figure.align_ylabels()
    return figure, top, bottom
