"""The modes whose whole examples exit, ELBERT and PonderNet, and their reports: where examples
exit, at which cost, and what every layer says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evaluation import results
from evaluation.figures import plot_exits
from evaluation.job import Job, statistics_folder
from evaluation.modes.base import Mode
from evaluation.predictions import Predictions, is_main, record_layers, run_all
from glue.features import Features
from glue.metrics import METRICS, at_exit, frontier
from modeling.elbert.model import ElbertForSequenceClassification
from modeling.export.loops import DepthLoop
from modeling.ponder.model import PonderAlbertClassifier
from modeling.rules import Tensors, exits_by_window, layer_answers, scan
from training.fine_tuning import MetricAtCost
from utils.files import write_text


class ExampleMode(Mode):
    """A mode whose model implements `modeling.depth`'s protocol and whose rules can be swept."""

    depth_batched = True

    def dev_scalars(
        self, job: Job, metric: MetricAtCost
    ) -> tuple[dict[str, float], dict[str, Any], float]:
        """The main metric of every layer."""
        name, recorded = f"eval_{job.task.primary_metric}", record_layers(job, job.batch_size)
        curve = results.layer_curve(job, layer_answers(job.model.config.exit_rule(), recorded))
        scalars = {f"{name}/layer_{i}": value for i, value in enumerate(curve, 1)}
        return scalars, {f"{name}_per_layer": curve}, selection_value(job, metric, recorded)

    def export_loop(self, model: Any, layer_logits: bool = False) -> DepthLoop:
        return DepthLoop(model, model.config.exit_rule().inputs, layer_logits)

    def other_outputs(self, out: Any, longest: int) -> dict[str, torch.Tensor]:
        return {"exit_layer": out.exit_layer.cpu()}

    def details(self, predictions: Predictions) -> dict[str, Sequence[Any]]:
        return {"exit_layer": predictions["exit_layer"].tolist()}

    def evaluate(self, job: Job, folder: Path, trained: Path) -> results.Report:
        """Report where examples exit, the cost, and every layer's answers."""
        recorded = None if job.evaluation.skip_full_depth else record_layers(job, batch_size=32)
        fast = job.for_inference()
        predictions = run_all(fast)
        summary, exits = summarise(fast, predictions), predictions["exit_layer"]
        rule, labels = job.model.config.exit_rule(), torch.tensor(results.labels_of(job.features))
        answers = layer_answers(rule, recorded) if recorded else None
        if recorded:
            summary |= {
                "same_exit_layer_as_fp32": (scan(rule, recorded) == exits).float().mean().item(),
                f"{job.task.primary_metric}_per_layer": results.layer_curve(job, answers),
                "frontier": rule_frontier(job, recorded),
            }
        if not is_main():
            return results.Report(summary)
        picture, statistics = folder / "exits.png", job.evaluation.statistics_dir
        if statistics:
            statistics = Path(statistics, job.task.name)
        else:
            statistics = statistics_folder(trained, job.model.config, job.task)
        tables = [statistics / name for name in ("layers_all.csv", "layers_exit.csv")]
        files = dict.fromkeys([*tables, picture])  # without a recording those there are outdated
        if recorded:  # of all examples, and of those that exit at the layer
            for path, some in zip(tables, (None, exits), strict=True):
                table = results.layer_table(answers, labels, some)
                files[path] = partial(write_text, path, table, listed_in=trained)
            by_window = exits_by_window(rule, recorded, exits).numpy()
            files[picture] = partial(plot_exits, picture, job, exits.numpy(), summary, by_window)
        return results.Report(summary, exit_lines(summary), files)


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

    def features(
        self, config: Any, examples: Any, tokenizer: Any, max_seq_length: int, seed: int
    ) -> Features:
        """Every example gets its own draw for `sample`, from `seed`."""
        features = super().features(config, examples, tokenizer, max_seq_length, seed)
        generator = torch.Generator()
        draws = torch.rand(len(features), generator=generator.manual_seed(seed)).numpy()
        return replace(features, inputs={"draws": draws})

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


def selection_value(job: Job, metric: MetricAtCost, recorded: Tensors) -> float:
    """Compute the metric that chooses a model from `recorded`, all layers' answers.

    Without a cost it is the last layer's. With one: the rule's best within it; if none is so cheap,
    the deepest layer's within it.
    """
    layers = layer = len(recorded["all_logits"])
    if metric.cost is not None:
        best = metric.best(rule_frontier(job, recorded)[metric.name])
        if best is not None:
            return best
        layer = max(1, int(metric.cost * layers + 1e-9))
    answers = layer_answers(job.model.config.exit_rule(), recorded)
    return results.metrics_of(job, answers[layer - 1])[metric.name]


def summarise(job: Job, predictions: Predictions) -> dict[str, Any]:
    """Metrics, computation cost, exits per layer, FLOPs ratio and latency of a run."""
    config, lengths = job.model.config, job.features.lengths.tolist()
    layers = config.num_hidden_layers
    exits = torch.bincount(predictions["exit_layer"], minlength=layers + 1)[1:]
    spent = map(config.early_exit_flops, lengths, predictions["exit_layer"].tolist())
    full = map(config.full_depth_flops, lengths)
    average = predictions["exit_layer"].double().mean().item()
    return {
        **results.summary_of(job, predictions),
        "computation_cost": average / layers,
        "average_layer": average,
        "num_layers": layers,
        "exit_sample_ratio": 1 - exits[-1].item() / len(lengths),
        "exits_per_layer": exits.tolist(),
        "flops_ratio": sum(spent) / sum(full),
    }


def rule_frontier(job: Job, recorded: Tensors) -> dict[str, list[list[float]]]:
    """The configured rule's Pareto-optimal points over the grid of the first key that it reads.

    By metric: [computation cost, metric] by rising cost.
    """
    config, task = job.model.config, job.task
    layers, examples = recorded["all_logits"].shape[:2]
    swept = [name for name in config.keys_read() if config.table.exit_keys[name].grid][:1]
    varied = {name: torch.tensor(config.grid(name))[:, None] for name in swept}
    exits = scan(config.exit_rule(**varied), recorded).reshape(-1, examples).unique(dim=0)
    costs = exits.double().mean(1).numpy() / layers
    answers = layer_answers(config.exit_rule(), recorded)
    taken = at_exit(results.predictions_of(answers, task.multi_label), exits.numpy())
    found = METRICS[task.metric](taken, results.labels_of(job.features), np.ones((1, examples)))
    return {
        name: [[costs[i].item(), values[i, 0].item()] for i in frontier(costs, values[:, 0])]
        for name, values in found.items()
    }


def exit_lines(summary: dict[str, Any]) -> list[str]:
    """Lines for the console: where examples exit, and every layer's metric."""
    lines = [
        f"average layer = {summary['average_layer']:.2f} of {summary['num_layers']}",
        f"exits per layer = {summary['exits_per_layer']}",
    ]
    for name, curve in summary.items():
        if name.endswith("_per_layer") and name != "exits_per_layer":
            shown = ", ".join(f"{value:.4f}" for value in curve)
            lines.append(f"{name.replace('_', ' ')} = [{shown}]")
    same = summary.get("same_exit_layer_as_fp32")
    if same is not None and (summary["dtype"] != "fp32" or "onnx" in summary):
        lines.append(f"exit layers as in fp32 = {same:.4f}")
    return lines
