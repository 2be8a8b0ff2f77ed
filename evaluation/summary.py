"""What an evaluation found, as eval_results.json says it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from evaluation.drift import RECORD, Reference, reference_of
from evaluation.measures import labels_of, predictions_of
from evaluation.predict import Predictions
from evaluation.scores import ClassScores, ScoreErrors, class_scores, remarks
from glue.metrics import compute_metrics, positive_lines
from modeling.exit_settings import Setting
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
    reference: Reference | None = None  # with which new texts are compared
    metric_notes: Sequence[str] = ()  # lines behind the metrics
    score_errors: ScoreErrors | None = None  # of a regression
    idle_keys: Sequence[str] = ()  # keys of `rule` that the rule in force does not read

    def as_json(self) -> dict[str, Any]:
        """Return everything under the names of eval_results.json."""
        return {
            "task": self.task,
            "dataset": self.dataset,
            "examples": self.examples,
            "metrics": self.metrics,
            **self.class_scores.as_json(),
            **(asdict(self.score_errors) if self.score_errors else {}),
            "remarks": self.remarks,
            "latency_ms": {"median": self.median_ms, "p95": self.p95_ms},
            "latency_means": self.latency_means,
            "texts_per_second": self.texts_per_second,
            "rule": self.rule,
            **self.origin.as_json(),
            "batch_size": self.batch_size,
            **self.depth.as_json(),
            **({RECORD: self.reference.as_json()} if self.reference else {}),
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
    exit_layer = predictions["exit_layer"].numpy() if "exit_layer" in predictions else None
    # A setting that is only tried is as the user wants it; a network with one exit has no choice.
    has_one_exit = exit_layer is not None and len(job.config.exits) == 1
    remarked_exits = None if has_one_exit or tries_a_setting(job.origin) else exit_layer
    return Summary(
        task=job.task.name,
        dataset=job.task.shown_name,
        examples=len(job.features),
        metrics=compute_metrics(job.task, answers, labels),
        class_scores=class_scores(job.task, answers, labels),
        remarks=remarks(job.task, answers, labels, remarked_exits, job.config.num_hidden_layers),
        median_ms=median_ms,
        p95_ms=p95_ms,
        latency_means=latency_means,
        texts_per_second=len(job.features) / max(predictions.wall_seconds, 1e-9),
        rule=job.config.exit_keys(),
        origin=job.origin,
        batch_size=job.batch_size,
        depth=depth,
        reference=reference_of(job, predictions["logits"], exit_layer),
        metric_notes=positive_lines(job.task),
        score_errors=ScoreErrors.of(answers, labels) if job.task.is_regression else None,
        idle_keys=job.config.idle_keys(job.config.exit_keys()),
    )


def tries_a_setting(origin: Origin) -> bool:
    """Tell whether a flag sets an exit key: such a setting may well let nothing exit."""
    return any(source.startswith("--") for source in origin.rule_sources.values())
