"""The modes whose whole examples exit, ELBERT and PonderNet, and their reports: where examples
exit, at which cost, and what every layer says."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from answers.figures import ExitsPicture, plot_exits
from answers.metric import MetricAtCost
from answers.predict import (
    Batches,
    Predictions,
    answers_in_batches,
    answers_in_slots,
    is_main,
    record_layers,
    run_all,
)
from answers.report import (
    DepthSummary,
    Report,
    Summary,
    labels_of,
    layer_curve,
    layer_table,
    metrics_of,
    summarise,
)
from answers.sweep import Recording, configured_frontier
from elbert.exits.model import ElbertForSequenceClassification
from elbert.export.loops import DepthLoop
from elbert.ponder.model import PonderAlbertClassifier
from elbert.rules import exits_by_window, layer_answers, scan
from elbert_base.exit_settings import describe
from glue.features import Features
from modes.base import DevEvaluation, Mode
from runs.files import RunFolder
from runs.folder import statistics_folder
from runs.job import Job


@dataclass(frozen=True)
class ExitSummary(DepthSummary):
    """Where examples exit, and what every layer says."""

    average_layer: float  # mean exit layer
    num_layers: int
    exit_sample_ratio: float  # share of the examples that exit before the last layer
    exits_per_layer: list[int]
    metric: str  # the task's main one
    # Of the recorded layers, where these were recorded:
    same_exit_layer_as_fp32: float | None = None
    metric_per_layer: list[float] | None = None
    frontier: dict[str, list[list[float]]] | None = None  # see `configured_frontier`

    def as_json(self) -> dict[str, Any]:
        values = super().as_json()
        name = values.pop("metric")
        if "metric_per_layer" in values:
            values[f"{name}_per_layer"] = values.pop("metric_per_layer")
        return values

    def lines(self, shows_fp32: bool) -> list[str]:
        """Write lines for the console; shows_fp32: with the share of exits that are float32's."""
        lines = [
            f"average layer = {self.average_layer:.2f} of {self.num_layers}",
            f"exits per layer = {self.exits_per_layer}",
        ]
        if self.metric_per_layer is not None:
            numbers = ", ".join(f"{value:.4f}" for value in self.metric_per_layer)
            lines.append(f"{self.metric.replace('_', ' ')} per layer = [{numbers}]")
        if shows_fp32 and self.same_exit_layer_as_fp32 is not None:
            lines.append(f"exit layers as in fp32 = {self.same_exit_layer_as_fp32:.4f}")
        return lines


class ExampleMode(Mode):
    """A mode whose model implements `elbert.depth`'s protocol and whose rules can be swept."""

    def evaluate_dev(self, job: Job, metric: MetricAtCost) -> DevEvaluation:
        """Measure the main metric of every layer, and the metric that chooses a model."""
        name = f"eval_{job.task.primary_metric}"
        recorded = record_layers(job, job.batch_size)
        answers = layer_answers(job.model.config.exit_rule(), recorded)
        curve = layer_curve(job.task, answers, labels_of(job.features))
        return DevEvaluation(
            scalars={f"{name}/layer_{i}": value for i, value in enumerate(curve, 1)},
            line={f"{name}_per_layer": curve},
            value=selection_value(job, metric, recorded),
        )

    def export_loop(self, model: Any, layer_logits: bool = False) -> DepthLoop:
        return DepthLoop(model, model.config.exit_rule().inputs, layer_logits)

    def run(self, job: Job, features: Features) -> Batches:
        """Answer examples in slots that are kept full; one at a time, or by a file, in batches."""
        if fills_slots(job):
            return answers_in_slots(job, features)
        model: Any = job.model
        return answers_in_batches(job, features, job.file or model.exit_early, exit_layers)

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
    ) -> Report:
        """Report where examples exit, the cost, and every layer's answers; see `Mode.evaluate`."""
        config: Any = job.model.config
        recorded = record_layers(job, batch_size=32) if full_depth else None
        fast = job.in_type(dtype)
        predictions = run_all(fast, self.run)
        depth = exit_summary(job, predictions, recorded)
        summary = summarise(fast, predictions, depth, self.latency_means(fast))
        if not is_main():
            return Report(summary)
        if statistics_dir:
            statistics = Path(statistics_dir, job.task.name)
        else:
            statistics = statistics_folder(
                trained, config.my_out_dir, config.model_name, job.task.name
            )
        picture = folder / "exits.png"
        all_table, exit_table = (
            statistics / name for name in ("layers_all.csv", "layers_exit.csv")
        )
        if recorded is None:  # those of an earlier evaluation are not this one's
            return Report(summary, depth.lines(True), outdated=(all_table, exit_table, picture))
        answers = layer_answers(job.model.config.exit_rule(), recorded)
        labels, exits = torch.tensor(labels_of(job.features)), predictions["exit_layer"]
        of_all, of_exits = layer_table(answers, labels), layer_table(answers, labels, exits)
        shown = exits_picture(job, summary, depth, recorded, exits)
        results = RunFolder(trained)
        is_fp32 = fast.file is None and summary.origin.dtype == "fp32"
        return Report(
            summary,
            depth.lines(shows_fp32=not is_fp32),
            files={
                all_table: partial(results.write_text, all_table, of_all),
                exit_table: partial(results.write_text, exit_table, of_exits),
                picture: partial(plot_exits, picture, shown),
            },
        )


