"""Tables as text."""

from collections.abc import Iterable, Sequence


def markdown_table(columns: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """Format a Markdown table with the titles of its columns; no newline at the end."""
    head, *body = ("".join(f" {cell}".rstrip() + " |" for cell in row) for row in (columns, *rows))
    return "\n".join(f"|{line}" for line in (head, "---|" * len(columns), *body))
