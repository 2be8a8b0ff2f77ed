"""An evaluation's report: lines for the console, eval_results.txt and .json, and pictures."""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from evaluation.figures import confusion_figure, save_figure
from evaluation.scores import remark_lines
from evaluation.summary import Summary
from modeling.errors import UserError
from modeling.exit_settings import KeyValues
from modeling.files import read_regular_file
from runs.files import locked, put_aside, write_text
from runs.fingerprint import differences
from runs.folder import RunFolder
from runs.provenance import HASHES, provenance_in

logger = logging.getLogger(__name__)

ROWS_FILE = "eval_results.txt"
SUMMARY_FILE = "eval_results.json"
FIRST_VALUE = "0.90"  # of exit_thres in ELBERT's published loop
# Exit keys that are columns of eval_results.txt, behind the metrics; exit_thres is the first.
KEY_COLUMNS = ("thres_name", "cnt_thres", "margin", "range_tmp", "exit_criteria", "act_epsilon")


@dataclass(frozen=True)
class ReportFile:
    """A file of a report, beside eval_results.txt and .json."""

    path: Path
    content: str | Figure  # a text, or a picture
    owner: Path  # folder whose list of results has the file

    def write(self) -> None:
        """Write the file."""
        results = RunFolder(self.owner)
        if isinstance(self.content, Figure):
            save_figure(self.content, self.path, results)
        else:
            results.write_text(self.path, self.content)


@dataclass(frozen=True)
class Report:
    """An evaluation's results: its summary, lines for the console, and further files."""

    summary: Summary
    lines: Sequence[str] = ()
    files: Sequence[ReportFile] = ()
    outdated: Sequence[Path] = ()  # files of an earlier evaluation, which are removed

    def print(self) -> None:
        """Print cost and metrics as published, the mode's own lines, FLOPs, latency and rule."""
        summary = self.summary
        rule = KeyValues(summary.rule, summary.origin.rule_sources).without(*summary.idle_keys)
        output_dir = summary.origin.provenance.flags.get("output_dir", "")
        lines = [
            f"Computation cost: {summary.depth.computation_cost:.4f}",
            "***** Eval results  *****",
            *(f"{name} = {value}" for name, value in sorted(summary.metrics.items())),
            *summary.metric_notes,
            *self.lines,
            f"FLOPs ratio = {summary.depth.flops_ratio:.4f}",
            f"latency = {summary.median_ms:.2f} ms median, {summary.p95_ms:.2f} ms p95 "
            f"({summary.latency_means})",
            f"throughput = {summary.texts_per_second:.1f} texts/s (all texts, start to end)",
            f"rule: {rule.line()}",
            *summary.class_scores.lines(),
            *(summary.score_errors.lines() if summary.score_errors else []),
            *remark_lines(summary.remarks, output_dir),
        ]
        print("\n".join(lines))

    def final_scalars(self) -> dict[str, float]:
        """Return the metrics and what they cost, by name, for an experiment tracker."""
        summary = self.summary
        return {
            **summary.metrics,
            "computation_cost": summary.depth.computation_cost,
            "flops_ratio": summary.depth.flops_ratio,
            "latency_median_ms": summary.median_ms,
            "latency_p95_ms": summary.p95_ms,
        }

    def write(self, folder: Path, trained: Path, out_mode: str) -> None:
        """Write eval_results.txt and .json into `folder`, and the report's files; print where.

        One warning for rows of another model, or of other data, that this evaluation's row would
        stand beside.

        Args:
            folder: of the results.
            trained: of the model.
            out_mode: `all` adds a row to eval_results.txt, `one` starts it anew.
        """
        rows_path = folder / ROWS_FILE
        summary_path = folder / SUMMARY_FILE
        if out_mode == "all" and rows_path.exists():
            self.warn_of_other_rows(rows_path, summary_path)
        append_results(rows_path, self.summary, out_mode)
        self.remove_outdated([folder, trained])
        RunFolder(folder).write_json(SUMMARY_FILE, self.summary.as_json())
        files = [*self.files, *self.confusion_file(folder)]
        for file in files:
            file.write()
        paths = [rows_path, summary_path, *(file.path for file in files)]
        print("written:", *(f"  {os.path.abspath(path)}" for path in paths), sep="\n")

    def warn_of_other_rows(self, rows_path: Path, summary_path: Path) -> None:
        """Warn where the last evaluation was of another model or other data than this one."""
        now = self.summary.origin.provenance.as_json()
        changed = differences(provenance_in(summary_path), now)
        names = [name for name in HASHES if name in changed]
        if names:
            logger.warning(
                "%s holds rows of other %s; --out_mode one starts it anew",
                rows_path,
                " and ".join(names),
            )

    def remove_outdated(self, folders: Sequence[Path]) -> None:
        """Remove the outdated files that are on the folders' lists of results; print which."""
        removed: list[str] = []
        for folder in folders:
            names = [os.path.relpath(path, folder) for path in self.outdated]
            removed += RunFolder(folder).remove(names)
        if removed:
            print("removed, of an earlier evaluation:", ", ".join(removed))

    def confusion_file(self, folder: Path) -> list[ReportFile]:
        """Make confusion.png; return [] where there are no classes to confuse."""
        scores = self.summary.class_scores
        if scores.confusion is None:
            return []
        figure = confusion_figure(scores.confusion, list(scores.classes))
        return [ReportFile(folder / "confusion.png", figure, owner=folder)]


