"""What all pictures share, and those of an evaluation: exits.png and confusion.png."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib import font_manager, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from sklearn.metrics import ConfusionMatrixDisplay

from runs.files import write_file
from runs.folder import RunFolder

INK = "#1d2733"  # what counts most
SOFT = "#5d6a78"  # what stands behind it
LINE = "#b3412e"
# Apart for every kind of colour vision (Okabe and Ito), and from INK and LINE.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#7a5ab5", "#8a7a1e")
MOST_NAMED = 20  # classes that a picture names
# matplotlib's own font, and then those of Chinese, Japanese and Korean that are installed here.
CJK_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans CJK KR",
    "Noto Sans SC",
    "Source Han Sans SC",
    "WenQuanYi Zen Hei",
    "WenQuanYi Micro Hei",
    "Droid Sans Fallback",
    "IPAGothic",
    "PingFang SC",
    "Hiragino Sans",
    "Apple SD Gothic Neo",
    "Microsoft YaHei",
    "SimHei",
    "Yu Gothic",
    "Malgun Gothic",
    "Arial Unicode MS",
)
INSTALLED = set(font_manager.get_font_names())
FONTS = ["DejaVu Sans", *(name for name in CJK_FONTS if name in INSTALLED)]
# Decorates what draws a figure.
styled = rc_context(
    {
        "font.family": FONTS,
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
        "pdf.fonttype": 42,  # text stays text, which journals ask for
        "svg.fonttype": "none",
    }
)


@styled
def save_figure(figure: Figure, path: Path, results: RunFolder | None = None) -> None:
    """Write a figure, whole or not at all, in the format of its name: .png, .pdf or .svg.

    results: the folder of a run that it belongs to.
    """
    draw = partial(figure.savefig, dpi=150, bbox_inches="tight", format=path.suffix[1:])
    if results:
        results.write(path, draw)
    else:
        write_file(path, draw)


# Of an evaluation.


@styled
def confusion_figure(confusion: Sequence[Sequence[int]], class_names: Sequence[str]) -> Figure:
    """Draw confusion.png: how many examples of each label get each answer.

    confusion: a row for each label, a column for each answer. Many classes are drawn without their
    names and numbers, which would not be readable. Classes have numbers for names where no font
    here has all of their characters.
    """
    is_named = len(class_names) <= MOST_NAMED
    remark = ""
    if is_named and not has_glyphs("".join(class_names)):
        class_names = [f"class {number}" for number in range(len(class_names))]
        remark = " (no font for the names)"
    size = 2.5 + 0.5 * min(len(class_names), MOST_NAMED)  # inches
    figure = Figure(figsize=(size, size))
    panel = figure.subplots()
    display_labels = class_names if is_named else None
    display = ConfusionMatrixDisplay(np.array(confusion), display_labels=display_labels)
    display.plot(ax=panel, cmap="Blues", colorbar=False, include_values=is_named)
    panel.set(xlabel=f"answer{remark}", ylabel="label")
    panel.tick_params(axis="x", rotation=90 if is_named else 0)
    return figure


def has_glyphs(text: str) -> bool:
    """Tell whether a figure's fonts have every character of a text."""
    fonts = [font_manager.get_font(font_manager.findfont(name)) for name in FONTS]
    return all(any(font.get_char_index(ord(char)) for font in fonts) for char in set(text))


@dataclass(frozen=True)
class ExitsPicture:
    """What exits.png shows."""

    title: str
    metric_name: str
    curve: Sequence[float]  # the metric of every layer, if all examples exited there
    early_exit: float  # the metric with early exit
    exit_layer: np.ndarray  # (examples,), 1-based
    by_window: np.ndarray  # which of the exits a confidence window decided, (examples,) bool
    cause: str  # what decided the others


@styled
def exits_figure(picture: ExitsPicture) -> Figure:
    """Draw exits.png: the metric of every layer; below, how many examples exit there, and why."""
    figure = Figure(figsize=(7.2, 4.8))
    metric_panel, count_panel = figure.subplots(2, sharex=True)
    draw_metric(metric_panel, picture)
    draw_exit_counts(count_panel, picture)
    for panel in (metric_panel, count_panel):
        panel.grid(axis="y")
        panel.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.align_ylabels()
    metric_panel.set_title(picture.title)
    return figure


def draw_metric(panel: Axes, picture: ExitsPicture) -> None:
    """Draw the metric of every layer, with lines at full depth's and at early exit's."""
    layers = np.arange(1, len(picture.curve) + 1)
    panel.plot(
        layers, picture.curve, color=LINE, marker="o", markersize=4, label="all examples exit here"
    )
    full_depth = picture.curve[-1]
    panel.axhline(
        full_depth, color=INK, linestyle=":", linewidth=1.2, label=f"full depth {full_depth:.3f}"
    )
    panel.axhline(
        picture.early_exit,
        color=COLOURS[0],
        linestyle="--",
        linewidth=1.2,
        label=f"early exit {picture.early_exit:.3f}",
    )
    panel.set_ylabel(picture.metric_name)
    panel.margins(y=0.06)


def draw_exit_counts(panel: Axes, picture: ExitsPicture) -> None:
    """Draw a bar for each layer, as high as the number of examples that exit there, by cause."""
    depth = len(picture.curve)
    layers = np.arange(1, depth + 1)
    ran_all_layers = picture.exit_layer == depth
    height = np.zeros(depth)  # of each layer's bar so far
    for cause, examples, colour in (
        (picture.cause, ~picture.by_window & ~ran_all_layers, "#9db4d3"),
        ("window", picture.by_window & ~ran_all_layers, "#e2b866"),
        ("all layers run", ran_all_layers, "#cfd6de"),
    ):
        counts = np.bincount(picture.exit_layer[examples], minlength=depth + 1)[1:]
        if counts.any():
            panel.bar(layers, counts, bottom=height, color=colour, width=0.72, label=cause)
        height = height + counts
    whole_bars = panel.bar(layers, height, alpha=0)  # invisible: they carry the numbers above
    numbers = [f"{count:.0f}" if count else "" for count in height]
    panel.bar_label(whole_bars, numbers, padding=2, fontsize=8, color=SOFT)
    panel.set(xlabel="layer", ylabel="examples that exit")
    panel.xaxis.set_major_locator(MaxNLocator(nbins=13, integer=True))
