"""Reports of early exit: where examples leave, at which cost, and what every layer says."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from evaluation.figures import ExitProfile, exits_figure, save_figure
from evaluation.job import Job
from evaluation.keys import describe
from evaluation.predictions import Predictions
from evaluation.results import (
    labels_of,
    layer_curve,
    metrics_of,
    predictions_of,
    print_summary,
    summary_of,
)
from glue.tables import as_csv
from glue.tasks import compute_metrics, primary_metric
from modeling.flops import early_exit_flops, full_depth_flops
from modeling.rules import ExitRule, Tensors, exit_scores, normalised_entropy, scan
from training.provenance import STATISTICS
from utils.files import write_text


def summarise(job: Job, predictions: Predictions) -> dict[str, Any]:
    """Metrics, computation cost, exits per layer, FLOPs ratio and latency of a run."""
    config, lengths = job.model.config, job.features.lengths.tolist()
    layers = config.num_hidden_layers
    exits = torch.bincount(predictions["exit_layer"], minlength=layers + 1)[1:]
    spent = map(partial(early_exit_flops, config), lengths, predictions["exit_layer"].tolist())
    full = map(partial(full_depth_flops, config), lengths)
    average = predictions["exit_layer"].double().mean().item()
    return {
        **summary_of(job, predictions),
        "computation_cost": average / layers,
        "average_layer": average,
        "num_layers": layers,
        "exit_sample_ratio": 1 - exits[-1].item() / len(lengths),
        "exits_per_layer": exits.tolist(),
        "flops_ratio": sum(spent) / sum(full),
    }


def against_all_layers(job: Job, predictions: Predictions, recorded: Tensors) -> dict[str, Any]:
    """The metric of every layer, and the share of exits that the float32 recording gives, too."""
    same = scan(job.model.config.exit_rule(), recorded) == predictions["exit_layer"]
    return {
        "same_exit_layer_as_fp32": same.float().mean().item(),
        f"{primary_metric(job.task)}_per_layer": layer_curve(job, recorded["all_logits"]),
        "frontier": rule_frontier(job, recorded),
    }


def rule_frontier(job: Job, recorded: Tensors) -> dict[str, list[list[float]]]:
    """What the configured rule can do at which cost, over the values of the first key it reads.

    By metric: [computation cost, metric] by rising cost, of the settings that no cheaper one is as
    good as.
    """
    config, task, varied = job.model.config, job.task, {}
    layers, examples = recorded["all_logits"].shape[:2]
    for name in config.exit_rule().reads[:1]:
        key = config.table.exit_keys[name]
        whole = torch.arange(1, layers + 1)
        steps = whole if key.counts_layers else torch.linspace(key.minimum, key.maximum, 51)
        varied[name] = steps[:, None]
    exits = scan(config.exit_rule(**varied), recorded).reshape(-1, examples).unique(dim=0)
    costs = exits.double().mean(1) / layers
    answers, labels = predictions_of(recorded["all_logits"]), labels_of(job.features)
    found: dict[str, list[list[float]]] = {}
    for number in costs.argsort().tolist():
        taken = answers[exits[number] - 1, torch.arange(examples)]
        for name, value in compute_metrics(task, taken, labels).items():
            points = found.setdefault(name, [])
            if not points or value > points[-1][1]:
                points.append([costs[number].item(), float(value)])
    return found


def layer_table(
    all_logits: torch.Tensor, labels: torch.Tensor, exit_layer: torch.Tensor, exits_only: bool
) -> str:
    """CSV with loss, entropy and accuracy of every layer.

    Over all samples, or over those that exit at the layer (`exits_only`). Regression has neither
    entropy nor accuracy: these fields stay empty.
    """
    regression = all_logits.shape[-1] == 1
    rows = []
    for layer, logits in enumerate(all_logits, start=1):
        here = exit_layer == layer if exits_only else torch.ones_like(exit_layer, dtype=torch.bool)
        chosen, truth = logits[here], labels[here]
        row = {"layer": layer, "samples": len(truth), "loss": "", "entropy": "", "accuracy": ""}
        if len(truth) and regression:
            row["loss"] = f"{F.mse_loss(chosen[:, 0], truth.float()):.6f}"
        elif len(truth):
            row["loss"] = f"{F.cross_entropy(chosen, truth):.6f}"
            row["entropy"] = f"{normalised_entropy(exit_scores(chosen)).mean():.6f}"
            row["accuracy"] = f"{(chosen.argmax(-1) == truth).float().mean():.6f}"
        rows.append(row)
    return as_csv(rows)


def print_results(summary: dict[str, Any], prefix: str = "") -> None:
    """The published closing lines, then what the published code does not measure."""
    average = f"{summary['average_layer']:.2f} of {summary['num_layers']}"
    per_layer = summary["exits_per_layer"]
    lines = [f"average layer = {average}", f"exits per layer = {per_layer}"]
    for name, curve in summary.items():
        if name.endswith("_per_layer") and name != "exits_per_layer":
            shown = ", ".join(f"{value:.4f}" for value in curve)
            lines.append(f"{name.replace('_', ' ')} = [{shown}]")
    print_summary(summary, prefix, lines)
    compared = "same_exit_layer_as_fp32" in summary
    if compared and (summary["dtype"] != "fp32" or "onnx" in summary):
        print(f"exit layers as in fp32 = {summary['same_exit_layer_as_fp32']:.4f}")


def write_statistics(
    directory: Path, job: Job, predictions: Predictions, all_logits: torch.Tensor
) -> list[Path]:
    """layers_all.csv and layers_exit.csv, as the published code has them; their paths."""
    labels = torch.tensor(labels_of(job.features))
    for name, exits_only in zip(STATISTICS, (False, True), strict=True):
        table = layer_table(all_logits, labels, predictions["exit_layer"], exits_only)
        write_text(directory / name, table)
    return [directory / name for name in STATISTICS]


def draw_exits(path: Path, job: Job, predictions: Predictions, recorded: Tensors) -> list[Path]:
    """exits.png: where examples exit and why, and the metric of every layer; its path."""
    config, mode, metric = job.model.config, job.mode, primary_metric(job.task)
    rule_name = config.exit_keys()[mode.rule_key]
    exits = ExitProfile(
        exits_by_cause(config.exit_rule(), rule_name, recorded, predictions["exit_layer"]),
        layer_curve(job, recorded["all_logits"]),
        metrics_of(job, predictions["logits"])[metric],
        predictions["exit_layer"].double().mean().item() / config.num_hidden_layers,
    )
    shown = describe(mode.named(config.exit_keys(), job.task.is_regression), mode.rule_key)
    save_figure(exits_figure(exits, metric, job.task.name, shown), path)
    return [path]


def exits_by_cause(
    rule: ExitRule, name: str, recorded: Tensors, exit_layer: torch.Tensor
) -> dict[str, np.ndarray]:
    """What ended the passes -> how many at each layer, (layers,)."""
    layers = len(recorded["all_logits"])
    by_window, ran_all = rule.window(recorded) > 0, exit_layer == layers
    parts = {
        rule.cause or name: ~by_window & ~ran_all,
        "window": by_window & ~ran_all,
        "all layers run": ran_all,
    }
    return {
        name: exit_layer[rows].bincount(minlength=layers + 1)[1:].numpy()
        for name, rows in parts.items()
    }
