"""`submission.zip` for gluebenchmark.com: the official files of all tasks, each of full length."""

import zipfile
from functools import partial
from pathlib import Path
from typing import BinaryIO

from glue.tables import read_lines
from glue.tasks import TASKS, Task
from modeling.errors import UserError
from utils.files import write_file, write_text

OFFICIAL = {task.submission: task for task in TASKS.values()}
HEADER = "index\tprediction"


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


def check_file(path: Path, task: Task) -> None:
    """UserError unless `path` has the official header and number of lines."""
    count = 0
    for count, line in read_lines(path):
        if count == 1 and line.rstrip("\r\n") != HEADER:
            raise UserError(f"{path}, line 1: found {line.strip()[:80]!r}, expected {HEADER!r}")
    if count != task.test_lines:
        raise UserError(
            f"{path}: found {count} lines, expected {task.test_lines}, header included; write it "
            f"again with --do_predict --task_name {task.name} on the official test file"
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
    archive = directory / "submission.zip"
    write_file(archive, partial(zip_into, directory))
    return f"{archive}: all {len(OFFICIAL)} files, ready for gluebenchmark.com"


def zip_into(directory: Path, target: BinaryIO) -> None:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in OFFICIAL:
            archive.write(directory / name, name)
