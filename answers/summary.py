"""What an evaluation found, as eval_results.json says it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from answers.measures import labels_of, predictions_of
from answers.predict import Predictions
from answers.scores import ClassScores, class_scores, remarks
from elbert_base.exit_settings import Setting
from glue.metrics import compute_metrics
from runs.job import Job, Origin


@dataclass(frozen=True)
class DepthSummary:
    """How deep the examples went, and at which cost; a mode adds what it knows besides."""

    computation_cost: float  # mean share of layers, or of updates, that ran
    flops_ratio: float  # FLOPs of the run, exits included, over those of the full depth

    def as_json(self) -> dict[str, Any]:
        """Return everything under the names of eval_results.json."""
        return {"computation_cost": self.computation_cost, "flops_ratio": self.flops_ratio}


@dataclass(frozen=True)
class Summary:
    """What an evaluation found: the content of eval_results.json."""

    task: str
    dataset: str  # what figures call the data
    examples: int
    metrics: dict[str, float]
    class_scores: ClassScores
    remarks: list[str]  # what is suspect
    median_ms: float  # latency
    p95_ms: float
    latency_means: str  # what was timed
    texts_per_second: float
    rule: Setting  # the exit keys
    origin: Origin
    batch_size: int
    depth: DepthSummary

    def as_json(self) -> dict[str, Any]:
        """Return everything under the names of eval_results.json."""
        return {
            "task": self.task,
            "dataset": self.dataset,
            "examples": self.examples,
            "metrics": self.metrics,
            **self.class_scores.as_json(),
            "remarks": self.remarks,
            "latency_ms": {"median": self.median_ms, "p95": self.p95_ms},
            "latency_means": self.latency_means,
            "texts_per_second": self.texts_per_second,
            "rule": self.rule,
            **self.origin.as_json(),
            "batch_size": self.batch_size,
            **self.depth.as_json(),
        }


def summarise(
    job: Job, predictions: Predictions, depth: DepthSummary, latency_means: str
) -> Summary:
    """Summarise a run over a data set.

    Args:
        depth: what the mode says of the run.
        latency_means: what the seconds of `predictions` are.
    """
    milliseconds = 1000 * predictions["seconds"].numpy()
    median_ms, p95_ms = np.percentile(milliseconds, [50, 95]).tolist()
    answers = predictions_of(predictions["logits"], job.task.multi_label)
    labels = labels_of(job.features)
    exit_layer = None
    if "exit_layer" in predictions and not tries_a_setting(job.origin):
        exit_layer = predictions["exit_layer"].numpy()
    return Summary(
        task=job.task.name,
        dataset=job.task.shown_name,
        examples=len(job.features),
        metrics=compute_metrics(job.task, answers, labels),
        class_scores=class_scores(job.task, answers, labels),
        remarks=remarks(job.task, answers, labels, exit_layer, job.config.num_hidden_layers),
        median_ms=median_ms,
        p95_ms=p95_ms,
        latency_means=latency_means,
        texts_per_second=len(job.features) / max(predictions.wall_seconds, 1e-9),
        rule=job.config.exit_keys(),
        origin=job.origin,
        batch_size=job.batch_size,
        depth=depth,
    )


def tries_a_setting(origin: Origin) -> bool:
    """Tell whether a flag sets an exit key: such a setting may well let nothing exit."""
    return any(source.startswith("--") for source in origin.rule_sources.values())
