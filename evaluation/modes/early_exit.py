"""The modes whose whole examples exit, ELBERT and PonderNet, and their reports: where examples
exit, at which cost, and what every layer says."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evaluation.figures import ExitsPicture, exits_figure
from evaluation.groups import group_lines, group_rows
from evaluation.guarantee import guarantee_lines
from evaluation.measures import labels_of, layer_curve, layer_table, metrics_of, predictions_of
from evaluation.metric import TOLERANCE, MetricAtCost
from evaluation.modes.base import DevEvaluation, Mode
from evaluation.predict import (
    Batches,
    Predictions,
    answers_in_batches,
    answers_in_slots,
    early_exit_model,
    is_main,
    record_layers,
    run_all,
)
from evaluation.report import Report, ReportFile
from evaluation.summary import DepthSummary, Summary, summarise
from evaluation.sweep import Recording, configured_frontier
from glue.features import Features
from glue.tables import as_csv
from modeling.exit_settings import describe
from modeling.exits.model import ElbertForSequenceClassification
from modeling.export.loops import DepthLoop
from modeling.ponder.model import PonderAlbertClassifier
from modeling.rules import exits_by_window, layer_answers, scan_answers
from runs.job import Job
from runs.output_dir import statistics_folder


@dataclass(frozen=True)
class LayerSummary:
    """What every layer says, and what other settings of the rule would do: from a recording."""

    same_exit_layer: float  # share of the examples that exit where the recorded layers let them
    same_answer: float | None  # share that get the recorded layers' class; None for values
    curve: list[float]  # the task's main metric of every layer
    frontier: dict[str, list[list[float]]]  # see `configured_frontier`


@dataclass(frozen=True)
class ExitSummary(DepthSummary):
    """Where examples exit, and what every layer says."""

    average_layer: float  # mean exit layer
    num_layers: int
    exit_sample_ratio: float  # share of the examples that exit before the last layer
    exits_per_layer: list[int]
    metric_name: str  # of the task's main metric
    layers: LayerSummary | None  # None without a recording

    def as_json(self) -> dict[str, Any]:
        values: dict[str, Any] = {
            "computation_cost": self.computation_cost,
            "average_layer": self.average_layer,
            "num_layers": self.num_layers,
            "exit_sample_ratio": self.exit_sample_ratio,
            "exits_per_layer": self.exits_per_layer,
            "flops_ratio": self.flops_ratio,
        }
        if self.layers:
            # The recording is in float32, whatever the run's number type.
            values["same_exit_layer_as_fp32"] = self.layers.same_exit_layer
            if self.layers.same_answer is not None:
                values["same_answer_as_fp32"] = self.layers.same_answer
            values[f"{self.metric_name}_per_layer"] = self.layers.curve
            values["frontier"] = self.layers.frontier
        return values

    def lines(self, shows_same_exits: bool) -> list[str]:
        """Write lines for the console.

        shows_same_exits: with the share of examples that exit where they do in float32.
        """
        lines = [
            f"average layer = {self.average_layer:.2f} of {self.num_layers}",
            f"exits per layer = {self.exits_per_layer}",
        ]
        if self.layers:
            numbers = ", ".join(f"{value:.4f}" for value in self.layers.curve)
            lines.append(f"{self.metric_name.replace('_', ' ')} per layer = [{numbers}]")
            if shows_same_exits:
                lines.append(f"same exit layer as in float32 = {self.layers.same_exit_layer:.4f}")
                if self.layers.same_answer is not None:
                    lines.append(f"same answer as in float32 = {self.layers.same_answer:.4f}")
        return lines


class ExampleMode(Mode):
    """A mode whose model is an `EarlyExitModel` and whose rules can be swept."""

    def evaluate_dev(self, job: Job, metric: MetricAtCost) -> DevEvaluation:
        """Measure the main metric of every layer, and the metric that chooses a model."""
        name = f"eval_{job.task.primary_metric}"
        recorded = record_layers(job, job.batch_size)
        answers = layer_answers(job.config.exit_rule(), recorded)
        curve = layer_curve(job.task, answers, labels_of(job.features))
        return DevEvaluation(
            scalars={f"{name}/layer_{layer}": value for layer, value in enumerate(curve, 1)},
            line={f"{name}_per_layer": curve},
            value=selection_value(job, metric, recorded),
        )

    def export_loop(self, model: Any, layer_logits: bool = False) -> DepthLoop:
        return DepthLoop(model, model.config.exit_rule().inputs, layer_logits)

    def run(self, job: Job, features: Features) -> Batches:
        """Answer examples in slots that are kept full; one at a time, or by a file, in batches."""
        if fills_slots(job):
            return answers_in_slots(job, features)
        model = job.file or early_exit_model(job).exit_early
        return answers_in_batches(job, features, model, exit_layers)

    def latency_means(self, job: Job) -> str:
        if fills_slots(job):
            return f"from entering one of {job.batch_size} slots to the answer"
        return super().latency_means(job)

    def details(self, predictions: Predictions) -> dict[str, Sequence[Any]]:
        return {"exit_layer": predictions["exit_layer"].tolist()}

    def evaluate(
        self,
        job: Job,
        folder: Path,
        trained: Path,
        dtype: str,
        full_depth: bool = True,
        statistics_dir: Path | None = None,
        groups: Sequence[str] | None = None,
    ) -> Report:
        """Report where examples exit, the cost, and every layer's answers; see `Mode.evaluate`."""
        # All layers in float32; the run itself in the type that was asked for.
        recorded = record_layers(job, batch_size=32) if full_depth else None
        fast_job = job.in_type(dtype)
        predictions = run_all(fast_job, self.run)
        depth = exit_summary(job, predictions, recorded)
        summary = summarise(fast_job, predictions, depth, self.latency_means(fast_job))
        if not is_main():
            return Report(summary)
        statistics = statistics_of(job, trained, statistics_dir)
        all_table = statistics / "layers_all.csv"
        exit_table = statistics / "layers_exit.csv"
        picture = folder / "exits.png"
        is_fp32 = fast_job.file is None and summary.origin.dtype == "fp32"
        lines = [
            *depth.lines(shows_same_exits=not is_fp32),
            *guarantee_lines(
                fast_job, trained, predictions, recorded["all_logits"][-1] if recorded else None
            ),
        ]
        if recorded is None:  # files of an earlier evaluation do not belong to this one
            return Report(summary, lines, outdated=[all_table, exit_table, picture])
        answers = layer_answers(job.config.exit_rule(), recorded)
        labels = torch.tensor(labels_of(job.features))
        exit_layer = predictions["exit_layer"]
        figure = exits_figure(exits_picture(job, summary, depth, recorded, exit_layer))
        group_files = []
        if groups:
            last_logits = recorded["all_logits"][-1]
            table = group_rows(job, groups, predictions["logits"], last_logits, exit_layer.numpy())
            lines += group_lines(table, job.task.primary_metric)
            group_files = [ReportFile(folder / "groups.csv", as_csv(table), owner=folder)]
        return Report(
            summary,
            lines,
            files=[
                *group_files,
                ReportFile(all_table, layer_table(answers, labels), owner=trained),
                ReportFile(exit_table, layer_table(answers, labels, exit_layer), owner=trained),
                ReportFile(picture, figure, owner=folder),
            ],
        )