# eval_results.txt, as published.


def row_of(summary: Summary) -> dict[str, str]:
    """Make a row of the published CSV, by column.

    The index 0, exit_thres where there is one, the metrics with compute_ratio after the first, and
    the published exit keys.
    """
    row = {"": "0"}
    threshold = summary.rule.get("exit_thres")
    if threshold is not None:
        published_text = f"{threshold:.2f}"
        is_exact = float(published_text) == threshold
        row["exit_thres"] = published_text if is_exact else str(threshold)
    first_metric, *other_metrics = summary.metrics
    row[first_metric] = f"{summary.metrics[first_metric]:.4f}"
    row["compute_ratio"] = f"{summary.depth.computation_cost:.4f}"
    for name in other_metrics:
        row[name] = f"{summary.metrics[name]:.4f}"
    for name in KEY_COLUMNS:
        if name in summary.rule:
            row[name] = str(summary.rule[name])
    return row


def earlier_lines(path: Path, row: dict[str, str], out_mode: str) -> list[str]:
    """Return the lines that a row joins: for `all` those of the file, else the header alone.

    As in ELBERT's published code, the threshold at which its loop begins also begins the table.
    The table before is kept under another name.

    Raises UserError when the file holds another task's columns.
    """
    header = ",".join(row)
    lines = [header]
    if out_mode == "all" and path.exists() and row.get("exit_thres") == FIRST_VALUE:
        put_aside(path, f"is of an earlier loop, since exit_thres {FIRST_VALUE} begins a table")
    if out_mode == "all" and path.exists():
        # Bytes that are not text are read all the same: they make other columns than ours.
        lines = read_regular_file(path).decode(errors="replace").splitlines() or lines
    if lines[0] != header:
        raise UserError(
            f"{path} has other columns: move it away, or use --out_mode one to start it anew"
        )
    return lines


def append_results(path: Path, summary: Summary, out_mode: str) -> None:
    """Append a row to the published CSV; `one` starts the file anew.

    Raises UserError when the file cannot be written, or holds another task's columns.
    """
    row = row_of(summary)
    results = RunFolder(path.parent)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path):  # two evaluations may end at the same time
            lines = [*earlier_lines(path, row, out_mode), ",".join(row.values())]
            text = "\n".join(lines) + "\n"
            is_continued = out_mode == "all" and path.exists()
            if is_continued and not results.has_own(path.name):
                write_text(path, text)  # the user's file: it gets the row, and is on no list
            else:
                results.write_text(path.name, text)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error
