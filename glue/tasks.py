"""GLUE tasks: files, columns, labels, metrics and submission files.

Each GLUE task is one row of TASKS. Files are read strictly: whatever is wrong with one is a
UserError that names the file, the 1-based line and what to do.
"""

import difflib
import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from elbert_base.errors import UserError
from glue.tables import NumberedRows, read_table, require_columns

logger = logging.getLogger(__name__)

ACC_F1 = "acc_and_f1"
BINARY = ("0", "1")
RTE = ("entailment", "not_entailment")
NLI = ("contradiction", "entailment", "neutral")
ONE = ("sentence",)
TWO = ("sentence1", "sentence2")
QNLI = ("question", "sentence")
QQP = ("question1", "question2")
MRPC = ("#1 String", "#2 String")
COLA = ("source", "label", "star", "sentence")
FILES = {"train": "train.tsv", "dev": "dev.tsv", "test": "test.tsv"}
MATCHED = {"train": "train.tsv", "dev": "dev_matched.tsv", "test": "test_matched.tsv"}
MISMATCHED = {"train": "train.tsv", "dev": "dev_mismatched.tsv", "test": "test_mismatched.tsv"}
AX = {"test": "diagnostic.tsv"}


@dataclass(frozen=True)
class Task:
    """A task's files, columns, labels and metric."""

    name: str
    folder: str  # that download_glue_data.py makes; "" for the user's own task
    submission: str  # the file name that gluebenchmark.com expects
    files: Mapping[str, str] = field(default_factory=FILES.copy, hash=False)  # by split
    text_columns: tuple[str, ...] = TWO  # one or two
    label_column: str = "label"
    labels: tuple[str, ...] = BINARY  # the text of each class id, in published order; () for scores
    metric: str = "acc"  # acc, mcc, acc_and_f1; corr for scores
    headerless: tuple[str, ...] = ()  # the columns of train and dev where these have no header
    lenient: bool = False  # short rows of train are skipped
    score_range: tuple[float, float] | None = None  # submitted scores are clipped to it
    title: str = ""  # what figures call the data, where it only has the task's layout
    multi_label: bool = False  # may an example have several labels, or none?
    separator: str = ""  # of these in a cell; "": a column of 0 and 1 for each label

    @property
    def shown_name(self) -> str:
        """What figures call the data."""
        return self.title or self.name

    @property
    def is_regression(self) -> bool:
        return not self.labels

    @property
    def num_labels(self) -> int:
        return len(self.labels) or 1

    @property
    def label_columns(self) -> tuple[str, ...]:
        return self.labels if self.multi_label and not self.separator else (self.label_column,)

    @property
    def primary_metric(self) -> str:
        """The metric that curves and best checkpoints go by."""
        return "acc" if self.metric == ACC_F1 else self.metric


def about(task: Task) -> str:
    """Describe a task for a log: "rte: pairs of texts, classes entailment, not_entailment"."""
    texts = "pairs of texts" if len(task.text_columns) > 1 else "single texts"
    noun = "any of the labels" if task.multi_label else "classes"
    kind = f"{noun} {', '.join(task.labels)}" if task.labels else "scores (regression)"
    return f"{task.shown_name}: {texts}, {kind}"


# Class id, score, or 0 and 1 for each of several labels; None: of GLUE's test files not read.
Label = int | float | tuple[float, ...] | None
Row = Mapping[str | None, str]  # cells by column name


class Example(NamedTuple):
    """A text or a pair of texts, with its label."""

    index: str  # the index or id column of a test file, otherwise a running number from 0
    text_a: str
    text_b: str | None  # None when the task has single sentences
    label: Label


_MNLI = Task("mnli", "MNLI", "MNLI-m.tsv", MATCHED, TWO, "gold_label", NLI)
_GLUE = (
    Task("cola", "CoLA", "CoLA.tsv", text_columns=ONE, metric="mcc", headerless=COLA),
    Task("sst-2", "SST-2", "SST-2.tsv", text_columns=ONE),
    Task("mrpc", "MRPC", "MRPC.tsv", FILES, MRPC, "Quality", metric=ACC_F1),
    Task("sts-b", "STS-B", "STS-B.tsv", FILES, TWO, "score", (), "corr", score_range=(0, 5)),
    # Known copies of QQP's train.tsv have rows cut in two by a line break inside a question. The
    # published loader drops them without a word; here one warning counts them when the file has
    # been read to its end. A short row of any other file is an error.
    Task("qqp", "QQP", "QQP.tsv", FILES, QQP, "is_duplicate", metric=ACC_F1, lenient=True),
    _MNLI,
    replace(_MNLI, name="mnli-mm", submission="MNLI-mm.tsv", files=MISMATCHED),
    Task("qnli", "QNLI", "QNLI.tsv", text_columns=QNLI, labels=RTE),
    Task("rte", "RTE", "RTE.tsv", labels=RTE),
    Task("wnli", "WNLI", "WNLI.tsv"),
    Task("ax", "diagnostic", "AX.tsv", AX, TWO, "", NLI),
)
TASKS = {task.name: task for task in _GLUE}

