"""What every evaluation reports and prints, and the answers to a test set."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from evaluation.answers import class_lines, class_scores, remark_lines, remarks
from evaluation.figures import plot_confusion
from evaluation.job import Job
from evaluation.predictions import Predictions, is_main, run_all
from glue.features import Features
from glue.metrics import compute_metrics
from glue.tables import as_csv
from glue.tasks import Example, Task, label_text, submission
from modeling.errors import UserError
from modeling.exit_settings import KeyValues
from modeling.loading.files import read_regular_file
from modeling.losses import task_loss
from modeling.rules import certainty, exit_scores, normalised_entropy
from training.provenance import provenance_in
from utils import files

logger = logging.getLogger(__name__)

ROWS = "eval_results.txt"
# Exit keys that are columns there, behind the metrics; exit_thres is the first column.
COLUMNS = ("thres_name", "cnt_thres", "margin", "range_tmp", "exit_criteria", "act_epsilon")


def predictions_of(logits: torch.Tensor, multi_label: bool = False) -> np.ndarray:
    """Class ids, or values for a single output: (..., num_labels) -> (...); of several labels which
    are there, bool (..., num_labels)."""
    if multi_label:
        return (logits > 0).numpy()
    chosen = logits.argmax(-1) if logits.shape[-1] > 1 else logits[..., 0]
    return chosen.numpy()


def labels_of(features: Features) -> np.ndarray:
    """(examples,) class ids or scores; UserError where the file has none."""
    if features.labels is None:
        raise UserError("the file has no labels; evaluate on the dev file, or use --do_predict")
    return features.labels


def metrics_of(job: Job, logits: torch.Tensor) -> dict[str, float]:
    """The task's metrics of answers (examples, num_labels), by name."""
    answers = predictions_of(logits, job.task.multi_label)
    return compute_metrics(job.task, answers, labels_of(job.features))


def layer_curve(job: Job, all_logits: torch.Tensor) -> list[float]:
    """The task's main metric of every layer's answers."""
    name = job.task.primary_metric
    return [metrics_of(job, logits)[name] for logits in all_logits]


def layer_table(
    all_logits: torch.Tensor, labels: torch.Tensor, exit_layer: torch.Tensor | None = None
) -> str:
    """CSV with loss, entropy and accuracy of every layer.

    Over all samples or, given the `exit_layer` of each, over those that exit at the layer.
    Regression has neither entropy nor accuracy: these fields stay empty.
    """
    rows = []
    for layer, logits in enumerate(all_logits, start=1):
        here = slice(None) if exit_layer is None else exit_layer == layer
        chosen, truth, numbers = logits[here], labels[here], []
        if len(truth) and logits.shape[-1] == 1:
            numbers = [task_loss(chosen, truth)]
        elif len(truth):
            several = truth.ndim > 1  # a label is a choice between two, for the entropy
            choices = torch.stack((0 * chosen, chosen), -1) if several else chosen
            right = torch.as_tensor(predictions_of(chosen, several)) == truth
            accuracy = (right.all(-1) if several else right).float().mean()
            entropy = normalised_entropy(exit_scores(choices)).mean()
            numbers = [task_loss(chosen, truth), entropy, accuracy]
        texts = [*(f"{number:.6f}" for number in numbers), "", "", ""][:3]
        row = {"layer": layer, "samples": len(truth)}
        rows.append(row | dict(zip(("loss", "entropy", "accuracy"), texts, strict=True)))
    return as_csv(rows)


