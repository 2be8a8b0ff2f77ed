"""Answers to a test set: the file for the GLUE server, and a table with confidence and depth."""

from collections.abc import Sequence
from pathlib import Path

from evaluation.job import Job
from evaluation.processes import is_main
from evaluation.results import predictions_of, predictions_table
from glue.files import write_text
from glue.submission import add_to_submission
from glue.tasks import Example, write_submission


def predict(
    job: Job, examples: Sequence[Example], output: Path, details: str, submission_dir: str | None
) -> None:
    """Answer `examples`; write the task's official file and `details` into `output`.

    With `submission_dir` the official file goes there, too, see `add_to_submission`.
    """
    fast, _ = job.fast()
    answers = job.mode.run(fast)
    if not is_main():
        return
    path = write_submission(job.task, examples, predictions_of(answers.logits), output)
    table = predictions_table(job.task, examples, answers.logits, answers.details())
    write_text(output / details, table)
    print(f"{len(examples)} predictions: {path}, {output / details}")
    if submission_dir:
        print(add_to_submission(path, submission_dir))
