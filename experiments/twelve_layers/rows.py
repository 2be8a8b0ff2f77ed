"""Which rows train, choose and report: decided once, by a fixed random seed.

SST-2's training rows are phrases of sentences. Whole sentences are held out, and with them every
row that is a phrase of one of them, so that nothing of a reporting sentence was trained on. The
table of an evaluation has the rows that choose first, then those that report, then GLUE's own dev
rows. SST-2-8k trains on 8,000 rows, so that more sentences can report; the first ones are SST-2's.
The other tasks choose on rows of their own training set and report on GLUE's dev rows; SICK chooses
on its 500 trial pairs and reports on its 4,927 test pairs.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from modeling.errors import UserError
from runs.files import write_text

SEED = 65
SST2_LAST_ROW = 64000  # of the training file, counted from 1
SHORT_ROWS = 8000
CHOOSING_SHARE = 0.2  # of the training rows of the small tasks

# Task, and its folder in GLUE_DIR.
FOLDERS = {
    "SST-2": "SST-2",
    "SST-2-8k": "SST-2",
    "SICK": "MNLI-from-SICK",
    "CoLA": "CoLA",
    "RTE": "RTE",
    "MRPC": "MRPC",
    "STS-B": "STS-B",
}


@dataclass(frozen=True)
class Rows:
    """How many rows of an evaluation's table choose, and how many report; GLUE's dev rows follow.

    Attributes:
        choosing: the first ones: thresholds and recipes are chosen on them.
        reporting: the next ones.
        dev: the last ones, GLUE's dev rows where others report.
    """

    choosing: int
    reporting: int
    dev: int = 0

    @property
    def count(self) -> int:
        """The number of all rows."""
        return self.choosing + self.reporting + self.dev

    @property
    def slices(self) -> dict[str, slice]:
        """The rows of each part."""
        report_end = self.choosing + self.reporting
        return {
            "choosing": slice(0, self.choosing),
            "reporting": slice(self.choosing, report_end),
            "dev": slice(report_end, report_end + self.dev),
        }


ROWS = {
    "SST-2": Rows(1000, 2000, dev=872),
    "SST-2-8k": Rows(1000, 4500, dev=872),
    "SICK": Rows(500, 4927),
    "CoLA": Rows(1710, 1043),
    "RTE": Rows(498, 277),
    "MRPC": Rows(733, 408),
    "STS-B": Rows(1149, 1500),
}


def write_tables(glue_dir: Path, data: Path) -> None:
    """Write train.tsv and dev.tsv of every task that `glue_dir` has, in GLUE's layout.

    data: a folder for each task. What is there already stays.
    """
    for task, folder in FOLDERS.items():
        if (glue_dir / folder).is_dir() and not (data / task / "dev.tsv").exists():
            write_task(task, glue_dir / folder, data / task)


def write_task(task: str, source: Path, target: Path) -> None:
    """Write the two tables of one task, with the header that its files have."""
    train = lines_of(source / "train.tsv")
    header = [] if task == "CoLA" else [train.pop(0)]
    if task == "SICK":
        choosing = lines_of(source / "dev_matched.tsv")[1:]
        others = lines_of(source / "dev_mismatched.tsv")[1:]
        dev_header = lines_of(source / "dev_matched.tsv")[:1]
    else:
        others = lines_of(source / "dev.tsv")[len(header) :]
        dev_header = header
        if task.startswith("SST-2"):
            train, choosing = split_sst2(train, ROWS[task])
            train = train[: SHORT_ROWS if task == "SST-2-8k" else None]
        else:
            count = ROWS[task].choosing
            train, choosing = train[:-count], train[-count:]
    evaluated = [*choosing, *others]
    if len(evaluated) != ROWS[task].count:
        raise UserError(
            f"{source}: its rows make {len(evaluated)} rows of an evaluation; {ROWS[task].count} "
            f"are those of {task}: download it again, with download_glue_data.py"
        )
    write_text(target / "train.tsv", as_table(header + train))
    write_text(target / "dev.tsv", as_table(dev_header + evaluated))


def split_sst2(rows: list[str], counts: Rows) -> tuple[list[str], list[str]]:
    """Split SST-2's training rows into those that train, and held-out whole sentences.

    The held-out ones are those that choose, then those that report. A row that is a phrase of one
    of them, or of GLUE's rows behind SST2_LAST_ROW, is in neither.
    """
    text_of = {row: row.rsplit("\t", 1)[0].strip() for row in rows}
    phrases = set(text_of.values())
    parts: set[str] = set()  # proper parts of another row
    for text in phrases:
        parts |= (phrases_of(text) - {text}) & phrases
    sentences = {text_of[row]: row for row in rows if text_of[row] not in parts}
    held_out = random.Random(SEED).sample(sorted(sentences), counts.choosing + counts.reporting)
    excluded: set[str] = set()
    for text in held_out:
        excluded |= phrases_of(text)
    train = [row for row in rows[:SST2_LAST_ROW] if text_of[row] not in excluded]
    return train, [sentences[text] for text in held_out]


def phrases_of(text: str) -> set[str]:
    """Return all runs of a text's words, the text itself among them."""
    words = text.split()
    spans = (words[i:j] for i in range(len(words)) for j in range(i + 1, len(words) + 1))
    return {" ".join(span) for span in spans}


def lines_of(path: Path) -> list[str]:
    """Read a table's lines."""
    return path.read_text(encoding="utf-8").rstrip("\n").split("\n")


def as_table(lines: Iterable[str]) -> str:
    """Join lines to a file's content."""
    return "\n".join(lines) + "\n"