def fills_slots(job: Job) -> bool:
    """Tell whether examples go through slots: a file answers batches, and one example is alone."""
    return job.batch_size > 1 and not job.file


def exit_layers(out: Any) -> dict[str, Tensor]:
    """Return what of a batch's output says how deep its examples went."""
    return {"exit_layer": out.exit_layer.cpu()}


class Elbert(ExampleMode):
    """ELBERT, `--model_type elbert`: a rule over the exits' answers so far stops an example."""

    runs = ElbertForSequenceClassification

    def scalars(self, model: Any, out: Any) -> dict[str, float]:
        """σ(W) of every exit."""
        if model.exit_weights is None:
            return {}
        weights = model.exit_weights.detach().sigmoid().tolist()
        return {f"exit_weight/{i}": weight for i, weight in enumerate(weights, 1)}


class Ponder(ExampleMode):
    """PonderNet and PALBERT, `--model_type ponder_albert`: a learned halting probability a layer
    stops an example."""

    runs = PonderAlbertClassifier

    def loss_parts(self, out: Any) -> dict[str, torch.Tensor]:
        return {"weighted_task_loss": out["weighted_ce_loss"], "kl_loss": out["kl_loss"]}

    def scalars(self, model: Any, out: Any) -> dict[str, float]:
        """Expected steps, KL to the prior, and λ of every layer: means over the last batch."""
        halting, prior = out["model_halt_dist"], out["target_halt_dist"]
        values = {
            "expected_steps": halting.expected_steps().mean().item(),
            "kl_to_prior": prior.kl_div(halting).item(),
        }
        means = halting.stop_probabilities.mean(0).tolist()
        return values | {f"lambda/layer_{i}": mean for i, mean in enumerate(means, 1)}


def recording_of(job: Job, recorded: Predictions) -> Recording:
    """Make a sweep's recording of what `record_layers` returned."""
    return Recording(dict(recorded), labels_of(job.features))


def selection_value(job: Job, metric: MetricAtCost, recorded: Predictions) -> float:
    """Compute the metric that chooses a model, from all layers' answers.

    Without a cost it is the last layer's. With one: the rule's best within it; if none is so cheap,
    the deepest layer's within it.
    """
    config, labels = job.config, labels_of(job.features)
    layers = layer = len(recorded["all_logits"])
    if metric.cost is not None:
        points = configured_frontier(config, recording_of(job, recorded), job.task)
        best = metric.best(points[metric.name])
        if best is not None:
            return best
        layer = max(1, int(metric.cost * layers + 1e-9))
    answers = layer_answers(config.exit_rule(), recorded)
    return metrics_of(job.task, answers[layer - 1], labels)[metric.name]


def exit_summary(job: Job, predictions: Predictions, recorded: Predictions | None) -> ExitSummary:
    """Summarise where examples exit, and the recorded layers, where there are any."""
    config, lengths = job.config, job.features.lengths.tolist()
    exit_layer, layers = predictions["exit_layer"], config.num_hidden_layers
    exits = torch.bincount(exit_layer, minlength=layers + 1)[1:]
    used = sum(map(config.early_exit_flops, lengths, exit_layer.tolist()))
    average = exit_layer.double().mean().item()
    same, curve, frontier = None, None, None
    if recorded is not None:
        rule, labels = config.exit_rule(), labels_of(job.features)
        same = (scan(rule, recorded) == exit_layer).float().mean().item()
        curve = layer_curve(job.task, layer_answers(rule, recorded), labels)
        frontier = configured_frontier(config, recording_of(job, recorded), job.task)
    return ExitSummary(
        computation_cost=average / layers,
        flops_ratio=used / sum(map(config.full_depth_flops, lengths)),
        average_layer=average,
        num_layers=layers,
        exit_sample_ratio=1 - exits[-1].item() / len(lengths),
        exits_per_layer=exits.tolist(),
        metric=job.task.primary_metric,
        same_exit_layer_as_fp32=same,
        metric_per_layer=curve,
        frontier=frontier,
    )


def exits_picture(
    job: Job, summary: Summary, depth: ExitSummary, recorded: Predictions, exits: Tensor
) -> ExitsPicture:
    """Say what exits.png shows; exits: (examples,)."""
    config, metric = job.model.config, job.task.primary_metric
    rule, setting = config.exit_rule(), config.keys_read()
    reached = summary.metrics[metric]
    return ExitsPicture(
        title=f"{job.task.shown_name}: {metric} {reached:.3f} at a computation cost of "
        f"{depth.computation_cost:.2f}\n{describe(setting)}",
        metric=metric,
        curve=depth.metric_per_layer or [],
        reached=reached,
        exit_layer=exits.numpy(),
        by_window=exits_by_window(rule, recorded, exits).numpy(),
        cause=rule.cause or setting[config.rule_key],
    )
