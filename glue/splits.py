"""The examples of a task's train, dev or test file.

Files are read strictly: whatever is wrong with one is a UserError that names the file, the 1-based
line and what to do.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from glue.tables import NumberedRows, Row, read_table, require_columns
from glue.tasks import Task
from modeling.errors import UserError
from modeling.labels import shown

logger = logging.getLogger(__name__)

DROP_ADVICE = "--drop_incomplete_rows leaves such rows out"

# Class id; score; or 0 and 1 for each of several labels. None: GLUE's test files have no labels.
Label = int | float | tuple[float, ...] | None


class Example(NamedTuple):
    """A text or a pair of texts, with its label.

    Attributes:
        index: the index or id column of a test file, otherwise a running number from 0.
        text_a: the text, or the first of a pair.
        text_b: the second of a pair; None where the task has single texts.
        label: None where the file has none.
    """

    index: str
    text_a: str
    text_b: str | None
    label: Label


class Split(NamedTuple):
    """A task's file for training, validation or test.

    Attributes:
        task: the task.
        data_dir: the folder of its files. The user's own task has their paths and needs no folder.
        name: train, dev or test.
    """

    task: Task
    data_dir: str | Path
    name: str

    @property
    def path(self) -> Path:
        """Path of the file; raises UserError, with what to do, where there is none."""
        task = self.task
        data_dir = Path(self.data_dir)
        if self.name not in task.files:
            raise UserError(f"{task.name} has no {self.name} file, only: {', '.join(task.files)}")
        path = data_dir / task.files[self.name]
        # GLUE's folder for this task, or the folder of all tasks.
        for candidate in (path, data_dir / task.folder / path.name):
            if candidate.exists():
                return candidate
        if not task.folder:
            raise UserError(f"{path} does not exist")
        raise UserError(
            f"no {path.name} in {self.data_dir}; fetch it with: python download_glue_data.py "
            f"--data_dir {data_dir.parent} --tasks {task.folder}"
        )

    @property
    def drops_incomplete(self) -> bool:
        """Whether rows without a text or a label are left out; each row of a test file counts."""
        return self.task.drop_incomplete and self.name != "test"

    def rows(self, columns: Sequence[str]) -> NumberedRows:
        """Yield the line number and the cells of each example; every row has all of `columns`.

        Raises UserError for whatever is wrong with the file, and when it has no examples.
        """
        task, path = self.task, self.path
        headerless = () if self.name == "test" else task.headerless
        lists = {name: task.separator for name in task.label_columns if name}
        file_columns, rows = read_table(path, headerless, task.keeps_quotes, lists)
        require_columns(path, file_columns, columns)
        may_skip = (task.lenient and self.name == "train") or self.drops_incomplete
        count = 0
        skipped_lines = []
        for line, row in rows:
            has_extra_cells = None in row
            if has_extra_cells and not task.folder:
                raise UserError(
                    f"{path}, line {line}: more cells than the {len(file_columns)} columns"
                )
            missing = [name for name in columns if name not in row]
            if self.drops_incomplete:
                # Where a cell has several labels, none is a label, too.
                may_be_empty = (task.label_column,) if task.separator else ()
                is_blank = {name for name in columns if not row.get(name, "").strip()}
                missing += sorted(is_blank.difference(may_be_empty, missing))
            if not missing:
                count += 1
                yield line, row
            elif may_skip:
                skipped_lines.append(line)
            else:
                advice = "" if task.folder else f"; {DROP_ADVICE}"
                raise UserError(
                    f"{path}, line {line}: no {missing[0]!r}; the row has {len(row)} of "
                    f"{len(file_columns)} columns with a text or a number{advice}"
                )
        if skipped_lines:
            logger.warning(
                "%s: skipped %d %s rows, the first at line %d",
                path,
                len(skipped_lines),
                "incomplete" if self.drops_incomplete else "short",
                skipped_lines[0],
            )
        if count == 0:
            raise UserError(f"{path} has no examples")

    def examples(self, limit: int | None = None) -> Iterator[Example]:
        """Yield the examples in the file's order; at most `limit`, where it is given.

        Raises UserError for whatever is wrong with the file, and when it has no examples.
        """
        task, path = self.task, self.path
        is_test = self.name == "test"
        columns = task.text_columns
        if not is_test:
            columns += task.label_columns
        empty_lines = []
        unlabelled_lines = []
        count = 0
        spellings: dict[Label, str] = {}
        for number, (line, row) in enumerate(islice(self.rows(columns), limit)):
            texts = [row[name] for name in task.text_columns]
            # Published files are as they are; in the user's own, an empty text may be a mistake.
            if not task.folder and not all(text.strip() for text in texts):
                empty_lines.append(line)
            index = str(number)
            if is_test:
                index = row.get("index", row.get("id", index))
            place = f"{path}, line {line}"
            label = self.label(row, place)
            count += 1
            if label is None:
                unlabelled_lines.append(line)
            has_classes = bool(task.labels) and not task.multi_label
            if has_classes and not is_test:
                text = row[task.label_column].strip()
                other = spellings.setdefault(label, text)
                if text != other:
                    raise UserError(
                        f"{place}: labels {text!r} and {other!r}, above, both match one of "
                        f"{shown(task.labels)}: write each in one way"
                    )
            yield Example(
                index=index,
                text_a=texts[0],
                text_b=texts[1] if len(texts) > 1 else None,
                label=label,
            )
        if empty_lines:
            logger.warning(
                "%s: %d examples have an empty text, first at line %d",
                path,
                len(empty_lines),
                empty_lines[0],
            )
        if 0 < len(unlabelled_lines) < count:
            logger.warning(
                "%s: %d of %d examples have no label, first at line %d",
                path,
                len(unlabelled_lines),
                count,
                unlabelled_lines[0],
            )

    def cells(self, column: str, limit: int | None = None) -> list[str]:
        """Return the cell of each example in any column; at most `limit`, where it is given.

        Raises UserError for a column that the file does not have.
        """
        columns = (*self.task.text_columns, *self.task.label_columns)
        cells = []
        for _, row in islice(self.rows(columns), limit):
            if column not in row:
                names = ", ".join(str(name) for name in row)
                raise UserError(f"{self.path}: no column {column!r}; the columns are: {names}")
            cells.append(row[column].strip() or "(empty)")
        return cells

    def label(self, row: Row, place: str) -> Label:
        """Read the label of a row; None where a test file has none.

        place: the row's file and line, for an error.
        """
        if self.name == "test":
            return _test_label(self.task, row, place)
        if self.task.multi_label:
            return _several_labels(self.task, row, place)
        return _class_or_score(self.task, row[self.task.label_column], place)


def read_examples(
    task: Task, data_dir: str | Path, split: str, limit: int | None = None
) -> list[Example]:
    """Read the split "train", "dev" or "test"; see `Split.examples`."""
    return list(Split(task, data_dir, split).examples(limit))


# Labels.


def _class_or_score(task: Task, text: str, place: str) -> int | float:
    """Read a class id or a score from a cell; raises UserError for anything else."""
    text = text.strip()
    if task.is_regression:
        score = parse_number(text)
        if score is None or not math.isfinite(score):
            raise UserError(f"{place}: {task.label_column} {text[:80]!r} is not a finite number")
        return score
    number = task.label_number(text)
    if number is None:
        raise UserError(f"{place}: label {text[:80]!r} is not one of: {shown(task.labels)}")
    return number


def _several_labels(task: Task, row: Row, place: str) -> tuple[float, ...]:
    """Return 1 for each of the task's labels that a row has, else 0.

    Raises UserError for a label that the task does not have, or a cell that is neither 0 nor 1.
    """
    if task.separator:
        present = {_class_or_score(task, name, place) for name in split_labels(task, row)}
        return tuple(float(number in present) for number in range(len(task.labels)))
    words = {"true": 1.0, "false": 0.0}
    marks = []
    for name in task.labels:
        text = row.get(name, "").strip().lower()  # a test file may lack the column
        mark = words.get(text, parse_number(text))
        if mark not in (0, 1):
            raise UserError(f"{place}: {name} {text[:80]!r} is neither 0 nor 1")
        marks.append(float(mark))
    return tuple(marks)


def _test_label(task: Task, row: Row, place: str) -> Label:
    """Read the label of a test file's row; None where there is none.

    Only the user's own test files have labels: GLUE's are not published. Raises UserError for a
    label that the task does not have.
    """
    cells = [row.get(name, "").strip() for name in task.label_columns]
    if task.folder or not task.label_column or not any(cells):
        return None
    if task.multi_label:
        return _several_labels(task, row, place)
    if hides_label(task, cells[0]):
        return None
    try:
        return _class_or_score(task, cells[0], place)
    except UserError as error:
        raise UserError(f"{error}; in a test file, the cell may be empty") from error


def hides_label(task: Task, cell: str) -> bool:
    """Tell whether a cell is -1, by which the hub's data sets hide the class of a test row."""
    return bool(task.labels) and parse_number(cell) == -1 and task.label_number(cell) is None


def split_labels(task: Task, row: Row) -> list[str]:
    """List the labels in a row's cell, of a task with a separator."""
    names = [name.strip() for name in row[task.label_column].split(task.separator)]
    return [name for name in names if name]


def check_no_list(cell: str, place: str, column: str) -> None:
    """Raise UserError for a label that is a list written as text, as pandas writes it into CSV.

    place: file and line, for the error.
    """
    text = cell.strip()
    if not (text.startswith("[") and text.endswith("]")):
        return
    inner = text[1:-1].replace(",", " ").split()
    are_quoted = all(word[:1] in "\"'" or word[-1:] in "\"'" for word in inner)
    are_numbers = all(parse_number(word) is not None for word in inner)
    if are_quoted or are_numbers:
        raise UserError(
            f"{place}: {column} {text[:80]!r} is a list that was written as text. Save the table "
            "as JSON lines or Parquet, for --task_type multi_label, or write the names with a "
            "separator between them, for --label_separator"
        )


def parse_number(text: str) -> float | None:
    """Return the number that a text spells; None where it spells none."""
    try:
        return float(text)
    except ValueError:
        return None