def fills_slots(job: Job) -> bool:
    """Tell whether examples go through slots: a file answers batches, and one example is alone."""
    return job.batch_size > 1 and job.file is None


def exit_layers(out: Any) -> dict[str, Tensor]:
    """Return what an output says of how deep a batch's examples went."""
    return {"exit_layer": out.exit_layer.cpu()}


def statistics_of(job: Job, trained: Path, statistics_dir: Path | None) -> Path:
    """Return the folder of the per-layer statistics; by default the configuration's.

    trained: the folder of the model.
    """
    task_name = job.task.name
    if statistics_dir:
        return statistics_dir / task_name
    return statistics_folder(trained, job.config.my_out_dir, job.config.model_name, task_name)


class Elbert(ExampleMode):
    """ELBERT, `--model_type elbert`: a rule over the exits' answers so far stops an example."""

    runs = ElbertForSequenceClassification

    def scalars(self, model: Any, out: Any) -> dict[str, float]:
        """Return σ(W) of every exit, where the weights W are learned."""
        if model.exit_weights is None:
            return {}
        weights = model.exit_weights.detach().sigmoid().tolist()
        exits = model.config.exits[:-1]
        return {f"exit_weight/{exits[n]}": weight for n, weight in enumerate(weights)}


class Ponder(ExampleMode):
    """PonderNet and PALBERT, `--model_type ponder_albert`: a halting probability stops an example.

    Every layer has its own, which is learned.
    """

    runs = PonderAlbertClassifier

    def loss_parts(self, out: Any) -> dict[str, Tensor]:
        return {"weighted_task_loss": out["weighted_ce_loss"], "kl_loss": out["kl_loss"]}

    def scalars(self, model: Any, out: Any) -> dict[str, float]:
        """Return expected steps, KL to the prior, and λ of every layer: means over the batch."""
        halting, prior = out["model_halt_dist"], out["target_halt_dist"]
        values = {
            "expected_steps": halting.expected_steps().mean().item(),
            "kl_to_prior": prior.kl_div(halting).item(),
        }
        for layer, mean in enumerate(halting.stop_probabilities.mean(0).tolist(), start=1):
            values[f"lambda/layer_{layer}"] = mean
        return values


