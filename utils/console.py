"""Progress and messages of a script: one live bar in a terminal, a line now and then in a log file;
messages above the bar, each warning once."""

import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from typing import Any

from tqdm import tqdm

logger = logging.getLogger(__name__)

SECONDS = 30.0  # between two lines of a log file
LINE = "{desc}: {n_fmt} of {total_fmt} {unit}s, {elapsed} elapsed, {remaining} left{postfix}"


class LogBar(tqdm):
    """A progress bar whose states are lines of the log."""

    def __init__(self, **options: Any) -> None:
        # miniters: else tqdm's monitor adds lines of its own, one step before the next.
        pace = {"mininterval": SECONDS, "miniters": 1, "delay": SECONDS}
        super().__init__(**options, **pace, file=StringIO(), bar_format=LINE)

    def display(self, *_: Any, **__: Any) -> None:
        logger.info("%s", self)


def progress(**options: Any) -> tqdm:
    """Make a tqdm with these arguments; a loop within another's bar shows none of its own."""
    options["disable"] = options.get("disable", False) or bool(getattr(tqdm, "_instances", ()))
    if sys.stderr.isatty():
        return tqdm(**options, leave=False, dynamic_ncols=True)
    return LogBar(**options)


class StdoutHandler(logging.StreamHandler):
    """Messages to stdout, above a live bar; the same warning only once."""

    def __init__(self) -> None:
        super().__init__(sys.stdout)
        self.said: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            if (text := record.getMessage()) in self.said:
                return
            self.said.add(text)
        with tqdm.external_write_mode(self.stream):
            super().emit(record)


def log_facts(title: str, facts: Mapping[str, object]) -> None:
    """Log a title between stars, and facts by name, as HF's scripts do before a run."""
    logger.info("***** %s *****", title)
    for name, value in facts.items():
        logger.info("  %s = %s", name, value)


def markdown_table(columns: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """Format a Markdown table with the titles of its columns; no newline at the end."""
    head, *body = ("".join(f" {cell}".rstrip() + " |" for cell in row) for row in (columns, *rows))
    return "\n".join(f"|{line}" for line in (head, "---|" * len(columns), *body))