def summary_of(job: Job, predictions: Predictions) -> dict[str, Any]:
    """Values that every mode reports: task, metrics, the rule, and how fast it was under which
    conditions."""
    median, p95 = np.percentile((predictions["seconds"] * 1000).numpy(), [50, 95]).tolist()
    means = f"of the call, for up to {job.batch_size} texts at once"
    if job.batch_size == 1:
        means = "one text at a time, from the call to its answer"
    elif job.mode.depth_batched and not job.file:
        means = f"from entering one of {job.batch_size} slots to the answer"
    answers = predictions_of(predictions["logits"], job.task.multi_label)
    labels = labels_of(job.features)
    exits, layers = predictions.get("exit_layer"), job.model.config.num_hidden_layers
    exits = None if exits is None else exits.numpy()
    # A setting that is only tried, by a flag, may well let nothing exit.
    tried = any(source.startswith("--") for source in job.origin.get("rule_sources", {}).values())
    return {
        "task": job.task.name,
        "dataset": job.task.shown_name,
        "examples": len(job.features),
        "metrics": compute_metrics(job.task, answers, labels),
        **class_scores(job.task, answers, labels),
        "remarks": remarks(job.task, answers, labels, None if tried else exits, layers),
        "latency_ms": {"median": median, "p95": p95},
        "latency_means": means,
        "texts_per_second": len(job.features) / max(predictions.wall_seconds, 1e-9),
        "rule": job.model.config.exit_keys(),
        **job.origin,
        "batch_size": job.batch_size,
    }


def row_of(summary: dict[str, Any]) -> dict[str, str]:
    """A row of the published CSV, by column.

    The index 0, exit_thres where there is one, the metrics with compute_ratio after the first, and
    the published exit keys.
    """
    (first, value), *rest = summary["metrics"].items()
    numbers = dict([(first, value), ("compute_ratio", summary["computation_cost"]), *rest])
    rule, row = dict(summary["rule"]), {"": "0"}
    if (threshold := rule.pop("exit_thres", None)) is not None:
        published = f"{threshold:.2f}"
        row["exit_thres"] = published if float(published) == threshold else str(threshold)
    row |= {name: f"{number:.4f}" for name, number in numbers.items()}
    return row | {name: str(rule[name]) for name in COLUMNS if name in rule}


def earlier_lines(path: Path, row: dict[str, str], out_mode: str) -> list[str]:
    """The lines that a row joins: for `all` those of the file, else the header alone.

    Raises UserError when the file holds another task's columns.
    """
    header = ",".join(row)
    lines = [header]
    if out_mode == "all" and path.exists():  # what is no text has other columns, too
        lines = read_regular_file(path).decode(errors="replace").splitlines() or lines
    if lines[0] != header:
        raise UserError(
            f"{path} has other columns: move it away, or use --out_mode one to start it anew"
        )
    return lines


def append_results(path: Path, summary: dict[str, Any], out_mode: str) -> None:
    """Append a row to the published CSV; `one` starts the file anew."""
    row, folder = row_of(summary), path.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with files.locked(path):  # two evaluations may end at the same time
            lines = [*earlier_lines(path, row, out_mode), ",".join(row.values())]
            grows = out_mode == "all" and path.exists()
            users = grows and not files.is_own(folder, path.name, files.read_list(folder))
            files.write_text(path, "\n".join(lines) + "\n", None if users else folder)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error


class Report(NamedTuple):
    """An evaluation's content of eval_results.json, lines for the console, and further files:
    by path what writes each; None for one of an earlier evaluation, which is removed."""

    summary: dict[str, Any]
    lines: Sequence[str] = ()
    files: Mapping[Path, Callable[[], Any] | None] = {}


def write_results(report: Report, folder: Path, trained: Path, out_mode: str) -> None:
    """Write eval_results.txt and .json into `folder`, and the report's files; print where all are.

    One warning for rows of other weights or data that this evaluation's row would stand beside.
    """
    rows, path, summary = folder / ROWS, folder / "eval_results.json", report.summary
    changed = files.differences(provenance_in(path), summary.get("provenance", {}))
    others = [name for name in ("weights", "data") if name in changed]
    if out_mode == "all" and rows.exists() and others:
        logger.warning(
            "%s holds rows of other %s; --out_mode one starts it anew", rows, " and ".join(others)
        )
    append_results(rows, summary, out_mode)
    more = {file: write for file, write in report.files.items() if write}
    old = report.files.keys() - more.keys()
    gone = [
        x
        for at in (folder, trained)
        for x in files.remove(at, [os.path.relpath(y, at) for y in old])
    ]
    if gone:
        print("removed, of an earlier evaluation:", ", ".join(gone))
    if "confusion" in summary:
        picture = folder / "confusion.png"
        more[picture] = partial(plot_confusion, picture, summary)
    files.write_json(path, summary, listed_in=folder)
    for write in more.values():
        write()
    print("written:", *(f"  {os.path.abspath(x)}" for x in (rows, path, *more)), sep="\n")


