"""The user's own task, with the columns and labels that its files have."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from glue.splits import (
    DROP_ADVICE,
    Split,
    check_no_list,
    hides_label,
    parse_number,
    split_labels,
)
from glue.tables import SUFFIXES, check_no_pipe, kind_of, read_table
from glue.tasks import TWO_SENTENCES, Task
from modeling.errors import UserError
from modeling.labels import check_characters, match_labels, shown

REGRESSION = "regression"
CLASSIFICATION = "classification"
MULTI_LABEL = "multi_label"
TASK_TYPES = (CLASSIFICATION, REGRESSION, MULTI_LABEL)
MARKS = {"0", "1", "0.0", "1.0", "false", "true"}  # that a label is absent or present
LIST_SEPARATOR = "\x1f"  # joins labels that a file has as a list: no text has it


def task_type_of(task: Task) -> str:
    """Return the value of --task_type that means a task."""
    if task.multi_label:
        return MULTI_LABEL
    return REGRESSION if task.is_regression else CLASSIFICATION


def custom_task(
    files: Mapping[str, str | Path | None],
    labels: Sequence[str] | None = None,
    text_columns: str | None = None,
    label_column: str | None = None,
    separator: str | None = None,
    labels_in_order: bool = False,
    task_type: str | None = None,
    drop_incomplete: bool = False,
) -> Task:
    """Make a task of the user's own tables; see `read_table` for their kinds.

    Columns and labels are read from the first file that is given. Without a task_type, the task is
    regression if all labels are numbers and at least one is not whole.

    Args:
        files: the table of each split: train, dev and test.
        labels: a trained model's, in their order; empty for regression. The file's must be among
            them; see `match_labels`. Default: the labels in the file, sorted, as numbers where all
            are numbers.
        text_columns: A or A,B. Default: sentence1, and sentence2 where the file has it, or text.
        label_column: default: label. Several columns, A,B,C, are a label each, of 0 and 1. With
            "", no labels are read, which a test file needs not have.
        separator: between the labels in a cell, which then holds any number of them.
        labels_in_order: whether the file's labels, where it has as many and none is the model's,
            mean the model's in their order.
        task_type: one of TASK_TYPES: what numbers in the label column mean.
        drop_incomplete: whether rows without a text or a label are left out.

    Raises:
        UserError: no file; a task_type that is not the model's; a table that cannot be read; fewer
            than two labels; labels that are not the model's.
    """
    paths = _absolute_paths(files)
    first_split = next(iter(paths))
    task = Task(
        name="custom",
        title=Path(paths[first_split]).name,
        folder="",
        submission="custom.tsv",
        files=paths,
        label_column="label" if label_column is None else label_column,
        labels=(),
        metric="corr",
        drop_incomplete=drop_incomplete,
        keeps_quotes=False,
    )
    table = Split(task, data_dir="", name=first_split).path
    task = replace(task, text_columns=_text_columns(text_columns, table))
    has_columns = "," in task.label_column
    if separator or has_columns:
        if task_type not in (None, MULTI_LABEL):
            raise UserError(f"--task_type {task_type}, but the columns have several labels")
        task = replace(task, multi_label=True, separator=separator or "")
    elif task_type == MULTI_LABEL:
        task = replace(task, multi_label=True, separator=LIST_SEPARATOR)
    split = Split(task, data_dir="", name=first_split)
    return _with_labels(task, split, labels, labels_in_order, task_type)


def _with_labels(
    task: Task,
    split: Split,
    model_labels: Sequence[str] | None,
    labels_in_order: bool,
    task_type: str | None,
) -> Task:
    """Return the task with its labels, none for regression, and the metric that goes with them.

    split: the table that they are read from. The other arguments are those of `custom_task`.
    """
    if model_labels is None and task_type == REGRESSION:
        labels: Sequence[str] = ()
    else:
        labels = _label_names(split, model_labels, labels_in_order, task_type)
    check_characters(labels, split.path)
    if task_type and not task.multi_label and bool(labels) != (task_type == CLASSIFICATION):
        raise UserError(f"--task_type {task_type}: the model has {shown(labels) or 'scores'}")
    if len(labels) == 1 or (task.multi_label and not labels):
        only = repr(labels[0]) if labels else "none"
        raise UserError(f"{split.path}: the only label is {only}; there must be 2 or more")
    if task.multi_label:
        metric = "f1_micro"
    elif labels:
        metric = "acc"
    else:
        metric = "corr"
    return replace(task, labels=tuple(labels), metric=metric)


def _absolute_paths(files: Mapping[str, str | Path | None]) -> dict[str, str]:
    """Return the path of each split that has a file; raises UserError for none, or another kind."""
    paths = {name: str(Path(file).absolute()) for name, file in files.items() if file}
    if not paths:
        raise UserError("give at least one of --train_file, --validation_file and --test_file")
    for path in paths.values():
        check_no_pipe(Path(path))
        if kind_of(Path(path)) not in SUFFIXES:
            endings = " ".join(SUFFIXES)
            raise UserError(f"{path}: the name must end in one of: {endings} (or these with .gz)")
    return paths


def split_column_names(flag: str) -> tuple[str, ...]:
    """Return the one or two names of --text_column_names; a name with a comma stands in quotes.

    Raises UserError for another number of names, or an empty one.
    """
    (cells,) = csv.reader([flag], skipinitialspace=True)
    names = tuple(name.strip() for name in cells)
    if len(names) > 2 or not all(names):
        raise UserError(
            f"--text_column_names {flag}: give the name of one column, or A,B; a name with a comma "
            "stands in double quotes, '\"A, B\"'"
        )
    return names


def join_column_names(names: Sequence[str]) -> str:
    """Write names as --text_column_names has them."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(names)
    return text.getvalue()


