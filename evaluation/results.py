"""What every evaluation reports and prints, and the answers to a test set."""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock

from evaluation.job import Job
from evaluation.predictions import Predictions, is_main
from glue.features import Features
from glue.submission import add_to_submission, label_text, write_submission
from glue.tasks import Example, Task, compute_metrics, primary_metric
from modeling.errors import UserError
from modeling.exit_settings import Settings
from modeling.rules import exit_scores
from training.provenance import provenance_in
from utils.files import run_all_then_raise, write_json, write_text
from utils.fingerprint import differences

logger = logging.getLogger(__name__)

ROWS = "eval_results.txt"


def predictions_of(logits: torch.Tensor) -> np.ndarray:
    """Class ids, or values for a single output: (..., num_labels) -> (...)."""
    chosen = logits.argmax(-1) if logits.shape[-1] > 1 else logits[..., 0]
    return chosen.numpy()


def labels_of(features: Features) -> np.ndarray:
    """(examples,) class ids or scores; UserError where the file has none."""
    if features.labels is None:
        raise UserError("the file has no labels; evaluate on the dev file, or use --do_predict")
    return features.labels


def metrics_of(job: Job, logits: torch.Tensor) -> dict[str, float]:
    """The task's metrics of answers (examples, num_labels), by name."""
    return compute_metrics(job.task, predictions_of(logits), labels_of(job.features))


def layer_curve(job: Job, all_logits: torch.Tensor) -> list[float]:
    """The task's main metric of every layer's answers."""
    name = primary_metric(job.task)
    return [metrics_of(job, logits)[name] for logits in all_logits]


def summary_of(job: Job, predictions: Predictions) -> dict[str, Any]:
    """What every mode reports: task, metrics, the rule, and how fast it was under which
    conditions."""
    median, p95 = np.percentile((predictions["seconds"] * 1000).numpy(), [50, 95]).tolist()
    return {
        "task": job.task.name,
        "examples": len(job.features),
        "metrics": metrics_of(job, predictions["logits"]),
        "latency_ms": {"median": median, "p95": p95},
        "latency_means": latency_meaning(job),
        "texts_per_second": len(job.features) / max(predictions.wall_seconds, 1e-9),
        "rule": job.model.config.exit_keys(),
        **job.origin,
        "batch_size": job.batch_size,
    }


def latency_meaning(job: Job) -> str:
    """What the seconds of an example are."""
    if job.batch_size == 1:
        return "one text at a time, from the call to its answer"
    if job.mode.in_slots and not job.file:
        return f"from entering one of {job.batch_size} slots to the answer"
    return f"of the call, for up to {job.batch_size} texts at once"


def row_of(summary: dict[str, Any]) -> dict[str, str]:
    """A row of the published CSV, by column.

    The index 0, exit_thres where there is one, the metrics with compute_ratio after the first, and
    the rest of the rule without window_score, which the published code lacks.
    """
    (first, value), *rest = summary["metrics"].items()
    numbers = dict([(first, value), ("compute_ratio", summary["computation_cost"]), *rest])
    rule = summary["rule"]
    row = {"": "0"}
    if "exit_thres" in rule:
        published = f"{rule['exit_thres']:.2f}"
        exact = float(published) == rule["exit_thres"]
        row["exit_thres"] = published if exact else str(rule["exit_thres"])
    row |= {name: f"{number:.4f}" for name, number in numbers.items()}
    return row | {k: str(v) for k, v in rule.items() if k not in ("exit_thres", "window_score")}


def earlier_lines(path: Path, header: str, out_mode: str) -> list[str]:
    """The lines that a row joins: for `all` those of the file, else the header alone.

    Raises UserError when the file holds another task's columns.
    """
    lines = [header]
    if out_mode == "all" and path.exists():  # what is no text has other columns, too
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() or lines
    if lines[0] != header:
        raise UserError(f"{path} has other columns; use --out_mode one to start it anew")
    return lines


def append_results(path: Path, summary: dict[str, Any], out_mode: str) -> None:
    """Append a row to the published CSV; `one` starts the file anew."""
    row = row_of(summary)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Two evaluations may end at the same time; the lock keeps both rows.
        with FileLock(f"{path}.lock"):
            lines = [*earlier_lines(path, ",".join(row), out_mode), ",".join(row.values())]
            write_text(path, "\n".join(lines) + "\n")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error


