"""Methods at equal costs: each is a rule on a model, and models trained with several seeds count as
one. Settings are chosen for every model by itself, on the same calibration examples.

The cost is the computation cost, as a share of the largest model's full depth: a model whose full
depth takes half of its FLOPs costs half as much at the same share of its layers.

A metric is an array (1 + resamples,): its value first, then that in each resample, which draws the
examples, the same for all methods, and the seeds.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from evaluation.exit_metrics import interval
from evaluation.figures import COLOURS, SOFT, styled
from evaluation.sweep import FULL_DEPTH, RANDOM_MIXTURE, Sweep
from exit_lab.choice import Parts
from exit_lab.compare import NOTHING, RESAMPLES, cost_limits, mean_over_seeds
from exit_lab.estimates import estimate
from exit_lab.frontiers import FrontierSet, frontier_set
from exit_lab.tables import Row
from glue.tasks import Task
from runs.console import markdown_table

CURVE_POINTS = 60  # of a figure


class SweptModel(NamedTuple):
    """A model of a comparison: its sweep, and the FLOPs of its full depth."""

    swept: Sweep
    full_depth_flops: float  # mean over the examples


@dataclass(frozen=True)
class Outcome:
    """A method at or under a cost: means over its seeds, on the held-out part."""

    cost: float
    metric: np.ndarray  # (1 + resamples,)
    gain: np.ndarray  # over the random mixture of each model's layers at the same cost, likewise


@dataclass(frozen=True)
class Method:
    """A rule on the models of one name: a folder, or a pattern whose folders are seeds.

    Attributes:
        name: of the models, and of the rule where several are compared.
        rule: the rule.
        models: the frontiers of each seed.
        full_costs: what the full depth of each costs, as a share of the largest model's.
        seed: of the resamples of seeds; methods on the same models draw the same ones.
    """

    name: str
    rule: str
    models: Sequence[FrontierSet]
    full_costs: Sequence[float]
    seed: int

    @property
    def label(self) -> str:
        """Its name in a table or a figure, with the number of its seeds."""
        count = len(self.models)
        return self.name if count == 1 else f"{self.name} ({count} seeds)"

    def within(self, limit: float) -> Outcome | None:
        """Return the best at or under a cost; None where a seed's cheapest setting costs more."""
        costs = []
        measures = []
        for fronts, full_cost in zip(self.models, self.full_costs, strict=True):
            point = fronts.frontiers[self.rule].within(limit / full_cost)
            if point is None:
                return None
            mixture = fronts.at(RANDOM_MIXTURE, point.cost)
            costs.append(full_cost * point.cost)
            measures.append({"metric": point.metric, "gain": point.metric - mixture.metric})
        means = mean_over_seeds(measures, self.seed)
        return Outcome(float(np.mean(costs)), means["metric"], means["gain"])

    def full_depth(self) -> np.ndarray:
        """Return the metric of full depth, (1 + resamples,)."""
        measures = [{"metric": fronts.at(FULL_DEPTH, 1.0).metric} for fronts in self.models]
        return mean_over_seeds(measures, self.seed)["metric"]

    def curve(self, steps: int) -> np.ndarray:
        """Return what the method reaches at or under so many costs, the last its full depth.

        (5, points): cost limit, cost, metric and the two ends of its interval.
        """
        points = []
        for limit in max(self.full_costs) * np.arange(1, steps + 1) / steps:
            outcome = self.within(limit)
            if outcome:
                low, high = interval(outcome.metric)
                points.append([limit, outcome.cost, outcome.metric[0], low, high])
        return np.array(points).T


