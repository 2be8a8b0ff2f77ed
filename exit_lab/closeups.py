"""Single examples: how their answers grow and where they leave; all examples at a glance."""

import textwrap
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from evaluation.figures import BELOW, COLOURS, INK, LINE, SOFT, WINDOW, entitle
from exit_lab.metrics import taken

WIDTH, LINES = 46, 4  # characters of a line, and lines, of an example's text
SLIGHT = 0.25  # of the labels' standard deviation: errors that differ by less are about the same


# Without the darkest ends, which would stay dark when drawn paler.
PALE = {
    name: LinearSegmentedColormap.from_list(name, plt.get_cmap(name)(np.linspace(0.12, 0.88, 256)))
    for name in ("PuOr", "RdBu")
}


class Course(NamedTuple):
    """A line of numbers behind the exit, and the limit that it is compared with."""

    values: dict[str, np.ndarray]  # name -> (layers,)
    limit: float
    limit_name: str


class Decision(NamedTuple):
    """How one example's answer grew, and where it was taken."""

    title: str
    about: str
    scores: np.ndarray  # (layers, classes) probabilities, or (layers, 1) values
    exit_layer: int
    window: int  # layers of the window that ended there, 0 if none did
    truth: int | float
    course: Course | None = None


def telling_examples(
    predictions: np.ndarray, labels: np.ndarray, exit_layer: np.ndarray, regression: bool
) -> list[tuple[int, str]]:
    """Examples worth a look, each with what it shows: early, late, lost and won by exiting.

    A title is given only where it is true: the deepest exit only where exits differ, a loss only
    where the answers differ by more than a slight error.
    """
    early = taken(predictions, exit_layer)
    error, full_error = (
        np.abs(answer - labels) if regression else (answer != labels).astype(float)
        for answer in (early, predictions[-1])
    )
    slight = SLIGHT * float(np.std(labels)) if regression else 0.0
    good = np.where(error <= slight, 0.0, 1e3)  # rather show answers that are right
    first, last = float(exit_layer.min()), float(exit_layer.max())
    depth, between = exit_layer.astype(float), (first < exit_layer) & (exit_layer < last)
    candidates = [
        ("leaves first" if first < last else "leaves with all", -(good + depth), depth == first),
        ("leaves midway", -(good + np.abs(2 * depth - first - last)), between),
        ("goes deepest", depth - good, (depth == last) & (first < last)),
        ("lost by leaving early", error - full_error, error - full_error > slight),
        ("won by leaving early", full_error - error, full_error - error > slight),
        (
            "far off at both" if regression else "wrong at both",
            np.minimum(error, full_error),
            np.minimum(error, full_error) > slight,
        ),
    ]
    chosen: dict[int, str] = {}
    for title, score, holds in candidates:
        score = np.where(holds, score.astype(float), -np.inf)
        score[list(chosen)] = -np.inf
        best = int(score.argmax())
        if np.isfinite(score[best]):
            chosen[best] = title
    return list(chosen.items())


def in_lines(texts: Sequence[str | None]) -> str:
    """An example's one or two texts, wrapped and cut to the room that a panel has."""
    texts = [text for text in texts if text]
    room = LINES // max(1, len(texts))
    lines = []
    for text in texts:
        lines += textwrap.wrap(text, WIDTH, max_lines=room, placeholder=" …", break_long_words=True)
    return "\n".join(lines)


def decisions_figure(
    decisions: Sequence[Decision], class_names: Sequence[str], title: str, rule: str
) -> Figure:
    """Each example's text, and its scores against layer; window shaded, exit marked."""
    columns = min(3, len(decisions))
    rows = -(-len(decisions) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(4.1 * columns, 3.9 * rows), sharex=True, sharey=True, squeeze=False,
        gridspec_kw={"hspace": 0.62, "wspace": 0.07},
    )  # fmt: skip
    for panel in axes.flat[len(decisions) :]:
        panel.set_visible(False)
    for number, decision in enumerate(decisions):
        draw_decision(axes.flat[number], decision, class_names)
        if number < len(decisions) - columns:
            axes.flat[number].set_xlabel("")
            axes.flat[number].tick_params(labelbottom=False)
    if class_names:
        axes[0, 0].set_ylim(-0.03, 1.03)
    for panel in axes[:, 0]:
        panel.set_ylabel("probability" if class_names else "predicted value")
    above = 0.88 + 1.35 / figure.get_figheight()  # of the panels' headings
    figure.suptitle(f"{title}: {rule}", x=0.125, y=above, ha="left", weight="bold", color=INK)
    named = {}  # not every panel has a window
    for panel in figure.axes:
        named |= dict(zip(*reversed(panel.get_legend_handles_labels()), strict=True))
    figure.legend(named.values(), named, ncol=min(7, len(named)), fontsize=9, **BELOW)
    return figure