def check_results(directory: Path, job: Job) -> None:
    """Raise UserError before an evaluation whose row eval_results.txt would not take."""
    labels = labels_of(job.features)
    best = compute_metrics(job.task, labels, labels)
    rule = job.model.config.exit_keys()
    row = row_of({"metrics": best, "computation_cost": 1.0, "rule": rule})
    with suppress(OSError):  # which the end says, beside the results
        earlier_lines(directory / ROWS, ",".join(row), job.how.out_mode)


def write_results(directory: Path, summary: dict[str, Any], out_mode: str) -> list[Path]:
    """eval_results.txt and eval_results.json; their paths.

    One warning for rows of other weights or data that this evaluation's row would stand beside.
    """
    rows, path = directory / ROWS, directory / "eval_results.json"
    changed = differences(provenance_in(path), summary.get("provenance", {}))
    others = [name for name in ("weights", "data") if name in changed]
    if out_mode == "all" and rows.exists() and others:
        logger.warning(
            "%s holds rows of other %s; --out_mode one starts it anew", rows, " and ".join(others)
        )
    run_all_then_raise(
        partial(append_results, rows, summary, out_mode), partial(write_json, path, summary)
    )
    return [rows, path]


def predict(
    job: Job, examples: Sequence[Example], output: Path, details: str, submission_dir: str | None
) -> None:
    """Answer `examples`; write the task's official file and `details` into `output`.

    With `submission_dir` the official file goes there, too, see `add_to_submission`.
    """
    predictions = job.mode.run(job.for_inference())
    if not is_main():
        return
    logits = predictions["logits"]
    path = write_submission(job.task, examples, predictions_of(logits), output)
    table = predictions_table(job.task, examples, logits, job.mode.details(predictions))
    write_text(output / details, table)
    about = (output / details).with_suffix(".json")
    files = [str(path), str(output / details)]
    write_json(about, {"files": files, "rule": job.model.config.exit_keys(), **job.origin})
    print(f"{len(examples)} predictions: {path}, {output / details}, {about}")
    if submission_dir:
        print(add_to_submission(path, submission_dir))


def predictions_table(
    task: Task, examples: Sequence[Example], logits: torch.Tensor, details: dict[str, Sequence]
) -> str:
    """TSV with index, label, prediction, confidence and `details` of every example.

    details: further columns by name, e.g. exit_layer.
    """
    scores = exit_scores(logits)
    lines = ["\t".join(["index", "label", "prediction", "confidence", *details])]
    predictions = predictions_of(logits)
    for i, example in enumerate(examples):
        label = "" if example.label is None else label_text(task, example.label)
        confidence = "" if task.is_regression else f"{scores[i].max():.4f}"
        more = (str(column[i]) for column in details.values())
        fields = [example.index, label, label_text(task, predictions[i]), confidence, *more]
        lines.append("\t".join(fields))
    return "\n".join(lines) + "\n"


def print_summary(summary: dict[str, Any], prefix: str, details: Sequence[str]) -> None:
    """Cost and metrics as published, the mode's own `details`, FLOPs ratio, latency and rule."""
    print(f"Computation cost: {summary['computation_cost']:.4f}")
    print(f"***** Eval results {prefix} *****")
    for name in sorted(summary["metrics"]):
        print(f"{name} = {summary['metrics'][name]}")
    for line in details:
        print(line)
    latency = summary["latency_ms"]
    print(f"FLOPs ratio = {summary['flops_ratio']:.4f}")
    print(f"latency = {latency['median']:.2f} ms median, {latency['p95']:.2f} ms p95", end="")
    print(f" ({summary['latency_means']})" if "latency_means" in summary else "")
    if "texts_per_second" in summary:
        print(f"throughput = {summary['texts_per_second']:.1f} texts/s (all texts, start to end)")
    if "rule_sources" in summary:
        print(f"rule: {Settings(summary['rule'], summary['rule_sources']).line()}")


def write_all(*steps: Callable[[], list[Path] | None]) -> None:
    """Take every step of an evaluation's end, and print where the files are that they return."""
    found = run_all_then_raise(*steps)
    print("written:")
    for path in [path for paths in found for path in paths or ()]:
        print(f"  {path}")
