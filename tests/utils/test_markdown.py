"""Markdown tables against one that is written out."""

from utils.console import markdown_table


def test_a_table():
    rows = [["first", 1, ""], ["second", 2.5, "–"]]
    assert markdown_table(["", "a", "b"], rows).splitlines() == [
        "| | a | b |",
        "|---|---|---|",
        "| first | 1 | |",
        "| second | 2.5 | – |",
    ]