def write_predictions(job: Job, examples: Sequence[Example], output: Path, details: str) -> None:
    """Answer `examples`; write the task's official file and `details` into `output`."""
    predictions = run_all(job.for_inference())
    if not is_main():
        return
    job.check_unchanged()
    logits, table, path = predictions["logits"], output / details, output / job.task.submission
    answers = predictions_of(logits, job.task.multi_label)
    files.write_text(path, submission(job.task, examples, answers), listed_in=output)
    text = predictions_table(job.task, examples, logits, job.mode.details(predictions))
    files.write_text(table, text, listed_in=output)
    about = {"files": [str(path), str(table)], "rule": job.model.config.exit_keys(), **job.origin}
    files.write_json(table.with_suffix(".json"), about, listed_in=output)
    print(f"{len(examples)} predictions: {path}, {table}, {table.with_suffix('.json')}")


def predictions_table(
    task: Task, examples: Sequence[Example], logits: torch.Tensor, details: dict[str, Sequence]
) -> str:
    """TSV with index, label, prediction, confidence, `details`, every class's probability and the
    texts of every example.

    details: further columns by name, e.g. exit_layer.
    """
    scores = exit_scores(logits, task.multi_label)
    predictions = predictions_of(logits, task.multi_label)
    certain = certainty(scores, task.multi_label)
    names = [f"probability of {' '.join(name.split())}" for name in task.labels]
    lines = [["index", "label", "prediction", "confidence", *details, *names, *task.text_columns]]
    for i, example in enumerate(examples):
        label = "" if example.label is None else label_text(task, example.label)
        confidence = "" if task.is_regression else f"{certain[i]:.4f}"
        texts = [cell(text) for text in (example.text_a, example.text_b) if text is not None]
        fields = [cell(example.index), label, label_text(task, predictions[i]), confidence]
        fields += [str(column[i]) for column in details.values()]
        lines.append([*fields, *(f"{score:.4f}" for score in scores[i][: len(names)]), *texts])
    return "".join("\t".join(line) + "\n" for line in lines)


def cell(text: str) -> str:
    """Write a text in one line, which no spreadsheet takes for a formula."""
    text = " ".join(text.split())
    is_formula = text[:1] in ("=", "+", "-", "@") and not text[1:].isdecimal()
    return f"'{text}" if is_formula else text


def print_report(report: Report) -> None:
    """Print cost and metrics as published, the mode's own lines, FLOPs ratio, latency and rule."""
    summary = report.summary
    latency, rule = summary["latency_ms"], KeyValues(summary["rule"], summary["rule_sources"])
    lines = [
        f"Computation cost: {summary['computation_cost']:.4f}",
        "***** Eval results  *****",
        *(f"{name} = {value}" for name, value in sorted(summary["metrics"].items())),
        *report.lines,
        f"FLOPs ratio = {summary['flops_ratio']:.4f}",
        f"latency = {latency['median']:.2f} ms median, {latency['p95']:.2f} ms p95 "
        f"({summary['latency_means']})",
        f"throughput = {summary['texts_per_second']:.1f} texts/s (all texts, start to end)",
        f"rule: {rule.line()}",
        *class_lines(summary),
        *remark_lines(summary["remarks"], summary["provenance"]["flags"]["output_dir"]),
    ]
    print("\n".join(lines))
