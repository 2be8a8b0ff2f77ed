"""Progress and messages of a script: live bars in a terminal; messages above them, each warning
once."""

import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tqdm import tqdm

logger = logging.getLogger(__name__)


def progress(**options: Any) -> tqdm:
    """Make a tqdm with these arguments, which a terminal alone shows."""
    defaults: dict[str, Any] = {"disable": None, "leave": False, "dynamic_ncols": True}
    return tqdm(**{**defaults, **options})


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
