"""The user's own task, with the columns and labels that its files have."""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from elbert_base.errors import UserError
from glue.tables import SUFFIXES, kind_of, read_table
from glue.tasks import TWO, Split, Task, parse_number, split_labels

logger = logging.getLogger(__name__)


def custom_task(
    files: Mapping[str, str | Path | None],
    labels: Sequence[str] | None = None,
    text_columns: str | None = None,
    label_column: str | None = None,
    separator: str | None = None,
) -> Task:
    """Make a task of tables for train, dev and test (see `read_table`).

    Their columns are sentence1, perhaps sentence2, and label, unless others are named, A or A,B.

    `labels` are a trained model's, empty for regression. A file with as many labels of its own is
    read with these, in their order, which a warning says. Without `labels` they are those of the
    training file (else of the validation file), sorted, as numbers when all are numbers. If all
    are numbers and at least one is not whole, the task is regression. With a `separator` a cell
    holds any number of labels; several label columns, A,B,C, are a label each, of 0 and 1. Raises
    UserError.
    """
    paths = {name: str(Path(file).absolute()) for name, file in files.items() if file}
    if not paths:
        raise UserError("give at least one of --train_file, --validation_file and --test_file")
    for file in paths.values():
        if kind_of(Path(file)) not in SUFFIXES:
            endings = " ".join(SUFFIXES)
            raise UserError(f"{file}: the name must end in one of: {endings} (or these with .gz)")
    names = tuple(name.strip() for name in text_columns.split(",")) if text_columns else ()
    if len(names) > 2 or not all(names):
        raise UserError(f"--text_column_names {text_columns}: give the name of one column, or A,B")
    task = Task("custom", "", "custom.tsv", files=paths, labels=(), metric="corr")
    split = Split(task, "", next(iter(paths)))
    columns, _ = read_table(split.path)
    names = names or (TWO if "sentence2" in columns else TWO[:1])
    task = replace(task, text_columns=names, label_column=label_column or "label")
    several = tuple(name.strip() for name in task.label_column.split(","))
    if separator or len(several) > 1:
        task = replace(task, multi_label=True, separator=separator or "")
        labels = labels or (_discover_labels(split, task) if separator else several)
    elif labels is None:
        labels = _discover_labels(split, task)
    elif labels and split.name != "test":
        own = _discover_labels(split, task)
        if len(own) == len(labels) and not {*own} <= {*labels}:
            pairs = ", ".join(f"{one} as {name}" for one, name in zip(own, labels, strict=True))
            logger.warning(
                "%s: the labels are taken, in their order, for the model's: %s", split.path, pairs
            )
            labels = own
    if len(labels) == 1 or (task.multi_label and not labels):
        only = repr(labels[0]) if labels else "none"
        raise UserError(f"{split.path}: the only label is {only}; there must be 2 or more")
    metric = "f1_micro" if task.multi_label else "acc" if labels else "corr"
    return replace(task, labels=tuple(labels), metric=metric)


def _discover_labels(split: Split, task: Task) -> list[str]:
    """Return the sorted labels of a file; [] where they are scores."""
    path = split.path
    if split.name == "test":
        raise UserError(f"{path} alone does not tell the labels; give a --train_file as well")
    found: dict[str, float | None] = {}  # label → the number it spells
    for line, row in split.rows((*task.text_columns, task.label_column)):
        label = row[task.label_column].strip()
        if not label and not task.multi_label:
            raise UserError(f"{path}, line {line}: no {task.label_column}")
        names = split_labels(task, row) if task.multi_label else [label]
        found |= {name: parse_number(name) for name in names}
    numbers = [number for number in found.values() if number is not None]
    all_numbers = len(numbers) == len(found)
    if all_numbers and not all(map(math.isfinite, numbers)):
        raise UserError(f"{path}: of the labels {', '.join(found)[:200]}, not all are finite")
    if all_numbers and not task.multi_label and any(n != int(n) for n in numbers):
        return []
    if len(set(numbers)) < len(numbers):
        raise UserError(f"{path}: two of the labels {', '.join(found)} are the same number")
    if all_numbers:
        return sorted(found, key=lambda name: found[name] or 0.0)
    return sorted(found)
