"""Submission files, and `submission.zip` for gluebenchmark.com: all tasks, each of full length."""

import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from glue.tables import read_lines
from glue.tasks import TASKS, Example, Task
from modeling.errors import UserError
from utils.files import write_file, write_text

OFFICIAL = {task.submission: task for task in TASKS.values()}
HEADER = "index\tprediction"


def label_text(task: Task, prediction: float) -> str:
    """Spell a class id as its label, a score with 3 decimals (STS-B, in 0…5) or 6 digits."""
    if not math.isfinite(prediction):
        raise UserError(f"{task.name}: the predicted score is {prediction}")
    if not task.is_regression:
        return task.labels[int(prediction)]
    if task.score_range is None:
        return f"{prediction:.6g}"
    low, high = task.score_range
    return f"{min(max(prediction, low), high) + 0.0:.3f}"  # + 0.0 turns -0.0 into 0.0


def write_submission(
    task: Task, examples: Sequence[Example], predictions: Sequence[float], directory: str | Path
) -> Path:
    """Write the task's official file, of index and prediction, and return its path."""
    lines = [HEADER]
    for example, prediction in zip(examples, predictions, strict=True):
        # Only CSV and JSON can carry a tab or line break here.
        cells = (" ".join(x.split()) for x in (example.index, label_text(task, prediction)))
        lines.append("\t".join(cells))
    path = Path(directory) / task.submission
    write_text(path, "\n".join(lines) + "\n")
    return path


def check_test_set(task: Task, examples: int) -> None:
    """UserError unless so many examples make the file that the GLUE server takes for `task`."""
    if task.test_lines is None:
        raise UserError(f"--submission_dir is for GLUE's tasks; {task.name} is not one of them")
    if examples + 1 != task.test_lines:
        raise UserError(
            f"{task.files['test']} of {task.name} has {examples} examples, expected "
            f"{task.test_lines - 1}; fetch the official file with download_glue_data.py, or leave "
            "out --submission_dir"
        )


def add_to_submission(path: Path, directory: str | Path) -> str:
    """Copy an official file to `directory`, and zip the files there once none is missing.

    Returns a line on what is there. Raises UserError, naming the file, for one that is not as the
    GLUE server takes it, be it new or from an earlier call, and when the disk is full.
    """
    directory = Path(directory)
    check_file(path, OFFICIAL[path.name])
    write_text(directory / path.name, path.read_text(encoding="utf-8"))
    missing = [name for name in OFFICIAL if not (directory / name).exists()]
    if missing:
        there = len(OFFICIAL) - len(missing)
        names = ", ".join(missing)
        return f"{directory}: {there} of {len(OFFICIAL)} files for a submission; missing: {names}"
    for name, task in OFFICIAL.items():
        check_file(directory / name, task)

    def zip_into(target: BinaryIO) -> None:
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in OFFICIAL:
                archive.write(directory / name, name)

    archive = directory / "submission.zip"
    write_file(archive, zip_into)
    return f"{archive}: all {len(OFFICIAL)} files, ready for gluebenchmark.com"


def check_file(path: Path, task: Task) -> None:
    """UserError unless `path` has the official header and number of lines."""
    lines = [line.rstrip("\r\n") for _, line in read_lines(path)]
    if lines[:1] != [HEADER] or len(lines) != task.test_lines:
        raise UserError(
            f"{path}: found {len(lines)} lines, expected {task.test_lines} and the header "
            f"{HEADER!r}; write it again with --do_predict --task_name {task.name} on the official "
            "test file"
        )