def _text_columns(flag: str | None, table: Path) -> tuple[str, ...]:
    """Return the columns that --text_column_names names, or by default those that a table has."""
    if flag:
        return split_column_names(flag)
    columns, _ = read_table(table)
    if TWO_SENTENCES[1] in columns:
        return TWO_SENTENCES
    has_text_alone = "text" in columns and TWO_SENTENCES[0] not in columns
    return ("text",) if has_text_alone else TWO_SENTENCES[:1]


def _label_names(
    split: Split,
    model_labels: Sequence[str] | None,
    in_order: bool,
    task_type: str | None = None,
) -> Sequence[str]:
    """Return the names of the labels in the order of their ids; empty for regression."""
    task = split.task
    if task.multi_label and not model_labels:
        if task.separator:
            return _discover_labels(split)
        return [name.strip() for name in task.label_column.split(",")]
    if model_labels is None:
        return _discover_labels(split, task_type)
    if task.multi_label or not model_labels:
        return model_labels
    # The model has classes, so numbers are names, too.
    if split.name == "test":
        known_task = replace(task, labels=tuple(model_labels))
        file_labels = _labels_of_test_file(split._replace(task=known_task))
    else:
        file_labels = _discover_labels(split, task_type)
        if not file_labels:
            raise UserError(
                f"{split.path}: the column {task.label_column} has scores; the model's labels are "
                f"{shown(model_labels)}"
            )
    if not file_labels:
        return model_labels
    order = match_labels(
        file_labels,
        model_labels,
        wanted_by=str(split.path),
        given_by="the model",
        in_order=in_order,
        may_be_fewer=True,
    )
    # A label of the file takes the place of the model's that it matches.
    names = list(model_labels)
    for label, number in zip(file_labels, order, strict=True):
        names[number] = label
    return names


def _labels_of_test_file(split: Split) -> list[str]:
    """List the different labels of a test file, whose rows need none."""
    task = split.task
    if not task.label_column:
        return []
    cells = {row.get(task.label_column, "").strip() for _, row in split.rows(task.text_columns)}
    return sorted(cell for cell in cells if cell and not hides_label(task, cell))


def _discover_labels(split: Split, task_type: str | None = None) -> list[str]:
    """Return the sorted labels of a file; [] where they are scores: see `custom_task`.

    Raises UserError for a test file, a row without a label, and numbers that are equal or not
    finite.
    """
    task, path = split.task, split.path
    if split.name == "test":
        raise UserError(f"{path} alone does not tell the labels; give a --train_file as well")
    number_of: dict[str, float | None] = {}  # the number that a label spells, if any
    first_line: dict[str, int] = {}  # with the label
    lengths = set()  # of the rows' lists of labels
    for line, row in split.rows((*task.text_columns, task.label_column)):
        check_no_list(row[task.label_column], f"{path}, line {line}", task.label_column)
        if task.multi_label:
            names = split_labels(task, row)
            lengths.add(len(names))
        else:
            names = [row[task.label_column].strip()]
            if not names[0]:
                raise UserError(f"{path}, line {line}: no {task.label_column}; {DROP_ADVICE}")
        for name in names:
            number_of[name] = parse_number(name)
            first_line.setdefault(name, line)
    numbers = [number for number in number_of.values() if number is not None]
    are_marks = {name.lower() for name in number_of} <= MARKS
    if task.multi_label and are_marks and len(lengths) == 1 and lengths != {1}:
        raise UserError(
            f"{path}: each {task.label_column} is a list of {lengths.pop()} zeros and ones, and so "
            "no list of names. Give the names of a row's labels, or a column of 0 and 1 for each "
            "label, with --label_column_name A,B,C"
        )
    has_words = len(numbers) < len(number_of)
    if not has_words:
        for name, number in number_of.items():
            if number is not None and not math.isfinite(number):
                raise UserError(
                    f"{path}, line {first_line[name]}: {task.label_column} {name!r} is not a "
                    "finite number, as the other labels are; correct the row or take it out"
                )
        are_whole = all(number.is_integer() for number in numbers)
        if not (are_whole or task.multi_label or task_type == CLASSIFICATION):
            return []
    if len(set(numbers)) < len(numbers):  # as 1 and 1.0 are
        raise UserError(f"{path}: two of the labels {', '.join(number_of)} are the same number")
    if has_words:
        return sorted(number_of)
    return sorted(number_of, key=float)
