"""Bars and messages, in a terminal and in a log file."""

import logging
import sys

from utils import console
from utils.console import StdoutHandler, progress


def messages(capsys) -> str:
    return "".join(capsys.readouterr())


def test_a_log_file_gets_lines_and_no_bar(capsys, caplog, monkeypatch):
    monkeypatch.setattr(console, "SECONDS", 0.0)
    with caplog.at_level(logging.INFO), progress(total=3, desc="Evaluating", unit="text") as bar:
        for _ in range(3):
            bar.set_postfix({"loss": "0.5"}, refresh=False)
            bar.update()
    assert "Evaluating: 3 of 3 texts, 00:00 elapsed, 00:00 left, loss=0.5" in caplog.messages
    assert messages(capsys) == ""


def test_a_short_run_has_no_line_at_all(capsys, caplog):
    with caplog.at_level(logging.INFO), progress(total=3, desc="Evaluating", unit="text") as bar:
        bar.update(3)
    assert (caplog.messages, messages(capsys)) == ([], "")


def test_a_terminal_has_one_bar_which_goes_when_it_is_done(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with progress(total=3, desc="Training") as outer:
        outer.update()
        with progress(total=3, desc="Evaluating") as inner:
            inner.update()
    shown = messages(capsys)
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