def frontier_of(job: Job, recorded: Predictions) -> dict[str, list[list[float]]]:
    """Find the configured rule's best points, from all layers' answers."""
    recording = Recording(dict(recorded), labels_of(job.features))
    return configured_frontier(job.config, recording, job.task)


def selection_value(job: Job, metric: MetricAtCost, recorded: Predictions) -> float:
    """Compute the metric that chooses a model, from all layers' answers.

    Without a cost it is the last layer's. With one: the rule's best within it; if the rule is never
    so cheap, the deepest layer's within it.
    """
    layers = len(recorded["all_logits"])
    layer = layers
    if metric.cost is not None:
        best = metric.best(frontier_of(job, recorded)[metric.name])
        if best is not None:
            return best
        layer = max(1, int(metric.cost * layers + TOLERANCE))
    answers = layer_answers(job.config.exit_rule(), recorded)
    return metrics_of(job.task, answers[layer - 1], labels_of(job.features))[metric.name]


def exit_summary(job: Job, predictions: Predictions, recorded: Predictions | None) -> ExitSummary:
    """Summarise where examples exit, and the recorded layers, where there are any."""
    config = job.config
    lengths = job.features.lengths.tolist()
    exit_layer = predictions["exit_layer"]
    num_layers = config.num_hidden_layers
    exits_per_layer = torch.bincount(exit_layer, minlength=num_layers + 1)[1:]
    average_layer = exit_layer.double().mean().item()
    flops = sum(map(config.early_exit_flops, lengths, exit_layer.tolist()))
    full_flops = sum(map(config.full_depth_flops, lengths))
    return ExitSummary(
        computation_cost=average_layer / num_layers,
        flops_ratio=flops / full_flops,
        average_layer=average_layer,
        num_layers=num_layers,
        exit_sample_ratio=1 - exits_per_layer[-1].item() / len(lengths),
        exits_per_layer=exits_per_layer.tolist(),
        metric_name=job.task.primary_metric,
        layers=None if recorded is None else layer_summary(job, predictions, recorded),
    )


def layer_summary(job: Job, predictions: Predictions, recorded: Predictions) -> LayerSummary:
    """Summarise the recorded layers, and compare them with the predictions of a run."""
    rule = job.config.exit_rule()
    recorded_logits, recorded_exits = scan_answers(rule, recorded)
    is_same = recorded_exits == predictions["exit_layer"]
    same_answer = None
    if not job.task.is_regression:
        both = (predictions["logits"], recorded_logits)
        answers, recorded_answers = (predictions_of(x, job.task.multi_label) for x in both)
        same_answer = float(np.mean(answers == recorded_answers))
    return LayerSummary(
        same_exit_layer=is_same.float().mean().item(),
        same_answer=same_answer,
        curve=layer_curve(job.task, layer_answers(rule, recorded), labels_of(job.features)),
        frontier=frontier_of(job, recorded),
    )


def exits_picture(
    job: Job, summary: Summary, depth: ExitSummary, recorded: Predictions, exit_layer: Tensor
) -> ExitsPicture:
    """Collect what exits.png shows; exit_layer: of the run, (examples,)."""
    rule = job.config.exit_rule()
    setting = job.config.keys_read()
    metric_name = job.task.primary_metric
    metric = summary.metrics[metric_name]
    return ExitsPicture(
        title=f"{job.task.shown_name}: {metric_name} {metric:.3f} at a computation cost of "
        f"{depth.computation_cost:.2f}\n{describe(setting)}",
        metric_name=metric_name,
        curve=depth.layers.curve if depth.layers else [],
        early_exit=metric,
        exit_layer=exit_layer.numpy(),
        by_window=exits_by_window(rule, recorded, exit_layer).numpy(),
        cause=rule.cause or setting[job.config.rule_key],
    )
