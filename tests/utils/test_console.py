"""Bars and messages, in a terminal and in a log file; tables in Markdown."""

import logging
import sys

from utils import console
from utils.console import StdoutHandler, markdown_table, progress


def test_a_log_file_gets_lines_and_no_bar(capsys, caplog, monkeypatch):
    monkeypatch.setattr(console, "SECONDS", 0.0)
    with caplog.at_level(logging.INFO), progress(total=3, desc="Evaluating", unit="text") as bar:
        for _ in range(3):
            bar.set_postfix({"loss": "0.5"}, refresh=False)
            bar.update()
    assert "Evaluating: 3 of 3 texts, 00:00 elapsed, 00:00 left, loss=0.5" in caplog.messages
    monkeypatch.undo()
    caplog.clear()
    with caplog.at_level(logging.INFO), progress(total=3, desc="Evaluating", unit="text") as bar:
        bar.update(3)
    assert not caplog.messages  # a short run has no line at all
    assert capsys.readouterr() == ("", "")


def test_a_terminal_has_one_bar_which_goes_when_it_is_done(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with progress(total=3, desc="Training") as outer:
        outer.update()
        with progress(total=3, desc="Evaluating") as inner:
            inner.update()
    shown = capsys.readouterr().err
    assert "Training" in shown
    assert "Evaluating" not in shown
    assert shown.endswith("\r")


def test_a_warning_is_said_once_and_other_messages_each_time(capsys):
    log = logging.Logger("said", logging.INFO)
    log.addHandler(StdoutHandler())
    for _ in range(2):
        log.warning("no %s", "overrides")
        log.info("a step")
    log.warning("another")
    assert capsys.readouterr().out.splitlines() == ["no overrides", "a step", "a step", "another"]


def test_a_markdown_table():
    rows = [["first", 1, ""], ["second", 2.5, "–"]]
    assert markdown_table(["", "a", "b"], rows).splitlines() == [
        "| | a | b |",
        "|---|---|---|",
        "| first | 1 | |",
        "| second | 2.5 | – |",
    ]
