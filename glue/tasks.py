"""GLUE's tasks: the files, columns, labels and metric of each. Each is one row of TASKS."""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from modeling.errors import UserError
from modeling.labels import BINARY, ENTAILMENT, NLI, without_case

ACC_F1 = "acc_and_f1"
SENTENCE = ("sentence",)
TWO_SENTENCES = ("sentence1", "sentence2")
FILES = {"train": "train.tsv", "dev": "dev.tsv", "test": "test.tsv"}


@dataclass(frozen=True)
class Task:
    """A task's files, columns, labels and metric.

    Attributes:
        name: as flags, results and messages have it.
        folder: that download_glue_data.py makes; "" for the user's own task.
        submission: the file name that gluebenchmark.com expects.
        files: the file of each split: train, dev and test.
        text_columns: the columns of a text, or of a pair of texts.
        label_column: the column of the label; "" where no labels are read.
        labels: the text of each class id, in published order; () where labels are scores.
        metric: acc, mcc, acc_and_f1 or f1_micro; corr for scores. A key of `metrics.METRICS`.
        headerless: the columns of train and dev where these files have no header.
        lenient: whether short rows of train are skipped. Elsewhere they are errors.
        score_range: submitted scores are clipped to it.
        title: what figures call the data, where these only have the task's layout.
        multi_label: whether an example may have several labels, or none.
        drop_incomplete: whether rows of train and dev without a text or a label are left out.
        scorer: what curves and choices go by in place of `metric`, by name; see
            `metrics.with_scorer`.
        positive: id of the class that F1, precision and recall of one class are of.
        meanings: what the hub's GLUE calls the labels, where the files have numbers.
        separator: between the labels in a cell, where there are several; "" where each label has a
            column of 0 and 1.
        keeps_quotes: whether quotes in a TSV are part of the text, as in GLUE's files.
    """

    name: str
    folder: str
    submission: str
    files: Mapping[str, str] = field(default_factory=FILES.copy, hash=False)
    text_columns: tuple[str, ...] = TWO_SENTENCES
    label_column: str = "label"
    labels: tuple[str, ...] = BINARY
    metric: str = "acc"
    headerless: tuple[str, ...] = ()
    lenient: bool = False
    score_range: tuple[float, float] | None = None
    title: str = ""
    multi_label: bool = False
    separator: str = ""
    meanings: tuple[str, ...] = ()
    drop_incomplete: bool = False
    scorer: str = ""
    positive: int = 1
    keeps_quotes: bool = True

    @property
    def shown_name(self) -> str:
        """Name of the data in figures and reports."""
        return self.title or self.name

    @property
    def is_regression(self) -> bool:
        """Whether labels are scores."""
        return not self.labels

    @property
    def num_labels(self) -> int:
        """Number of a model's outputs: one for each label, or one for a score."""
        return len(self.labels) or 1

    @property
    def label_columns(self) -> tuple[str, ...]:
        """Columns of the label: one, or one for each of several labels."""
        if self.multi_label and not self.separator:
            return self.labels
        return (self.label_column,)

    def label_number(self, text: str) -> int | None:
        """Return the number of a label: of its name or, in the user's own task, without case.

        None where no label, or more than one, matches.
        """
        if text in self.labels:
            return self.labels.index(text)
        if self.folder:
            return None
        loose_name = without_case(text)
        numbers = [n for n, label in enumerate(self.labels) if without_case(label) == loose_name]
        return numbers[0] if len(numbers) == 1 else None

    def in_own_words(self, names: Sequence[str]) -> list[str]:
        """Return a model's names of the classes as the task's, where it knows what they mean.

        "negative" is 0 in SST-2. Names of which the task does not know all stay as they are.
        """
        by_meaning = {
            without_case(meaning): label
            for meaning, label in zip(self.meanings, self.labels, strict=False)
        }
        labels = [by_meaning.get(without_case(name)) for name in names]
        return [label for label in labels if label is not None] if all(labels) else list(names)

    @property
    def primary_metric(self) -> str:
        """Name of the metric that curves, thresholds and best checkpoints go by."""
        return self.scorer or self.usual_metric

    @property
    def usual_metric(self) -> str:
        """Name of the task's own main metric."""
        return "acc" if self.metric == ACC_F1 else self.metric


def describe_task(task: Task) -> str:
    """Describe a task for a log: "rte: pairs of texts, classes entailment, not_entailment"."""
    texts = "pairs of texts" if len(task.text_columns) > 1 else "single texts"
    labels = ", ".join(task.labels)
    if task.is_regression:
        return f"{task.shown_name}: {texts}, scores (regression)"
    if task.multi_label:
        return f"{task.shown_name}: {texts}, any of the labels {labels}"
    return f"{task.shown_name}: {texts}, classes {labels}"