# All spellings in use, without anything but letters and digits.
_NAMES = {name.replace("-", ""): name for name in TASKS} | {
    "sst": "sst-2",
    "sts": "sts-b",
    "mnlim": "mnli",
    "mnlimatched": "mnli",
    "mnlimismatched": "mnli-mm",
    "diagnostic": "ax",
}


def get_task(name: str) -> Task:
    """Find the GLUE task of a name in any usual spelling: SST-2, sst2, STSB, mnli_mm, MNLI-m."""
    key = re.sub(r"[^a-z0-9]", "", name.lower())
    if key not in _NAMES:
        near = [_NAMES[match] for match in difflib.get_close_matches(key, _NAMES, n=1)]
        guess = f"did you mean {near[0]}? " if near else ""
        raise UserError(f"unknown task {name!r}; {guess}the tasks are: {', '.join(TASKS)}")
    return TASKS[_NAMES[key]]


def evaluation_tasks(task: Task) -> list[tuple[Task, str]]:
    """Return the tasks that an evaluation runs, each with the suffix of its output directory."""
    return [(task, "")] + ([(TASKS["mnli-mm"], "-MM")] if task.name == "mnli" else [])


def prediction_tasks(task: Task, data_dir: str | Path) -> list[Task]:
    """Return the tasks that a prediction answers: all that the GLUE server wants of one model.

    MNLI adds the mismatched half, and the AX diagnostic where its file is found: in data_dir, or
    in the folder beside it that download_glue_data.py makes.
    """
    if task.name != "mnli":
        return [task]
    folder = Path(data_dir).absolute()
    candidates = [
        folder / "diagnostic.tsv",
        folder / "AX.tsv",
        folder.parent / "diagnostic/diagnostic.tsv",
    ]
    tasks = [task, TASKS["mnli-mm"]]
    for path in candidates:
        if path.is_file():
            return [*tasks, replace(TASKS["ax"], files={"test": str(path)})]
    return tasks


class Split(NamedTuple):
    """A task's file for training, validation or test."""

    task: Task
    data_dir: str | Path  # the user's own task carries its paths, and this is ignored
    name: str  # train, dev or test

    @property
    def path(self) -> Path:
        """Path of the file; raises UserError with what to do where there is none."""
        task, data_dir = self.task, Path(self.data_dir)
        if self.name not in task.files:
            raise UserError(f"{task.name} has no {self.name} file, only: {', '.join(task.files)}")
        path = data_dir / task.files[self.name]
        for candidate in (path, data_dir / task.folder / path.name):
            if candidate.exists():
                return candidate
        if not task.folder:
            raise UserError(f"{path} does not exist")
        raise UserError(
            f"no {path.name} in {self.data_dir}; fetch it with: python download_glue_data.py "
            f"--data_dir {data_dir.parent} --tasks {task.folder}"
        )

    def rows(self, needed: Sequence[str]) -> NumberedRows:
        """Yield line number and cells of each example; every row has all columns of `needed`.

        Raises UserError for whatever is wrong with the file, and when it has no examples.
        """
        path = self.path
        number = 0
        skipped = []
        columns, rows = read_table(path, () if self.name == "test" else self.task.headerless)
        require_columns(path, columns, needed)
        for line, row in rows:
            if None in row and not self.task.folder:
                raise UserError(f"{path}, line {line}: more cells than the {len(columns)} columns")
            missing = [name for name in needed if name not in row]
            if not missing:
                number += 1
                yield line, row
            elif self.task.lenient and self.name == "train":
                skipped.append(line)
            else:
                raise UserError(
                    f"{path}, line {line}: no {missing[0]!r}; the row has {len(row)} of "
                    f"{len(columns)} columns"
                )
        if skipped:
            count, first = len(skipped), skipped[0]
            logger.warning("%s: skipped %d short rows, the first at line %d", path, count, first)
        if not number:
            raise UserError(f"{path} has no examples")

    def examples(self, limit: int | None = None) -> Iterator[Example]:
        """Yield the examples in the file's order; only the first `limit` where given.

        Raises UserError for whatever is wrong with the file, and when it has no examples.
        """
        task, path = self.task, self.path
        is_test = self.name == "test"
        needed = task.text_columns if is_test else task.text_columns + task.label_columns
        empty = []  # lines of the user's own file
        for number, (line, row) in enumerate(islice(self.rows(needed), limit)):
            texts = [row[name] for name in task.text_columns]
            if not task.folder and not all(text.strip() for text in texts):
                empty.append(line)
            index = str(number)
            if is_test:
                index = row.get("index", row.get("id", index))
            yield Example(
                index=index,
                text_a=texts[0],
                text_b=texts[1] if len(texts) > 1 else None,
                label=self.label(row, f"{path}, line {line}"),
            )
        if empty:
            logger.warning(
                "%s: %d examples have an empty text, first at line %d", path, len(empty), empty[0]
            )

    def label(self, row: Row, place: str) -> Label:
        """Read a row's label; place: its file and line, for an error.

        Of a test file it may be missing: of GLUE's own it is then None.
        """
        task = self.task
        if self.name != "test":
            if task.multi_label:
                return _several_labels(task, row, place)
            return _label(task, row[task.label_column], place)
        if task.multi_label:
            has_labels = all(row.get(name, "").strip() for name in task.label_columns)
            return _several_labels(task, row, place) if has_labels else None
        text = row.get(task.label_column, "").strip()
        if task.is_regression and not task.folder:
            return parse_number(text)
        if task.folder or text not in task.labels:
            return None
        return task.labels.index(text)


