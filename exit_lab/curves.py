"""Metric against cost: every rule's frontier beside truncation, and where examples exit."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evaluation.figures import COLOURS, GRID, INK, SOFT, entitle, frame, note
from exit_lab.frontiers import FULL_DEPTH, Field
from exit_lab.sweep import TRUNCATION

AXIS = "computation cost (mean exit layer / layers)"


class Curve(NamedTuple):
    """Contenders with the same frontier: its steps, and what else their panel shows.

    names: of the contenders; colour: of their line.
    cost, metric, low, high: (steps,) mean over the models, and the 95% interval.
    area: the mean metric over all costs.
    """

    names: tuple[str, ...]
    colour: str
    cost: np.ndarray
    metric: np.ndarray
    low: np.ndarray
    high: np.ndarray
    area: float

    @property
    def label(self) -> str:
        return ", ".join(self.names)


def curves_of(field: Field) -> list[Curve]:
    """The frontiers of the rules, then truncation's; rules that draw the same line share one."""
    curves: list[Curve] = []
    for number, name in enumerate([*field.rules, TRUNCATION]):
        colour = SOFT if name == TRUNCATION else COLOURS[number % len(COLOURS)]
        curve = curve_of(field, name, colour)
        same = [i for i, other in enumerate(curves) if equal(other, curve) and name != TRUNCATION]
        if same:
            twin = curves[same[0]]
            curves[same[0]] = twin._replace(names=(*twin.names, name))
        else:
            curves.append(curve)
    return curves


def equal(one: Curve, other: Curve) -> bool:
    return np.array_equal(one.cost, other.cost) and np.array_equal(one.metric, other.metric)


def curve_of(field: Field, name: str, colour: str) -> Curve:
    """A contender's steps from the cheapest cost that all models have to the last that changes."""
    fronts = field.frontiers[name]
    cost = np.unique(np.concatenate([np.maximum.accumulate(front.cost) for front in fronts]))
    cost = cost[cost >= max(front.cost[0] for front in fronts)]
    points = [front.steps(cost) for front in fronts]
    metric = np.mean([front.metric[i] for front, i in zip(fronts, points, strict=True)], 0)
    drawn = field.mixed([front.drawn[i] for front, i in zip(fronts, points, strict=True)])
    low, high = np.quantile(drawn, [0.025, 0.975], axis=1)
    kept = np.r_[True, np.diff(metric) != 0]
    area = float(np.mean(field.area(name)[0]))
    return Curve((name,), colour, *(values[kept] for values in (cost, metric, low, high)), area)


