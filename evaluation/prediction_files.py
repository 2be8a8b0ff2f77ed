"""The answers to a test set as files: the official one, and predictions.tsv with details."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from evaluation.measures import predictions_of
from evaluation.predict import Predictions
from glue.splits import Example
from glue.submission import label_text, submission_text
from glue.table_writing import format_cells
from glue.tasks import Task
from modeling.rules import certainty, exit_scores
from runs.folder import RunFolder
from runs.job import Job


def write_predictions(
    job: Job,
    predictions: Predictions,
    examples: Sequence[Example],
    details: Mapping[str, Sequence[Any]],
    output: Path,
    name: str,
) -> None:
    """Write the answers to a test set into `output`: the official file, and a table with details.

    Raises UserError where what the job was made from was changed since.

    Args:
        details: the mode's own columns, by name; see `Mode.details`.
        name: of the table; beside it a .json file says where the answers come from.
    """
    job.check_unchanged()
    task, logits = job.task, predictions["logits"]
    answers = predictions_of(logits, task.multi_label)
    official = output / task.submission
    table = output / name
    origin_file = table.with_suffix(".json")
    results = RunFolder(output)
    results.write_text(official, submission_text(task, examples, answers))
    results.write_text(table, predictions_table(task, examples, logits, details))
    results.write_json(
        origin_file,
        {
            "files": [str(official), str(table)],
            "rule": job.config.exit_keys(),
            **job.origin.as_json(),
        },
    )
    print(f"{len(examples)} predictions: {official}, {table}, {origin_file}")


def predictions_table(
    task: Task, examples: Sequence[Example], logits: Tensor, details: Mapping[str, Sequence[Any]]
) -> str:
    """Format a line for each example, tab-separated under a header.

    The columns are index, label, prediction, confidence, `details`, every class's probability and
    the texts. Confidence and probabilities have the digits that tell any two float32 apart.

    logits: (examples, num_labels). details: further columns by name, e.g. exit_layer.
    """
    probabilities = exit_scores(logits, task.multi_label)
    confidence = certainty(probabilities, task.multi_label).numpy()
    scores = probabilities.numpy()
    answers = predictions_of(logits, task.multi_label)
    # Regression has neither classes nor probabilities.
    probability_columns = [f"probability of {one_line(name)}" for name in task.labels]
    columns = ["index", "label", "prediction", "confidence"]
    lines = [[*columns, *details, *probability_columns, *task.text_columns]]
    for row, example in enumerate(examples):
        cells = [
            spreadsheet_cell(example.index),
            "" if example.label is None else label_text(task, example.label),
            label_text(task, answers[row]),
            "" if task.is_regression else str(confidence[row]),
        ]
        cells += [str(column[row]) for column in details.values()]
        if not task.is_regression:
            cells += [str(score) for score in scores[row]]
        cells.append(spreadsheet_cell(example.text_a))
        if example.text_b is not None:
            cells.append(spreadsheet_cell(example.text_b))
        lines.append(cells)
    return format_cells(".tsv", lines).decode()


def spreadsheet_cell(text: str) -> str:
    """Write a text in one line, which no spreadsheet takes for a formula."""
    text = one_line(text)
    is_formula = text[:1] in ("=", "+", "-", "@") and not text[1:].isdecimal()
    return f"'{text}" if is_formula else text


def one_line(text: str) -> str:
    """Put single spaces in place of tabs, line breaks and runs of spaces."""
    return " ".join(text.split())
