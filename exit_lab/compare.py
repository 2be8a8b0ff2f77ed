"""Comparisons as Markdown tables: rules at equal costs, a choice held out, two models."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from evaluation.exit_metrics import bootstrap_weights
from evaluation.guarantee import Guarantee
from evaluation.measures import predictions_of
from evaluation.sweep import FULL_DEPTH, ORACLE, RANDOM_MIXTURE, TRUNCATION, Recording, Sweep
from exit_lab.choice import TOLERANCE, Parts
from exit_lab.estimates import Estimate, estimate, widen_shares
from exit_lab.frontiers import FrontierSet, Point, frontier_set
from glue.metrics import weighted_metrics
from modeling.configuration import EarlyExitConfig
from modeling.errors import UserError
from modeling.loading.configs import label_names
from modeling.rules import scan_answers
from runs.console import markdown_table
from runs.folder import RunFolder
from runs.job import Job

RESAMPLES = 1000  # of the intervals
MOST_LIMITS = 6  # columns of a table
NOTHING = "–"  # in a cell without a value


# Rules and baselines at equal costs.


def write_comparison(swept: Sweep, parts: Parts, seed: int, output: Path) -> None:
    """Print the comparison, and write it into `output` as compare.md."""
    text = comparison(swept, frontier_set(swept, parts, RESAMPLES, seed))
    RunFolder(output).write_text("compare.md", text)
    print(f"\n{text}")


def comparison(swept: Sweep, fronts: FrontierSet) -> str:
    """Compare all methods at equal costs: as Markdown, with three tables."""
    task, parts = swept.task, fronts.parts
    limits = cost_limits(fronts.layers)
    points = {name: points_within(fronts, name, limits) for name in fronts.frontiers}
    rules_and_truncation = {name: points[name] for name in (*fronts.rules, TRUNCATION)}

    def metric_text(point: Point) -> str:
        return f"{estimate(point.metric).text(100, '.1f')} at {point.cost:.2f}"

    def gain_text(point: Point) -> str:
        return fronts.gain_over_mixture(point).difference_text()

    def efficiency_text(point: Point) -> str:
        efficiency = fronts.efficiency(point)
        return efficiency.text() if efficiency else NOTHING

    return (
        f"{task.shown_name}, 100 × {task.primary_metric}: best setting at or under each cost, "
        f"chosen on {len(parts.calibration)} examples, reported on the other {len(parts.report)} "
        "[95% interval, drawing examples] at its cost there.\n"
        f"\n{table_of_points(limits, points, metric_text)}\n"
        f"\nMinus {RANDOM_MIXTURE} at the same cost, in points (paired; bold: the interval "
        f"leaves out 0):\n\n{table_of_points(limits, rules_and_truncation, gain_text)}\n"
        f"\nExit efficiency: what a rule gains over {RANDOM_MIXTURE}, as a share of what the "
        f"{ORACLE} gains at the same cost:\n\n"
        f"{table_of_points(limits, rules_and_truncation, efficiency_text)}\n"
        f"\nELUE's score in points, with {TRUNCATION} in ElasticBERT's place: the mean, over a "
        f"rule's best settings, of what it gains over {TRUNCATION}, between two layers, at the "
        "same cost:\n\n"
        f"{markdown_table(['', 'score'], elue_rows(fronts))}\n"
    )


def elue_rows(fronts: FrontierSet) -> list[list[str]]:
    """Make a row for each rule, with its score."""
    return [[name, fronts.elue_score(name).difference_text()] for name in fronts.rules]


def cost_limits(layers: int) -> list[float]:
    """List the cost limits of a comparison: costs of truncation, closer where costs are low."""
    depths = np.geomspace(1, max(1, layers - 1), MOST_LIMITS).round()
    return (np.unique(depths) / layers).tolist()


def points_within(fronts: FrontierSet, name: str, limits: Sequence[float]) -> list[Point | None]:
    """List a method's best points at or under each cost limit; None where there is none.

    Full depth, which has one cost, stands under every limit as what the others are compared with.
    """
    if name == FULL_DEPTH:
        return [fronts.at(name, 1.0)] * len(limits)
    return [fronts.frontiers[name].within(limit) for limit in limits]


def table_of_points(
    limits: Sequence[float],
    points: Mapping[str, Sequence[Point | None]],
    cell_text: Callable[[Point], str],
) -> str:
    """Format a row a method, a column a cost limit, with `cell_text` of each point."""
    columns = ["", *(f"cost ≤ {limit:.2f}" for limit in limits)]
    rows = []
    for name, points_of_method in points.items():
        cells = [cell_text(point) if point else NOTHING for point in points_of_method]
        rows.append([name, *cells])
    return markdown_table(columns, rows)


# A choice.


def held_out_report(
    swept: Sweep,
    setting: int,
    parts: Parts,
    seed: int,
    max_drop: float | None = None,
    guarantee: Guarantee | None = None,
) -> str:
    """Report a setting on both parts of the examples: as Markdown.

    A table; then in words what is saved and what new data may lose; then whether the setting beats
    a random mixture of two layers that costs as much, on the held-out part.

    Args:
        max_drop: the largest loss that was asked for, if one was.
        guarantee: what the choice guarantees, if anything.
    """
    fronts = frontier_set(swept, parts, RESAMPLES, seed, (RANDOM_MIXTURE, ORACLE))
    exits = swept.exit_layer[setting][None]  # (1, examples)
    calibration = swept.metrics(exits, parts.calibration)  # (1,) each
    full_calibration = swept.full_depth_metrics(parts.calibration)
    weights = fronts.resample_weights
    report = swept.metrics(exits, parts.report, weights)  # (1, 1 + resamples) each
    full_report = swept.full_depth_metrics(parts.report, weights)
    rows = []
    for name, (early,) in report.items():
        (full,) = full_report[name]
        calibration_early = calibration[name][0]
        drop = full_calibration[name][0] - calibration_early
        rows.append(held_out_row(name, calibration_early, early))
        rows.append(held_out_row(f"{name}, drop from full depth", drop, full - early))
    costs = [float(swept.cost(exits, part)[0]) for part in parts]
    rows.append(["computation cost", *(f"{cost:.4f}" for cost in costs), ""])
    if swept.seconds is not None:
        p95_ms = [swept.p95_ms(exits, part)[0] for part in parts]
        rows.append(["p95 latency, ms (recorded)", *(f"{ms:.2f}" for ms in p95_ms), ""])
    columns = [
        "",
        f"calibration ({len(parts.calibration)})",
        f"held out ({len(parts.report)})",
        "95% interval",
    ]
    main_metric = swept.task.primary_metric
    _, report_cost = costs
    point = Point([setting], report_cost, report[main_metric][0])
    drop_on_report = full_report[main_metric][0] - report[main_metric][0]
    words = in_words(main_metric, estimate(drop_on_report), report_cost, max_drop, guarantee)
    verdict = verdict_on(fronts, point, main_metric)
    return f"{markdown_table(columns, rows)}\n\n{words}\n\n{verdict}"


def held_out_row(name: str, calibration: float, report: np.ndarray) -> list[str]:
    """Format a metric on both parts; report: (1 + resamples,)."""
    value, low, high = estimate(report)
    return [name, f"{calibration:.4f}", f"{value:.4f}", f"{low:.4f} … {high:.4f}"]


def in_words(
    metric_name: str,
    drop: Estimate,
    cost: float,
    max_drop: float | None,
    guarantee: Guarantee | None,
) -> str:
    """Say what a setting saves, what new data may lose, and what to do if that is too much.

    Args:
        metric_name: of the metric.
        drop: how far it fell from full depth on the held-out part.
        cost: mean share of layers that ran there.
        max_drop: the largest loss that was asked for, or None.
        guarantee: what the choice guarantees, or None.
    """
    if drop.value > TOLERANCE:
        change = f"lowers {metric_name} by {drop.value:.4f}"
    elif drop.value < -TOLERANCE:
        change = f"raises {metric_name} by {-drop.value:.4f}"
    else:
        change = f"leaves {metric_name} as it is"
    shows_loss = drop.high > TOLERANCE
    lines = [f"Early exit saves {1 - cost:.0%} of the layers and {change} on the held-out part."]
    if guarantee is None and shows_loss:
        lines.append(f"New texts of the same kind may lose up to {drop.high:.4f} (95% interval).")
    elif guarantee is None:
        lines.append(
            "No resample of the held-out part lost anything, which rules no loss out for new "
            "texts: more dev rows would bound it."
        )
    else:
        shown = f"a loss of up to {drop.high:.4f}" if shows_loss else "no loss"
        lines.append(f"Guaranteed: {guarantee.statement}.")
        lines.append(
            f"So accuracy falls by at most {guarantee.risk:g}, with that probability. The report "
            f"part alone, which is other and fewer evidence, shows {shown} in {metric_name} (95% "
            "interval); that is no guarantee."
        )
    if max_drop is not None and drop.high > max_drop + TOLERANCE:
        lines.append(
            f"The limit of {max_drop:g} is enforced on the calibration part alone. If "
            f"{drop.high:.4f} is too much, label more dev rows, or give a smaller max_drop."
        )
    return "\n".join(lines)


def verdict_on(fronts: FrontierSet, point: Point, metric_name: str) -> str:
    """Say whether a point beats the random mixture of two layers that costs as much."""
    mixture = fronts.at(RANDOM_MIXTURE, point.cost)
    layers = " or ".join(f"layer {number + 1}" for number in mixture.settings)
    gain = fronts.gain_over_mixture(point)
    efficiency = fronts.efficiency(point)
    efficiency_text = efficiency.text() if efficiency else NOTHING
    verdict = "Better than" if gain.low > TOLERANCE else "Not shown to be better than"
    return (
        f"{verdict} random exits at {layers} for the same cost, "
        f"{point.cost:.4f}:\n"
        f"  {metric_name} {gain.text(number_format='+.4f')}\n"
        "  exit efficiency, its gain over random exits as a share of the oracle's: "
        f"{efficiency_text}\n"
    )


# Two models.


def check_labels(jobs: Sequence[Job]) -> None:
    """Raise UserError for models that are compared, but whose labels stand in another order."""
    label_orders = {str(label_names(job.config)) for job in jobs}
    if not jobs[0].task.folder and len(label_orders) > 1:  # GLUE's labels have one order
        raise UserError(f"--compare: the models' labels differ: {'; '.join(sorted(label_orders))}")


def compare_two_models(sides: Mapping[str, Sequence[tuple[Job, Recording]]], seed: int) -> str:
    """Compare two models on the same examples, each under its own rule: as Markdown.

    sides: the two models by name. Several models under one name are its seeds: their mean is
    compared, and the intervals draw seeds as well as examples.
    """
    first_job, _ = next(chain.from_iterable(sides.values()))
    task, count = first_job.task, len(first_job.features)
    resample_weights = bootstrap_weights(count, RESAMPLES, seed)
    measures_of_sides = []
    for number, models in enumerate(sides.values(), start=1):
        measures = [measure(job, recording, resample_weights) for job, recording in models]
        measures_of_sides.append(mean_over_seeds(measures, seed + number))
    first_side, second_side = measures_of_sides
    rows = []
    for name, first in first_side.items():
        second = second_side[name]
        texts = [estimate(side).text(number_format=".4f") for side in (first, second)]
        difference = estimate(second - first).difference_text(1, "+.4f")
        rows.append([name, *texts, difference])
    columns = [f"{task.shown_name}, {count} examples"]
    for name, models in sides.items():
        columns.append(name if len(models) == 1 else f"mean of {len(models)} seeds, {name}")
    columns.append("second − first")
    return (
        f"{markdown_table(columns, rows)}\n\n"
        "[95% interval; paired: both models answer the examples drawn; bold: it leaves out 0]"
    )


def measure(job: Job, recording: Recording, resample_weights: np.ndarray) -> dict[str, np.ndarray]:
    """Measure every metric and cost of a model under its own rule, (1 + resamples,) each, by name.

    resample_weights: how often each resample has each example, (1 + resamples, examples).
    """
    config: EarlyExitConfig = job.config
    labels = recording.labels
    logits, exit_layer = scan_answers(config.exit_rule(), recording.tensors)
    answers = predictions_of(logits, job.task.multi_label)[None]  # of one setting
    metrics = weighted_metrics(job.task, answers, labels, resample_weights.astype(float))
    measures = {name: values[0] for name, values in metrics.items()}
    lengths = job.features.lengths.tolist()  # in tokens
    flops = [
        config.early_exit_flops(length, layer)
        for length, layer in zip(lengths, exit_layer.tolist(), strict=True)
    ]
    costs = {
        "computation cost": exit_layer.numpy() / config.num_hidden_layers,
        "GFLOPs per example": np.array(flops) / 1e9,
    }
    for name, cost in costs.items():
        measures[name] = resample_weights @ cost / len(labels)
    return measures


def mean_over_seeds(
    measures: Sequence[Mapping[str, np.ndarray]], seed: int
) -> dict[str, np.ndarray]:
    """Average the measures of one model's seeds; each resample draws the seeds anew.

    measures: of each of the model's seeds, (1 + resamples,) each, by name. seed: of the resamples.
    """
    shares = bootstrap_weights(len(measures), RESAMPLES, seed) / len(measures)
    shares = widen_shares(shares).T  # (models, 1 + resamples)
    means = {}
    for name in measures[0]:
        values = np.array([of_one_model[name] for of_one_model in measures])
        means[name] = (values * shares).sum(0)
    return means
