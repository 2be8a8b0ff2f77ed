"""What every evaluation reports and prints, and the answers to a test set."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from answers.figures import plot_confusion
from answers.predict import Predictions
from answers.scores import ClassScores, class_scores, remark_lines, remarks
from elbert.losses import task_loss
from elbert.rules import certainty, exit_scores, normalised_entropy
from elbert_base.errors import UserError
from elbert_base.exit_settings import KeyValues, Setting
from elbert_base.files import read_regular_file
from glue.features import Features
from glue.metrics import compute_metrics
from glue.tables import as_csv
from glue.tasks import Example, Task, label_text, submission
from runs.files import RunFolder, differences, locked, write_text
from runs.job import Job, Origin
from runs.provenance import provenance_in

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
    """Return class ids or scores, (examples,); raises UserError where the file has none."""
    if features.labels is None:
        raise UserError("the file has no labels; evaluate on the dev file, or use --do_predict")
    return features.labels


def metrics_of(task: Task, logits: torch.Tensor, labels: np.ndarray) -> dict[str, float]:
    """Compute the task's metrics of answers (examples, num_labels), by name."""
    return compute_metrics(task, predictions_of(logits, task.multi_label), labels)


def layer_curve(task: Task, all_logits: torch.Tensor, labels: np.ndarray) -> list[float]:
    """Compute the task's main metric of every layer's answers (layers, examples, num_labels)."""
    return [metrics_of(task, logits, labels)[task.primary_metric] for logits in all_logits]


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


@dataclass(frozen=True)
class DepthSummary:
    """How deep the examples went, and at which cost; a mode adds fields of its own.

    Its fields are keys of eval_results.json.
    """

    computation_cost: float  # mean share of layers, or of updates, that ran
    flops_ratio: float  # FLOPs spent, exits included, over those of the full depth

    def as_json(self) -> dict[str, Any]:
        """Give the fields by name, without those that are None."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class Summary:
    """What an evaluation found: the content of eval_results.json."""

    task: str
    dataset: str  # what figures call the data
    examples: int
    metrics: dict[str, float]
    class_scores: ClassScores
    remarks: list[str]  # what is suspect
    latency_ms: dict[str, float]  # median and p95
    latency_means: str  # what was timed
    texts_per_second: float
    rule: Setting  # the exit keys
    origin: Origin
    batch_size: int
    depth: DepthSummary

    def as_json(self) -> dict[str, Any]:
        """Give everything by the names of eval_results.json."""
        return {
            "task": self.task,
            "dataset": self.dataset,
            "examples": self.examples,
            "metrics": self.metrics,
            **self.class_scores.as_json(),
            "remarks": self.remarks,
            "latency_ms": self.latency_ms,
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

    depth: what the mode says of it. latency_means: what the seconds of `predictions` are.
    """
    milliseconds = 1000 * predictions["seconds"].numpy()
    median, p95 = np.percentile(milliseconds, [50, 95]).tolist()
    answers = predictions_of(predictions["logits"], job.task.multi_label)
    labels = labels_of(job.features)
    exits = predictions.get("exit_layer")
    origin = job.origin
    # A setting that is only tried, by a flag, may well let nothing exit.
    is_tried = any(source.startswith("--") for source in origin.rule_sources.values())
    return Summary(
        task=job.task.name,
        dataset=job.task.shown_name,
        examples=len(job.features),
        metrics=compute_metrics(job.task, answers, labels),
        class_scores=class_scores(job.task, answers, labels),
        remarks=remarks(
            job.task,
            answers,
            labels,
            exit_layer=None if exits is None or is_tried else exits.numpy(),
            layers=job.model.config.num_hidden_layers,
        ),
        latency_ms={"median": median, "p95": p95},
        latency_means=latency_means,
        texts_per_second=len(job.features) / max(predictions.wall_seconds, 1e-9),
        rule=job.model.config.exit_keys(),
        origin=origin,
        batch_size=job.batch_size,
        depth=depth,
    )


def row_of(summary: Summary) -> dict[str, str]:
    """Make a row of the published CSV, by column.

    The index 0, exit_thres where there is one, the metrics with compute_ratio after the first, and
    the published exit keys.
    """
    (first, value), *rest = summary.metrics.items()
    numbers = {first: value, "compute_ratio": summary.depth.computation_cost, **dict(rest)}
    rule, row = dict(summary.rule), {"": "0"}
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