def read_examples(
    task: Task, data_dir: str | Path, split: str, limit: int | None = None
) -> list[Example]:
    """Read the split "train", "dev" or "test"; see `Split.examples`."""
    return list(Split(task, data_dir, split).examples(limit))


def _label(task: Task, text: str, place: str) -> int | float:
    """Read a class id or a score from a cell."""
    text = text.strip()
    if not task.is_regression:
        if text not in task.labels:
            allowed = ", ".join(task.labels[:20]) + (", …" if task.labels[20:] else "")
            raise UserError(f"{place}: label {text[:80]!r} is not one of: {allowed}")
        return task.labels.index(text)
    score = parse_number(text)
    if score is None or not math.isfinite(score):
        raise UserError(f"{place}: {task.label_column} {text[:80]!r} is not a finite number")
    return score


def _several_labels(task: Task, row: Row, place: str) -> tuple[float, ...]:
    """Return 1 for each of the task's labels that a row has, else 0."""
    if task.separator:
        present = {_label(task, name, place) for name in split_labels(task, row)}
        return tuple(float(number in present) for number in range(len(task.labels)))
    marks = []
    for name in task.labels:
        text = row[name].strip().lower()
        mark = {"true": 1.0, "false": 0.0}.get(text, parse_number(text))
        if mark not in (0, 1):
            raise UserError(f"{place}: {name} {text[:80]!r} is neither 0 nor 1")
        marks.append(float(mark))
    return tuple(marks)


def split_labels(task: Task, row: Row) -> list[str]:
    """List the labels in a row's cell."""
    return [name for name in map(str.strip, row[task.label_column].split(task.separator)) if name]


def parse_number(text: str) -> float | None:
    """Return the number that a text spells, if any."""
    try:
        return float(text)
    except ValueError:
        return None


# Files of predictions, as gluebenchmark.com takes them.


def label_text(task: Task, prediction: Any) -> str:
    """Spell a prediction as it stands in a file.

    prediction: a class id, which is spelled as its label; 0 and 1 for each of several labels, of
    which those that are 1 are listed; or a score, with 3 decimals (STS-B, in 0…5) or 6 digits.
    """
    if task.multi_label:
        marked = zip(task.labels, prediction, strict=True)
        names = [" ".join(name.split()) for name, is_there in marked if is_there]
        return (task.separator or ",").join(names)
    if not math.isfinite(prediction):
        raise UserError(f"{task.name}: the predicted score is {prediction}")
    if not task.is_regression:
        # Only CSV and JSON can carry a tab or line break here.
        return " ".join(task.labels[int(prediction)].split())
    if task.score_range is None:
        return f"{prediction:.6g}"
    low, high = task.score_range
    clipped = min(max(prediction, low), high)
    return f"{clipped + 0.0:.3f}"  # + 0.0 turns -0.0 into 0.0


def submission(task: Task, examples: Sequence[Example], predictions: Iterable[Any]) -> str:
    """Format the task's official file, of index and prediction."""
    lines = ["index\tprediction"]
    for example, prediction in zip(examples, predictions, strict=True):
        index = " ".join(example.index.split())
        lines.append(f"{index}\t{label_text(task, prediction)}")
    return "\n".join(lines) + "\n"
