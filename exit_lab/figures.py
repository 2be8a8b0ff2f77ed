"""The figures of a sweep: metric against cost, the rules' exits side by side, all examples."""

from typing import Any, NamedTuple

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from evaluation.figures import (
    BELOW,
    COLOURS,
    INK,
    SOFT,
    annotate,
    clear_frame,
    padded_limits,
    set_titles,
)
from exit_lab.compare import FrontierSet, Point, limits_of
from exit_lab.metrics import at_exit, interval
from exit_lab.sweep import COIN, FULL_DEPTH, ORACLE, TRUNCATION
from glue.tasks import Task, primary_metric


class Curve(NamedTuple):
    """Methods with the same frontier.

    cost, metric, low, high: (steps,) mean over the models, and the 95% interval.
    """

    names: tuple[str, ...]
    cost: np.ndarray
    metric: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @property
    def label(self) -> str:
        return ", ".join(self.names)


def rule_curves(found: FrontierSet) -> list[Curve]:
    """The frontiers of the rules; rules that draw the same line share one."""
    curves: list[Curve] = []
    for name in found.rules:
        curve = curve_of(found, name)
        for number, other in enumerate(curves):
            if all(map(np.array_equal, curve[1:3], other[1:3])):
                curves[number] = other._replace(names=(*other.names, name))
                break
        else:
            curves.append(curve)
    return curves


def curve_of(found: FrontierSet, name: str) -> Curve:
    """A method's points from the cheapest cost that all models have to the last that changes."""
    fronts = found.frontiers[name]
    cost = np.unique(np.concatenate([np.maximum.accumulate(front.cost) for front in fronts]))
    cost = cost[cost >= max(front.cost[0] for front in fronts)]
    metric = found.mean_over_models([front.along(cost) for front in fronts])
    kept = np.r_[True, np.diff(metric[:, 0]) != 0]
    return Curve((name,), *(line[kept] for line in (cost, metric[:, 0], *interval(metric))))


def chosen_and_shown(found: FrontierSet) -> str:
    chosen, shown = map(len, found.parts)
    return f"chosen on {chosen} examples, shown on the other {shown}"