def draw_decision(panel: Axes, decision: Decision, class_names: Sequence[str]) -> None:
    """One example; what lies behind the exit was never computed and is drawn faintly."""
    layers, end = np.arange(1, len(decision.scores) + 1), decision.exit_layer

    def line(where: Axes, values: np.ndarray, color: str, label: str, style: str) -> None:
        where.plot(layers[:end], values[:end], style, color=color, markersize=3.5, label=label)
        where.plot(layers[end - 1 :], values[end - 1 :], style[0], color=color, alpha=0.25)

    if decision.window:
        first = end - decision.window
        panel.axvspan(first + 0.5, end + 0.5, color=WINDOW, linewidth=0, label="window", zorder=0)
    for k, name in enumerate([f"p({name})" for name in class_names] or ["prediction"]):
        line(panel, decision.scores[:, k], COLOURS[k % len(COLOURS)], name, "-o")
    if decision.course:
        draw_course(panel if class_names else chances_beside(panel), decision.course, line)
    panel.axvline(end, color=LINE, linewidth=1.4, label="exit", zorder=1)
    if not class_names:
        panel.axhline(decision.truth, color=INK, linestyle=":", linewidth=1.2, label="label")
    entitle(panel, decision.title, decision.about)
    panel.set_xlabel("layer")
    panel.xaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10], integer=True))
    panel.set_xlim(0.5, len(layers) + 0.5)
    panel.spines[["top", "right"]].set_visible(False)


def chances_beside(panel: Axes) -> Axes:
    """A scale from 0 to 1 over the predicted values of a panel."""
    other = panel.twinx()
    other.set_ylim(0, 1.05)
    other.spines["top"].set_visible(False)
    return other


def draw_course(panel: Axes, course: Course, line: Callable[..., None]) -> None:
    for number, (name, values) in enumerate(course.values.items()):
        line(panel, values, SOFT, name, ("--", "-.")[number % 2])
    panel.axhline(course.limit, color=SOFT, linestyle=":", label=course.limit_name)


def leads(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """By how much the right class leads the best other one, −1 to 1: below 0 the answer is wrong.

    (layers, examples, classes) -> (layers, examples).
    """
    right = np.arange(scores.shape[-1]) == labels[:, None]
    others = np.where(right, -np.inf, scores).max(-1)
    return np.where(right, scores, 0).sum(-1) - others


def heatmap_figure(
    values: np.ndarray, exit_layer: np.ndarray, regression: bool, title: str, rule: str
) -> Figure:
    """Examples × layers, sorted by exit layer; the line is where each example exits.

    values (layers, examples): `leads`, or errors of a regression; exit_layer (examples,) 1-based.
    """
    end = values[exit_layer - 1, np.arange(len(exit_layer))]
    order = np.lexsort((-end, exit_layer))
    layers, examples = values.shape
    figure, panel = plt.subplots(figsize=(6.6, 4.8), layout="constrained")
    most = float(np.abs(values).max()) or 1.0
    image = panel.imshow(
        values[:, order].T,
        aspect="auto",
        interpolation="nearest",
        cmap=PALE["PuOr" if regression else "RdBu"],
        vmin=-most if regression else -1,
        vmax=most if regression else 1,
        extent=(0.5, layers + 0.5, examples, 0),
    )
    border = np.r_[exit_layer[order], exit_layer[order][-1:]] + 0.5
    rows = np.arange(examples + 1)
    panel.fill_betweenx(
        rows, border, layers + 0.5, step="pre", color="white", alpha=0.45, linewidth=0
    )
    panel.step(border, rows, where="pre", color=INK, linewidth=1.4)
    panel.xaxis.set_major_locator(MaxNLocator(nbins=13, integer=True))
    panel.set_xlabel("layer; paler: never computed")
    panel.set_ylabel("examples, by exit layer and answer")
    wrong = (
        "" if regression else f"; {(end < 0).sum()} of {examples} exit with a wrong answer (red)"
    )
    entitle(panel, f"{title}: what every layer answers", f"{rule}{wrong}")
    label = "error" if regression else "lead of the right class (below 0: wrong)"
    figure.colorbar(image, label=label, pad=0.02)
    return figure
