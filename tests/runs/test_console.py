"""Bars and messages, in a terminal and in a log file; tables in Markdown."""

import logging
import sys

import pytest

from runs.console import StdoutHandler, counted, markdown_table, progress


@pytest.mark.parametrize("terminal", [False, True])
def test_only_a_terminal_has_a_bar_and_none_that_is_done(terminal, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    with progress(total=3, desc="Training") as bar:
        bar.update()
    shown = capsys.readouterr().err
    assert ("Training" in shown, shown.endswith("\r")) == (terminal, terminal)


def test_a_warning_is_said_once_and_other_messages_each_time(capsys):
    log = logging.Logger("said", logging.INFO)
    log.addHandler(StdoutHandler())
    for _ in range(2):
        log.warning("no %s", "overrides")
        log.info("a step")
    log.warning("another")
    assert capsys.readouterr().out.splitlines() == ["no overrides", "a step", "a step", "another"]


def test_one_thing_is_not_told_as_several():
    assert [counted(number, "row") for number in (0, 1, 2)] == ["0 rows", "1 row", "2 rows"]


def test_a_markdown_table():
    rows = [["first", 1, ""], ["second", 2.5, "–"]]
    assert markdown_table(["", "a", "b"], rows).splitlines() == [
        "| | a | b |",
        "|---|---|---|",
        "| first | 1 | |",
        "| second | 2.5 | – |",
    ]