def frontier_figure(field: Field, metric: str, title: str, about: str) -> Figure:
    """All frontiers in one panel; each rule's beside it, with its interval and truncation's."""
    *rules, truncation = curves = curves_of(field)
    rows = 2 if len(rules) > 1 else 1
    columns = -(-len(rules) // rows)
    figure = plt.figure(figsize=(5.2 + 2.4 * columns, 4.9))
    grid = figure.add_gridspec(
        rows, columns + 1, width_ratios=[5.2, *[2.4] * columns], wspace=0.09, hspace=0.22
    )
    main = figure.add_subplot(grid[:, 0])
    full = float(np.mean([front.metric[0] for front in field.frontiers[FULL_DEPTH]]))
    by_area = sorted(curves, key=lambda curve: -curve.area)
    # Ever thinner, so that lines above each other are all seen.
    for curve, width in zip(by_area, np.linspace(3.2, 1.2, len(curves)), strict=True):
        thin = curve is truncation
        draw_steps(
            main, curve, 1.4 if thin else width, label=f"{curve.label}  {100 * curve.area:.1f}"
        )
    entitle(main, title, about)
    main.set(xlabel=AXIS, ylabel=metric)
    main.legend(
        title="area: mean over all costs", title_fontsize=8.5, fontsize=8.5, edgecolor="white",
        framealpha=0.85, loc="lower right", alignment="left",
    ).set_zorder(9)  # fmt: skip
    limits = {  # of all panels
        "xlim": (0, min(1.02, max(curve.cost[-1] for curve in curves) + 0.05)),
        "ylim": frame(
            np.concatenate([*(line for c in curves for line in (c.low, c.high)), [full]])
        ),
    }
    for number, curve in enumerate(rules):
        place = grid[number % rows, 1 + number // rows]
        panel = figure.add_subplot(place, sharex=main, sharey=main)
        panel.fill_between(
            curve.cost,
            curve.low,
            curve.high,
            step="post",
            color=curve.colour,
            alpha=0.2,
            linewidth=0,
        )
        if len(curve.cost) == 1:
            panel.vlines(curve.cost, curve.low, curve.high, color=curve.colour, alpha=0.4)
        draw_steps(panel, truncation, 1.0)
        draw_steps(panel, curve, 1.8)
        lowest = number % rows == rows - 1 or curve is rules[-1]
        panel.set_title(curve.label, fontsize=9, loc="left", color=curve.colour, weight="bold")
        panel.tick_params(labelleft=False, labelbottom=lowest, labelsize=8)
    for panel in figure.axes:
        panel.set(**limits)
        panel.axhline(full, color=INK, linestyle=":", linewidth=1)
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(color=GRID, linewidth=0.7)
        panel.set_axisbelow(True)
    note(main, f"full depth {full:.3f}", (0.01 * limits["xlim"][1], full))
    return figure


def draw_steps(panel: Axes, curve: Curve, width: float, label: str | None = None) -> None:
    """A line that ends where nothing changes any more; truncation's layers are dots."""
    truncation = curve.names == (TRUNCATION,)
    panel.step(
        curve.cost,
        curve.metric,
        where="post",
        color=curve.colour,
        linewidth=width,
        label=label,
        marker="o" if truncation else None,
        markersize=3,
        markevery=None if truncation else [-1],
        zorder=2 if truncation else 3,
    )
    if not truncation:
        panel.plot(curve.cost[-1], curve.metric[-1], "o", color=curve.colour, markersize=3.5)


class RuleExits(NamedTuple):
    """Where the examples exit under one setting."""

    name: str
    exits: Sequence[int]  # per layer
    metric: float
    cost: float


def exits_at(field: Field, limit: float) -> list[RuleExits]:
    """Each contender's setting for a cost limit, and where the report part exits under it.

    Of the first model. Rules with the same exits are one.
    """
    found: dict[tuple[int, ...], RuleExits] = {}
    for name in [*field.rules, TRUNCATION]:
        front = field.frontiers[name][0]
        point = front.at(limit)
        if point is None:
            continue
        counts = np.bincount(front.exit_layer[point], minlength=field.layers + 1)[1:]
        key = (*counts.tolist(), name == TRUNCATION)
        twin = found.get(key)
        names = f"{twin.name}, {name}" if twin else name
        found[key] = RuleExits(names, counts, front.metric[point], front.cost[point])
    return list(found.values())


def exits_by_rule_figure(rules: Sequence[RuleExits], metric: str, title: str, about: str) -> Figure:
    """A bar a rule: the shares of examples that exit after each layer."""
    layers = len(rules[0].exits)
    colors = plt.get_cmap("viridis_r")(np.linspace(0.05, 0.95, layers))
    figure, panel = plt.subplots(figsize=(7.2, 0.42 * len(rules) + 1.5))
    for row, rule in enumerate(rules):
        shares = np.array(rule.exits) / sum(rule.exits)
        left = np.r_[0, shares.cumsum()[:-1]]
        panel.barh(row, shares, left=left, color=colors, height=0.7)
        for layer in np.flatnonzero(shares > 0.04):
            dark = np.dot(colors[layer][:3], (0.3, 0.6, 0.1)) < 0.5
            panel.text(
                left[layer] + shares[layer] / 2,
                row,
                str(layer + 1),
                ha="center",
                va="center",
                fontsize=8,
                color="white" if dark else "black",
            )
        panel.text(1.01, row, f"{rule.metric:.3f} at {rule.cost:.2f}", va="center", fontsize=9)
    panel.text(1.01, -0.8, f"{metric} at cost", va="center", fontsize=9, color=SOFT)
    panel.set_yticks(range(len(rules)), [rule.name for rule in rules], fontsize=9)
    panel.set_ylim(len(rules) - 0.4, -0.6)
    panel.set_xlim(0, 1)
    panel.set_xlabel("share of examples; the number is the exit layer")
    entitle(panel, title, about)
    panel.spines[["top", "right"]].set_visible(False)
    return figure
