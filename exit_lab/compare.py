"""Rules and baselines at equal costs: chosen on some examples, measured on the others.

A method is a rule with all its settings, or a baseline: truncation stops everyone at one layer, the
coin stops each example at one of two layers, the oracle stops it at its first right one. The best
settings under each cost are chosen on the calibration part; their metric and cost are those of the
report part. Intervals are 95% percentile intervals of a bootstrap that draws examples, and of a
model's seeds these, too. All methods share the resamples, so that differences are paired.

A metric is an array (…, 1 + resamples): its value first, then that in each resample.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from answers.report import predictions_of
from answers.sweep import BASELINES, COIN, FULL_DEPTH, ORACLE, TRUNCATION, Recording, Sweep
from elbert.onnx_file import labels_in
from elbert.rules import scan_answers
from elbert_base.errors import UserError
from exit_lab.choice import TOLERANCE, Parts
from glue.metrics import METRICS, bootstrap_weights, concave_hull, frontier, interval
from runs.console import markdown_table
from runs.files import RunFolder
from runs.job import Job

RESAMPLES = 1000  # of the intervals
MOST_LIMITS = 6  # columns of a table


@dataclass(frozen=True)
class Frontier:
    """One model's best settings of a method, by rising cost."""

    allowed: np.ndarray  # the cost that they were chosen by, (points,)
    cost: np.ndarray  # on the report part, (points,), or of its examples, (points, examples)
    metric: np.ndarray  # on the report part, (points, 1 + resamples) or (points, examples)
    settings: Sequence[int] | np.ndarray = ()  # their numbers, (points,)
    mixes: bool = False  # does a coin between two settings give the costs between them?

    def position(self, limit: float) -> float:
        """The setting that answers under a cost limit; −1 where even the cheapest costs more.

        2.3 is a coin's: setting 2 for 0.7 of the examples, setting 3 for the other 0.3.
        """
        found = int(np.searchsorted(self.allowed, limit + TOLERANCE, "right")) - 1
        if not self.mixes or found < 0:
            return found
        return max(found, float(np.interp(limit, self.allowed, np.arange(len(self.allowed)))))


def mixed(values: np.ndarray, position: float) -> np.ndarray:
    """The value, (…), at a position between settings, of values (settings, …)."""
    first, last = int(position), len(values) - 1
    share = position - first
    return (1 - share) * values[first] + share * values[min(first + 1, last)]


def frontier_of(swept: Sweep, name: str, parts: Parts, drawn: np.ndarray) -> Frontier:
    """A method's frontier on the calibration part, measured on the report part."""
    exits, mixes = swept.exits_of(name), name in (COIN, ORACLE)
    rows = parts.report if name == ORACLE else parts.calibration  # the oracle knows every label
    cost = swept.cost(exits, rows)
    best = (concave_hull if mixes else frontier)(cost, swept.main_metric(exits, rows))
    return Frontier(
        cost[best],
        swept.cost(exits[best], parts.report),
        swept.main_metric(exits[best], parts.report, drawn),
        best,
        mixes,
    )


class Point(NamedTuple):
    """A method at a cost, on the report part."""

    settings: Sequence[int] | np.ndarray  # one, or the two of a mixture
    cost: float
    metric: np.ndarray  # (1 + resamples,)


class Estimate(NamedTuple):
    """A value with its 95% interval."""

    value: float
    low: float
    high: float

    def text(self, scale: float = 1, number: str = ".2f") -> str:
        """ "0.45 [0.40, 0.50]": times `scale`, in a number format."""
        return "{} [{}, {}]".format(*(format(scale * part, number) for part in self))

    def points(self, scale: float = 100, number: str = "+.1f") -> str:
        """A difference in points; bold where the interval leaves out 0, by more than rounding."""
        clear = self.low > TOLERANCE or self.high < -TOLERANCE
        return f"**{self.text(scale, number)}**" if clear else self.text(scale, number)


def estimate(metric: np.ndarray) -> Estimate:
    """The value of a metric (1 + resamples,), and its 95% interval."""
    return Estimate(*map(float, (metric[0], *interval(metric))))


def widened(shares: np.ndarray) -> np.ndarray:
    """Spread the models' shares in each resample, (resamples, models), by √(n/(n−1)).

    Drawn plainly, n models differ from their own mean by (n−1)/n of the variance that others would
    have (Davison and Hinkley 1997, section 2.3): a third too little for three seeds.
    """
    count = shares.shape[1]
    return 1 / count + np.sqrt(count / max(1, count - 1)) * (shares - 1 / count)


