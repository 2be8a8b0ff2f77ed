"""The figures of a sweep: metric against cost, and all examples."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from evaluation.figures import COLOURS, INK, SOFT, styled
from exit_lab.compare import FrontierSet
from exit_lab.sweep import COIN, FULL_DEPTH, ORACLE, TRUNCATION
from glue.metrics import at_exit, interval
from glue.tasks import Task

COLUMNS = 4  # of panels


def padded_limits(values: np.ndarray) -> tuple[float, float]:
    """Limits of an axis that shows `values` with some air."""
    low, high = float(np.min(values)), float(np.max(values))
    air = 0.06 * (high - low) or 0.01
    return low - air, high + air


def curve_of(found: FrontierSet, name: str) -> np.ndarray:
    """A method's points from the cheapest cost that all models have to the last that changes.

    (4, points): cost, metric, the mean over the models, and its interval's ends.
    """
    fronts = found.frontiers[name]
    limits = np.unique(np.concatenate([front.allowed for front in fronts]))
    limits = limits[limits >= max(front.allowed[0] for front in fronts)]
    points = [found.at(name, limit) for limit in limits]
    # What was chosen as dearer never counts as cheaper.
    cost = np.maximum.accumulate([point.cost.mean() for point in points])
    metric = np.stack([point.metric for point in points])
    kept = np.r_[True, np.diff(metric[:, 0]) != 0]
    return np.stack([cost, metric[:, 0], *interval(metric)])[:, kept]


@styled
def frontier_figure(found: FrontierSet, task: Task) -> Figure:
    """A panel a rule: its frontier with its interval, the other rules' in grey, the baselines."""
    curves = {name: curve_of(found, name) for name in found.frontiers}
    columns = min(COLUMNS, len(found.rules))
    rows = -(-len(found.rules) // columns)
    figure = Figure(figsize=(max(6.4, 3.1 * columns), 3 * rows + 1.2))
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    full, coin, layers = (curves[name] for name in (FULL_DEPTH, COIN, TRUNCATION))
    for panel in grid.flat[len(found.rules) :]:
        panel.remove()
    for number, (name, panel) in enumerate(zip(found.rules, grid.flat, strict=False)):
        panel.grid()
        for other in found.rules:
            panel.step(*curves[other][:2], where="post", color=SOFT, alpha=0.35, linewidth=1)
        curve, colour = curves[name], COLOURS[number % len(COLOURS)]
        panel.fill_between(curve[0], *curve[2:], step="post", color=colour, alpha=0.2, lw=0)
        panel.step(*curve[:2], where="post", color=colour, linewidth=2)
        panel.plot(*layers[:2], "o", color=SOFT, markersize=4, label=TRUNCATION)
        panel.plot(*coin[:2], color=SOFT, linewidth=1.4, label=COIN)
        panel.plot(*curves[ORACLE][:2], "--", color=INK, linewidth=1.2, label=ORACLE)
        panel.axhline(full[1, 0], color=INK, linestyle=":", linewidth=1, label=FULL_DEPTH)
        panel.set_title(name, weight="bold", color=colour)
        panel.tick_params(labelbottom=number >= len(found.rules) - columns)
    rules = [curves[name] for name in found.rules]
    shown = np.concatenate([line for curve in (*rules, coin, full) for line in curve[1:]])
    grid[0, 0].set(ylabel=task.primary_metric, ylim=padded_limits(shown))
    grid[0, 0].set_xlim(*padded_limits(np.array([1 / found.layers, *(c[0, -1] for c in rules)])))
    models, (chosen, reported) = len(found.frontiers[COIN]), map(len, found.parts)
    mean = f", mean of {models} models" if models > 1 else ""
    figure.suptitle(
        f"{task.shown_name}: {task.primary_metric} against computation cost "
        f"(mean exit layer / layers)\n"
        f"best setting at or under each cost{mean}, chosen on {chosen} examples, shown on the "
        f"other {reported}; band: 95% interval",
        y=0.95,
        va="bottom",
        fontsize=9,
    )
    handles = grid[0, 0].get_legend_handles_labels()
    figure.legend(*handles, ncol=4, loc="upper center", bbox_to_anchor=(0.5, 0.0))
    return figure


@styled
def heatmap_figure(
    scores: np.ndarray, labels: np.ndarray, exit_layer: np.ndarray, task: Task, rule: str
) -> Figure:
    """Examples × layers, sorted by exit layer; the line is where each example exits.

    scores: (layers, examples, classes) probabilities, or (layers, examples, 1) values.
    exit_layer: (examples,), 1-based.
    """
    regression, right = task.is_regression, np.arange(scores.shape[-1]) == labels[:, None]
    if regression:
        values = scores[..., 0] - labels
    else:  # by how much the right class leads the best other one, −1 to 1
        others = np.where(right, -np.inf, scores).max(-1)
        values = np.where(right, scores, 0).sum(-1) - others
    end = at_exit(values, exit_layer)
    order = np.lexsort((-end, exit_layer))
    layers, examples = values.shape
    most = float(np.abs(values).max()) or 1.0 if regression else 1.0
    figure = Figure(figsize=(6.6, 4.8), layout="constrained")
    panel = figure.subplots()
    image = panel.imshow(
        values[:, order].T,
        aspect="auto",
        interpolation="nearest",
        cmap="PuOr" if regression else "RdBu",
        vmin=-1.3 * most,  # without the darkest ends, which would stay dark when drawn paler
        vmax=1.3 * most,
        extent=(0.5, layers + 0.5, examples, 0),
    )
    border = np.r_[exit_layer[order], exit_layer[order][-1:]] + 0.5
    rows = np.arange(examples + 1)
    panel.fill_betweenx(rows, border, layers + 0.5, step="pre", color="white", alpha=0.45, lw=0)
    panel.step(border, rows, where="pre", color=INK, linewidth=1.4)
    panel.xaxis.set_major_locator(MaxNLocator(nbins=13, integer=True))
    panel.set(xlabel="layer; paler: never computed", ylabel="examples, by exit layer and answer")
    wrong = f"; {(end < 0).sum()} of {examples} exit with a wrong answer (red)"
    subtitle = rule + ("" if regression else wrong)
    panel.set_title(f"{task.shown_name}: what every layer answers\n{subtitle}")
    label = "error" if regression else "lead of the right class (below 0: wrong)"
    figure.colorbar(image, label=label, pad=0.02)
    return figure
