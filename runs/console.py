"""Progress bars in a terminal, messages in a log, and tables in Markdown. Loads no torch."""

import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tqdm import tqdm

from runs.processes import printable

logger = logging.getLogger(__name__)


def progress(**tqdm_arguments: Any) -> tqdm:
    """Make a progress bar that is shown in a terminal alone, and removed when it is done.

        with progress(total=steps, desc="Training") as bar:
            bar.update()

    tqdm_arguments: as tqdm has them.
    """
    defaults: dict[str, Any] = {
        "disable": None,  # where there is no terminal
        "leave": False,
        "dynamic_ncols": True,
    }
    return tqdm(**{**defaults, **tqdm_arguments})


class StdoutHandler(logging.StreamHandler):
    """A handler that logs to stdout, above a live progress bar, and each warning only once."""

    def __init__(self) -> None:
        super().__init__(sys.stdout)
        self.warnings: set[str] = set()  # the texts that have been logged

    def emit(self, record: logging.LogRecord) -> None:
        """Log a message, unless it is a warning that has been logged before."""
        if record.levelno >= logging.WARNING:
            text = record.getMessage()
            if text in self.warnings:
                return
            self.warnings.add(text)
        with tqdm.external_write_mode(self.stream):
            super().emit(record)


def counted(number: int, noun: str) -> str:
    """Write a number of things: "1 row", "2 rows"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def say(message: str) -> None:
    """Print a message to stderr, above a progress bar: answers may go to stdout."""
    with tqdm.external_write_mode(sys.stderr):
        print(printable(message), file=sys.stderr, flush=True)


def log_facts(title: str, facts: Mapping[str, object]) -> None:
    """Log a title between stars, and facts by name, as HF's scripts do before a run."""
    logger.info("***** %s *****", title)
    for name, value in facts.items():
        logger.info("  %s = %s", name, value)


def markdown_table(columns: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """Format a Markdown table, without a newline at its end.

    columns: their titles.
    """
    lines = [table_line(columns), "|" + "---|" * len(columns)]
    lines += [table_line(row) for row in rows]
    return "\n".join(lines)


def table_line(cells: Sequence[object]) -> str:
    """Format a row of a Markdown table; an empty cell is a space."""
    return "|" + "".join(f" {cell}".rstrip() + " |" for cell in cells)