def append_results(path: Path, summary: Summary, out_mode: str) -> None:
    """Append a row to the published CSV; `one` starts the file anew."""
    row, folder = row_of(summary), path.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(path):  # two evaluations may end at the same time
            lines = [*earlier_lines(path, row, out_mode), ",".join(row.values())]
            text = "\n".join(lines) + "\n"
            grows = out_mode == "all" and path.exists()
            if grows and not RunFolder(folder).has_own(path.name):
                write_text(path, text)  # the user's file: it grows, and stays on no list
            else:
                RunFolder(folder).write_text(path.name, text)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error


@dataclass(frozen=True)
class Report:
    """An evaluation's results: its summary, lines for the console, and further files."""

    summary: Summary
    lines: Sequence[str] = ()
    files: Mapping[Path, Callable[[], Any]] = field(default_factory=dict)  # what writes each
    outdated: Sequence[Path] = ()  # of an earlier evaluation; they are removed

    def print(self) -> None:
        """Print cost and metrics as published, the mode's own lines, FLOPs, latency and rule."""
        summary = self.summary
        latency = summary.latency_ms
        rule = KeyValues(summary.rule, summary.origin.rule_sources)
        output_dir = summary.origin.provenance.flags.get("output_dir", "")
        lines = [
            f"Computation cost: {summary.depth.computation_cost:.4f}",
            "***** Eval results  *****",
            *(f"{name} = {value}" for name, value in sorted(summary.metrics.items())),
            *self.lines,
            f"FLOPs ratio = {summary.depth.flops_ratio:.4f}",
            f"latency = {latency['median']:.2f} ms median, {latency['p95']:.2f} ms p95 "
            f"({summary.latency_means})",
            f"throughput = {summary.texts_per_second:.1f} texts/s (all texts, start to end)",
            f"rule: {rule.line()}",
            *summary.class_scores.lines(),
            *remark_lines(summary.remarks, output_dir),
        ]
        print("\n".join(lines))

    def write(self, folder: Path, trained: Path, out_mode: str) -> None:
        """Write eval_results.txt and .json into `folder`, and the report's files; print where.

        trained: the folder of the model. One warning for rows of other weights or data that this
        evaluation's row would stand beside.
        """
        rows, path = folder / ROWS, folder / "eval_results.json"
        content = self.summary.as_json()
        changed = differences(provenance_in(path), content["provenance"])
        others = [name for name in ("weights", "data") if name in changed]
        if out_mode == "all" and rows.exists() and others:
            names = " and ".join(others)
            logger.warning("%s holds rows of other %s; --out_mode one starts it anew", rows, names)
        append_results(rows, self.summary, out_mode)
        removed = []
        for owner in (folder, trained):
            names = [os.path.relpath(outdated, owner) for outdated in self.outdated]
            removed += RunFolder(owner).remove(names)
        if removed:
            print("removed, of an earlier evaluation:", ", ".join(removed))
        further = dict(self.files)
        scores = self.summary.class_scores
        if scores.confusion is not None:
            picture = folder / "confusion.png"
            further[picture] = partial(
                plot_confusion, picture, scores.confusion, list(scores.classes)
            )
        RunFolder(folder).write_json(path.name, content)
        for write in further.values():
            write()
        print("written:", *(f"  {os.path.abspath(x)}" for x in (rows, path, *further)), sep="\n")


def write_predictions(
    job: Job,
    predictions: Predictions,
    examples: Sequence[Example],
    details: Mapping[str, Sequence[Any]],
    output: Path,
    name: str,
) -> None:
    """Write the answers to a test set into `output`: the official file, and a table with details.

    details: the mode's own columns, by name. name: of the table; its .json says where it is from.
    """
    job.check_unchanged()
    task, logits = job.task, predictions["logits"]
    answers = predictions_of(logits, task.multi_label)
    official, table = output / task.submission, output / name
    results = RunFolder(output)
    results.write_text(official, submission(task, examples, answers))
    results.write_text(table, predictions_table(task, examples, logits, details))
    content = {"files": [str(official), str(table)], "rule": job.model.config.exit_keys()}
    content |= job.origin.as_json()
    results.write_json(table.with_suffix(".json"), content)
    print(f"{len(examples)} predictions: {official}, {table}, {table.with_suffix('.json')}")


def predictions_table(
    task: Task,
    examples: Sequence[Example],
    logits: torch.Tensor,
    details: Mapping[str, Sequence[Any]],
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