@dataclass(frozen=True)
class MethodComparison:
    """Methods on the same examples."""

    task: Task
    parts: Parts
    methods: Sequence[Method]
    layers: int  # of the largest model

    def limits(self) -> list[float]:
        """List the cost limits of the tables."""
        return cost_limits(self.layers)

    def as_markdown(self) -> str:
        """Compare the methods at equal costs, with two or three tables."""
        metric = f"100 × {self.task.primary_metric}"
        gains = [
            [outcome.gain if outcome else None for outcome in of_method]
            for of_method in self.outcomes
        ]
        text = (
            f"{self.task.shown_name}, {metric}: best setting of each model at or under each cost, "
            f"chosen on {len(self.parts.calibration)} examples, reported on the other "
            f"{len(self.parts.report)}, mean over seeds [95% interval, drawing examples and seeds] "
            "at its cost there. Cost: computation cost, 1.00 = full depth of the largest model.\n"
            f"\n{self.metric_table()}\n"
            f"\nMinus {RANDOM_MIXTURE} of the same models at the same cost, in points (paired; "
            "bold: the interval leaves out 0):\n"
            f"\n{self.table(self.methods, gains)}\n"
        )
        first, *others = self.methods
        if not others:
            return text
        of_first, *of_others = self.outcomes
        differences = []
        for of_method in of_others:
            pairs = zip(of_method, of_first, strict=True)
            differences.append(
                [one.metric - other.metric if one and other else None for one, other in pairs]
            )
        return (
            f"{text}\nLess {first.label} at or under the same cost, in points (paired over "
            f"examples):\n\n{self.table(others, differences)}\n"
        )

    @cached_property
    def outcomes(self) -> list[list[Outcome | None]]:
        """The outcomes of each method at `limits`; see `Method.within`."""
        return [[method.within(limit) for limit in self.limits()] for method in self.methods]

    def metric_table(self) -> str:
        """Format a row a method, a column a cost limit, and one for full depth."""
        rows = []
        for method, of_method in zip(self.methods, self.outcomes, strict=True):
            cells = []
            for outcome in of_method:
                if outcome:
                    value = estimate(outcome.metric).text(100, ".1f")
                    cells.append(f"{value} at {outcome.cost:.2f}")
                else:
                    cells.append(NOTHING)
            full_depth = estimate(method.full_depth()).text(100, ".1f")
            full_cost = float(np.mean(method.full_costs))
            rows.append([method.label, *cells, f"{full_depth} at {full_cost:.2f}"])
        return markdown_table([*self.columns(), FULL_DEPTH], rows)

    def table(
        self, methods: Sequence[Method], differences: Sequence[Sequence[np.ndarray | None]]
    ) -> str:
        """Format a row a method, a column a cost limit: a difference in points."""
        rows = []
        for method, of_method in zip(methods, differences, strict=True):
            cells = [
                NOTHING if values is None else estimate(values).difference_text()
                for values in of_method
            ]
            rows.append([method.label, *cells])
        return markdown_table(self.columns(), rows)

    def columns(self) -> list[str]:
        """List the titles of a table's columns."""
        return ["", *(f"cost ≤ {limit:.2f}" for limit in self.limits())]

    def curves(self) -> Iterator[tuple[Method, np.ndarray]]:
        """Yield each method with its curve; see `Method.curve`."""
        for method in self.methods:
            layers = method.models[0].layers
            yield method, method.curve(layers * max(1, CURVE_POINTS // layers))

    def csv_rows(self) -> list[Row]:
        """Make the rows of compare.csv: the points of every curve."""
        metric = self.task.primary_metric
        rows = []
        for method, curve in self.curves():
            for limit, cost, value, low, high in curve.T.tolist():
                rows.append(
                    {
                        "method": method.name,
                        "seeds": len(method.models),
                        "cost_limit": limit,
                        "computation_cost": cost,
                        metric: value,
                        f"{metric}_low": low,
                        f"{metric}_high": high,
                    }
                )
        return rows

    @styled
    def figure(self) -> Figure:
        """Draw a curve for each method, with its interval as a band; a ring is its full depth."""
        figure = Figure(figsize=(6.4, 4.2))
        panel = figure.subplots()
        panel.grid()
        for number, (method, curve) in enumerate(self.curves()):
            colour = COLOURS[number % len(COLOURS)]
            _, cost, metric, low, high = curve
            cost = np.maximum.accumulate(cost)
            panel.fill_between(cost, low, high, step="post", color=colour, alpha=0.15, lw=0)
            panel.step(cost, metric, ".-", where="post", color=colour, label=method.label)
            full_depth = method.full_depth()[0]
            panel.plot(np.mean(method.full_costs), full_depth, "o", color=colour, mfc="white")
        panel.plot([], [], "o", color=SOFT, mfc="white", label=FULL_DEPTH)
        _, top = panel.get_ylim()
        panel.set_ylim(top=min(top, 1.02))  # the intervals of few seeds may pass 1
        panel.set(xlabel="computation cost", ylabel=self.task.primary_metric)
        panel.set_title(f"{self.task.shown_name}, {len(self.parts.report)} examples")
        panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15))
        return figure


def compare_methods(
    models: Mapping[str, Sequence[SweptModel]], parts: Parts, seed: int
) -> MethodComparison:
    """Compare the rules that were swept, on models by name.

    models: several of one name are its seeds, for which the same rules were swept. seed: of the
    resamples.
    """
    everyone = [model for of_name in models.values() for model in of_name]
    largest = max(everyone, key=lambda model: model.full_depth_flops)
    rule_count = len({rule for model in everyone for rule in model.swept.grids})
    methods = []
    for number, (name, of_name) in enumerate(models.items(), start=1):
        full_costs = [model.full_depth_flops / largest.full_depth_flops for model in of_name]
        for rule in of_name[0].swept.grids:
            fronts = [
                frontier_set(
                    model.swept, parts, RESAMPLES, seed, (rule, RANDOM_MIXTURE, FULL_DEPTH)
                )
                for model in of_name
            ]
            method_name = name if rule_count == 1 else f"{name}: {rule}"
            methods.append(Method(method_name, rule, fronts, full_costs, seed + number))
    return MethodComparison(
        task=largest.swept.task, parts=parts, methods=methods, layers=largest.swept.num_layers
    )