@dataclass(frozen=True)
class FrontierSet:
    """All methods' frontiers of a model, by name; they share examples and resamples."""

    frontiers: dict[str, Frontier]
    drawn: np.ndarray  # how often each resample takes each example, (1 + resamples, examples)
    layers: int
    parts: Parts

    @property
    def rules(self) -> list[str]:
        """The methods that are no baselines."""
        return [name for name in self.frontiers if name not in BASELINES]

    def at(self, name: str, limit: float) -> Point:
        """A method's result at a cost limit that it reaches.

        A mixture costs exactly the limit. Its metric is linear in it: of a metric that is no mean
        over the examples, that of a coin thrown once for all of them.
        """
        one = self.frontiers[name]
        position = one.position(limit)
        settings = one.settings[int(position) : math.ceil(position) + 1]
        cost = float(mixed(one.cost, position))
        return Point(settings, cost, mixed(one.metric, position))

    def over_coin(self, point: Point) -> Estimate:
        """The point's metric less that of the coin at the same cost, paired."""
        return estimate(point.metric - self.at(COIN, point.cost).metric)

    def efficiency(self, point: Point) -> Estimate | None:
        """Exit efficiency η = (rule − coin) / (oracle − coin) at the point's own cost.

        1: every example exits where it should; 0: a coin would do. None where the oracle is no
        better than the coin.
        """
        coin, oracle = self.at(COIN, point.cost).metric, self.at(ORACLE, point.cost).metric
        defined = oracle - coin > TOLERANCE
        if not defined[0]:
            return None
        return estimate(((point.metric - coin)[defined]) / (oracle - coin)[defined])


def frontier_set(
    swept: Sweep, parts: Parts, resamples: int, seed: int, names: Sequence[str] = ()
) -> FrontierSet:
    """The frontiers of `names` (default: every rule and baseline)."""
    drawn = bootstrap_weights(len(parts.report), resamples, seed)
    names = names or [*swept.grids, *BASELINES]
    frontiers = {name: frontier_of(swept, name, parts, drawn) for name in names}
    return FrontierSet(frontiers, drawn, swept.num_layers, parts)


# As tables.


def points_at(found: FrontierSet, name: str, limits: Sequence[float]) -> list[Point | None]:
    """A method's best setting at or under each cost limit; None of none. Full depth has one."""
    if name == FULL_DEPTH:
        return [found.at(name, 1.0)] * len(limits)
    front = found.frontiers[name]
    return [found.at(name, x) if front.position(x) >= 0 else None for x in limits]


def write_comparison(swept: Sweep, parts: Parts, seed: int, output: Path) -> None:
    """Print the comparison, and write it as compare.md."""
    found, task = frontier_set(swept, parts, RESAMPLES, seed), swept.task
    # The costs of truncation after some layers, closer where costs are low.
    depths = np.geomspace(1, max(1, found.layers - 1), MOST_LIMITS).round()
    limits, shown = (np.unique(depths) / found.layers).tolist(), [*found.rules, TRUNCATION]
    points = {name: points_at(found, name, limits) for name in found.frontiers}
    columns = ["", *(f"cost ≤ {limit:.2f}" for limit in limits)]
    text = (
        f"{task.shown_name}, 100 × {task.primary_metric}: best setting at or under each cost, "
        f"chosen on {len(parts.calibration)} examples, reported on the other {len(parts.report)} "
        "[95% interval, drawing examples] at its cost there.\n"
    )

    def efficiency(point: Point) -> str:
        share = found.efficiency(point)
        return share.text() if share else "–"

    for heading, names, write in (
        ("", points, lambda x: f"{estimate(x.metric).text(100, '.1f')} at {x.cost:.2f}"),
        (
            f"Less the {COIN} at the same cost, in points (paired; bold: the interval leaves out "
            "0):\n\n",
            shown,
            lambda x: found.over_coin(x).points(),
        ),
        (
            f"Exit efficiency: what a rule gains over the {COIN}, as a share of what the {ORACLE} "
            "gains at the same cost:\n\n",
            shown,
            efficiency,
        ),
    ):
        rows = [[name, *(write(x) if x else "–" for x in points[name])] for name in names]
        text += f"\n{heading}{markdown_table(columns, rows)}\n"
    RunFolder(output).write_text("compare.md", text)
    print(f"\n{text}")