_MNLI = Task(
    name="mnli",
    folder="MNLI",
    submission="MNLI-m.tsv",
    files={"train": "train.tsv", "dev": "dev_matched.tsv", "test": "test_matched.tsv"},
    label_column="gold_label",
    labels=NLI,
)
_GLUE = (
    Task(
        name="cola",
        folder="CoLA",
        submission="CoLA.tsv",
        text_columns=SENTENCE,
        metric="mcc",
        meanings=("unacceptable", "acceptable"),
        headerless=("source", "label", "star", "sentence"),
    ),
    Task(
        name="sst-2",
        folder="SST-2",
        submission="SST-2.tsv",
        text_columns=SENTENCE,
        meanings=("negative", "positive"),
    ),
    Task(
        name="mrpc",
        folder="MRPC",
        submission="MRPC.tsv",
        text_columns=("#1 String", "#2 String"),
        label_column="Quality",
        metric=ACC_F1,
        meanings=("not_equivalent", "equivalent"),
    ),
    Task(
        name="sts-b",
        folder="STS-B",
        submission="STS-B.tsv",
        label_column="score",
        labels=(),
        metric="corr",
        score_range=(0, 5),
    ),
    # Known copies of QQP's train.tsv have rows cut in two by a line break inside a question. The
    # published loader drops them without a word; here one warning counts them when the file has
    # been read to its end. A short row of any other file is an error.
    Task(
        name="qqp",
        folder="QQP",
        submission="QQP.tsv",
        text_columns=("question1", "question2"),
        label_column="is_duplicate",
        metric=ACC_F1,
        meanings=("not_duplicate", "duplicate"),
        lenient=True,
    ),
    _MNLI,
    replace(
        _MNLI,
        name="mnli-mm",
        submission="MNLI-mm.tsv",
        files={"train": "train.tsv", "dev": "dev_mismatched.tsv", "test": "test_mismatched.tsv"},
    ),
    Task(
        name="qnli",
        folder="QNLI",
        submission="QNLI.tsv",
        text_columns=("question", "sentence"),
        labels=ENTAILMENT,
    ),
    Task(name="rte", folder="RTE", submission="RTE.tsv", labels=ENTAILMENT),
    Task(
        name="wnli",
        folder="WNLI",
        submission="WNLI.tsv",
        meanings=("not_entailment", "entailment"),
    ),
    Task(
        name="ax",
        folder="diagnostic",
        submission="AX.tsv",
        files={"test": "diagnostic.tsv"},
        label_column="",  # its answers are not published
        labels=NLI,
    ),
)
TASKS = {task.name: task for task in _GLUE}

# All spellings in use, in lower case, without anything but letters and digits.
_SPELLINGS = {name.replace("-", ""): name for name in TASKS} | {
    "sst": "sst-2",
    "sts": "sts-b",
    "mnlim": "mnli",
    "mnlimatched": "mnli",
    "mnlimismatched": "mnli-mm",
    "diagnostic": "ax",
}


def get_task(name: str) -> Task:
    """Find the GLUE task of a name in any usual spelling: SST-2, sst2, STSB, mnli_mm, MNLI-m.

    Raises UserError, with the nearest name, for any other.
    """
    spelling = re.sub(r"[^a-z0-9]", "", name.lower())
    if spelling in _SPELLINGS:
        return TASKS[_SPELLINGS[spelling]]
    nearest = difflib.get_close_matches(spelling, _SPELLINGS, n=1)
    guess = f"did you mean {_SPELLINGS[nearest[0]]}? " if nearest else ""
    raise UserError(f"unknown task {name!r}; {guess}the tasks are: {', '.join(TASKS)}")


def evaluation_tasks(task: Task) -> list[tuple[Task, str]]:
    """Return the tasks that an evaluation runs, each with the suffix of its output directory.

    MNLI adds the mismatched half.
    """
    if task.name == "mnli":
        return [(task, ""), (replace(TASKS["mnli-mm"], scorer=task.scorer), "-MM")]
    return [(task, "")]


def prediction_tasks(task: Task, data_dir: str | Path) -> list[Task]:
    """Return the tasks that a prediction answers: all that the GLUE server wants of one model.

    MNLI adds the mismatched half, and the AX diagnostic where its file is found: in data_dir, or
    in the folder beside it that download_glue_data.py makes.
    """
    if task.name != "mnli":
        return [task]
    folder = Path(data_dir).absolute()
    diagnostic_paths = [
        folder / "diagnostic.tsv",
        folder / "AX.tsv",
        folder.parent / "diagnostic/diagnostic.tsv",
    ]
    tasks = [task, TASKS["mnli-mm"]]
    for path in diagnostic_paths:
        if path.is_file():
            tasks.append(replace(TASKS["ax"], files={"test": str(path)}))
            break
    return tasks