def frontier_figure(found: FrontierSet, task: Task) -> Figure:
    """All frontiers in one panel; each rule's beside it, with its interval and the coin."""
    curves, coin = rule_curves(found), curve_of(found, COIN)
    looks = [{"color": COLOURS[i % len(COLOURS)]} for i in range(len(curves))]
    rows = min(2, len(curves))
    columns = -(-len(curves) // rows)
    figure = plt.figure(figsize=(5.4 + 2.5 * columns, 4.9))
    grid = figure.add_gridspec(
        rows, columns + 1, width_ratios=[5.2, *[2.4] * columns], wspace=0.2, hspace=0.24
    )
    main = figure.add_subplot(grid[:, 0])
    # Ever thinner, so that lines above each other are all seen.
    widths = np.linspace(3.2, 1.4, len(curves))
    for curve, look, width in zip(curves, looks, widths, strict=True):
        draw_steps(main, curve, linewidth=width, label=curve.label, **look)
    draw_baselines(main, found, coin)
    metric, models = primary_metric(task), len(found.frontiers[COIN])
    main.set(xlabel="computation cost (mean exit layer / layers)", ylabel=metric)
    set_titles(
        main,
        f"{task.name}: {metric} against computation cost",
        f"best setting at or under each cost{f', mean of {models} models' if models > 1 else ''},\n"
        f"{chosen_and_shown(found)}; band: 95% interval\n"
        "coin: each example stops at one of two layers, by chance\n"
        "oracle: each example stops at its first right layer",
    )
    full = float(found.at(FULL_DEPTH, 1.0).metric[0])
    sides: list[Axes] = []
    for number, (curve, look) in enumerate(zip(curves, looks, strict=True)):
        place = grid[number % rows, 1 + number // rows]
        panel = figure.add_subplot(place, sharex=main, sharey=sides[0] if sides else None)
        sides.append(panel)
        panel.plot(coin.cost, coin.metric, color=SOFT, linewidth=1)
        panel.fill_between(
            curve.cost, curve.low, curve.high, step="post", alpha=0.2, linewidth=0, **look
        )
        draw_steps(panel, curve, linewidth=1.8, **look)
        panel.set_title(curve.label, fontsize=9, loc="left", weight="bold", **look)
        panel.tick_params(
            labelleft=number < rows,
            labelbottom=number % rows == rows - 1 or number == len(curves) - 1,
            labelsize=8,
        )
    shown = [values for curve in (*curves, coin) for values in (curve.low, curve.high)]
    sides[0].set_ylim(*padded_limits(np.concatenate([*shown, [full]])))
    main.set_xlim(*padded_limits(np.array([1 / found.layers, *(c.cost[-1] for c in curves)])))
    annotate(main, f"full depth {full:.3f}", (main.get_xlim()[1], full), ha="right")
    for panel in figure.axes:
        panel.axhline(full, color=INK, linestyle=":", linewidth=1)
        clear_frame(panel, "both")
    figure.legend(fontsize=8.5, ncol=4, **BELOW)
    return figure


def draw_steps(panel: Axes, curve: Curve, **look: Any) -> None:
    """A line that ends where nothing changes any more."""
    panel.step(curve.cost, curve.metric, where="post", zorder=3, **look)
    panel.plot(curve.cost[-1], curve.metric[-1], "o", color=look["color"], markersize=3.5)


def draw_baselines(panel: Axes, found: FrontierSet, coin: Curve) -> None:
    """Truncation as dots, the coin as the line between the best of them, the oracle above all."""
    layers, oracle = curve_of(found, TRUNCATION), curve_of(found, ORACLE)
    panel.plot(layers.cost, layers.metric, "o", color=SOFT, markersize=4, label=layers.label)
    panel.plot(coin.cost, coin.metric, color=SOFT, linewidth=1.4, label=coin.label)
    panel.plot(oracle.cost, oracle.metric, "--", color=INK, linewidth=1.2, label=oracle.label)


def exits_at(found: FrontierSet, limit: float) -> dict[str, tuple[np.ndarray, Point]]:
    """Each rule's setting for a cost limit, and how many of the report part exit at each layer.

    Of the first model; truncation is the last. Rules with the same exits are one.
    """
    exits: dict[tuple[int, ...], tuple[str, Point]] = {}
    for name in [*found.rules, TRUNCATION]:
        front, point = found.frontiers[name][0], found.at(name, limit)
        if point is None:
            continue
        exit_layer = front.exit_layer[int(front.positions(limit))]
        counts = np.bincount(exit_layer, minlength=found.layers + 1)[1:]
        key = (*counts.tolist(), name == TRUNCATION)
        names = f"{exits[key][0]}, {name}" if key in exits else name
        exits[key] = names, point
    return {name: (np.array(counts), point) for (*counts, _), (name, point) in exits.items()}


def exits_figure(found: FrontierSet, task: Task) -> Figure:
    """A bar a rule: the shares of examples that exit after each layer, at a middling cost."""
    limits = limits_of(found.layers)
    limit = limits[len(limits) // 2]
    rules = exits_at(found, limit)
    colours = plt.get_cmap("viridis_r")(np.linspace(0.05, 0.95, found.layers))
    figure, panel = plt.subplots(figsize=(7.2, 0.42 * len(rules) + 1.5))
    for row, (counts, point) in enumerate(rules.values()):
        shares = counts / counts.sum()
        for layer, (share, end) in enumerate(zip(shares, shares.cumsum(), strict=True)):
            bar = panel.barh(row, share, left=end - share, color=colours[layer], height=0.7)
            dark = np.dot(colours[layer][:3], (0.3, 0.6, 0.1)) < 0.5
            number = [str(layer + 1) if share > 0.04 else ""]
            ink = "white" if dark else "black"
            panel.bar_label(bar, number, label_type="center", fontsize=8, color=ink)
        panel.text(
            1.01, row, f"{point.metric[0]:.3f} at {point.cost[0]:.2f}", va="center", fontsize=9
        )
    panel.text(1.01, -0.8, f"{primary_metric(task)} at cost", va="center", fontsize=9, color=SOFT)
    panel.set_yticks(range(len(rules)), list(rules), fontsize=9)
    panel.set(xlim=(0, 1), ylim=(len(rules) - 0.4, -0.6))
    panel.set_xlabel("share of examples; the number is the exit layer")
    title = f"{task.name}: where examples exit at a cost of at most {limit:.2f}"
    set_titles(panel, title, f"each rule's best setting, {chosen_and_shown(found)}")
    panel.spines[["top", "right"]].set_visible(False)
    return figure


def leads(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """By how much the right class leads the best other one, −1 to 1: below 0 the answer is wrong.

    (layers, examples, classes) -> (layers, examples).
    """
    right = np.arange(scores.shape[-1]) == labels[:, None]
    others = np.where(right, -np.inf, scores).max(-1)
    return np.where(right, scores, 0).sum(-1) - others


def heatmap_figure(
    scores: np.ndarray, labels: np.ndarray, exit_layer: np.ndarray, task: Task, rule: str
) -> Figure:
    """Examples × layers, sorted by exit layer; the line is where each example exits.

    scores: (layers, examples, classes) probabilities, or (layers, examples, 1) values.
    exit_layer: (examples,), 1-based.
    """
    regression = task.is_regression
    values = scores[..., 0] - labels if regression else leads(scores, labels)
    end = at_exit(values, exit_layer)
    order = np.lexsort((-end, exit_layer))
    layers, examples = values.shape
    figure, panel = plt.subplots(figsize=(6.6, 4.8), layout="constrained")
    most = float(np.abs(values).max()) or 1.0 if regression else 1.0
    # Without the darkest ends, which would stay dark when drawn paler.
    colours = plt.get_cmap("PuOr" if regression else "RdBu")(np.linspace(0.12, 0.88, 256))
    image = panel.imshow(
        values[:, order].T,
        aspect="auto",
        interpolation="nearest",
        cmap=ListedColormap(colours),
        vmin=-most,
        vmax=most,
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
    wrong = f"; {(end < 0).sum()} of {examples} exit with a wrong answer (red)"
    set_titles(
        panel, f"{task.name}: what every layer answers", rule + ("" if regression else wrong)
    )
    label = "error" if regression else "lead of the right class (below 0: wrong)"
    figure.colorbar(image, label=label, pad=0.02)
    return figure