def held_out_report(swept: Sweep, setting: int, parts: Parts, seed: int) -> str:
    """Report a setting on both parts, and whether it beats a coin between two layers that
    costs as much, compared on the report part: as Markdown."""
    found = frontier_set(swept, parts, RESAMPLES, seed, (COIN, ORACLE))
    both, main = swept.exit_layer[setting][None], swept.task.primary_metric
    both = np.concatenate([both, swept.truncations[-1:]])  # and full depth
    calibration = swept.metrics(both, parts.calibration)
    report = swept.metrics(both, parts.report, found.drawn)
    rows: list[tuple[str, ...]] = []
    for name, (early, full) in report.items():
        here, deep = calibration[name]
        drop = f"{name}, drop from full depth"
        for row, number, metric in ((name, here, early), (drop, deep - here, full - early)):
            value, low, high = estimate(metric)
            rows.append((row, f"{number:.4f}", f"{value:.4f}", f"{low:.4f} … {high:.4f}"))
    costs = [swept.cost(both, part)[0] for part in parts]
    rows.append(("computation cost", *(f"{cost:.4f}" for cost in costs), ""))
    if swept.seconds is not None:
        slowest = [swept.p95_ms(both, part)[0] for part in parts]
        rows.append(("p95 latency, ms (recorded)", *(f"{ms:.2f}" for ms in slowest), ""))
    heads = [f"{name} ({len(part)})" for name, part in zip(Parts._fields, parts, strict=True)]
    point = Point([setting], costs[1], report[main][0])
    layers = " or ".join(f"layer {n + 1}" for n in found.at(COIN, costs[1]).settings)
    efficiency, (value, low, high) = found.efficiency(point), found.over_coin(point)
    share = "–" if efficiency is None else efficiency.text()
    verdict = "Better than" if low > TOLERANCE else "Not shown to be better than"
    return (
        f"{markdown_table(['', *heads, '95% interval'], rows)}\n\n"
        f"{verdict} a coin that stops each example at {layers} for the same cost, "
        f"{costs[1]:.4f}:\n"
        f"  {main} {value:+.4f} [{low:+.4f}, {high:+.4f}]\n"
        f"  exit efficiency, its gain over the coin as a share of the oracle's: {share}\n"
    )


# Two models.


def measured(job: Job, recording: Recording, drawn: np.ndarray) -> dict[str, np.ndarray]:
    """Every metric and cost of a model under its own rule, (1 + resamples,) each.

    drawn: (1 + resamples, examples), how often each resample takes each example.
    """
    config, labels = job.config, recording.labels
    answers, exits = scan_answers(config.exit_rule(), recording.tensors)
    found = predictions_of(answers, job.task.multi_label)[None]
    metrics = METRICS[job.task.metric](found, labels, drawn.astype(float))
    flops = map(config.early_exit_flops, job.features.lengths.tolist(), exits.tolist())
    costs = {
        "computation cost": exits.numpy() / config.num_hidden_layers,
        "GFLOPs per example": np.array([*flops]) / 1e9,
    }
    means = {name: drawn @ each / len(labels) for name, each in costs.items()}
    return {name: values[0] for name, values in metrics.items()} | means


def two_models(sides: Mapping[str, Sequence[tuple[Job, Recording]]], seed: int) -> str:
    """Compare two models, by name, on the same examples, each under its own rule: as Markdown.

    Several of one name are its seeds, of which the mean counts; an interval draws them, too.
    Raises UserError for models whose labels stand in another order.
    """
    jobs = [job for job, _ in chain(*sides.values())]
    task, count = jobs[0].task, len(jobs[0].features)
    if not task.folder and len({str(labels_in(job.config)) for job in jobs}) > 1:
        raise UserError(f"--compare {' '.join(sides)}: the models' labels differ")
    drawn, means = bootstrap_weights(count, RESAMPLES, seed), []
    for number, models in enumerate(sides.values(), start=1):
        found = [measured(*model, drawn) for model in models]
        shares = widened(bootstrap_weights(len(found), RESAMPLES, seed + number) / len(found)).T
        means.append({x: (np.array([one[x] for one in found]) * shares).sum(0) for x in found[0]})
    rows = []
    for name, first in means[0].items():
        second = means[1][name]
        values = [estimate(side).text(number=".4f") for side in (first, second)]
        rows.append((name, *values, estimate(second - first).points(1, "+.4f")))
    names = [f"mean of {len(x)} seeds, {name}" if len(x) > 1 else name for name, x in sides.items()]
    head = (f"{task.shown_name}, {count} examples", *names, "second − first")
    return (
        f"{markdown_table(head, rows)}\n\n"
        "[95% interval; paired: both models answer the examples drawn; bold: it leaves out 0]"
    )
