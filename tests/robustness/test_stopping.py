"""Signals and consoles that go away: a run saves, and its status says what stopped it."""

import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

import run_glue
import training.trainer
from tests.commands import flags
from training.checkpoints import is_finished
from training.start import StopSignal
from utils.files import Console

ROOT = Path(run_glue.__file__).parent


@pytest.mark.slow
def test_a_broken_pipe_stops_nothing(tmp_path, albert_dir, rte):
    out, log = tmp_path / "out", tmp_path / "log"
    command = flags(albert_dir, rte, out, "RTE", "--do_train", "--do_eval", "--max_steps", 30)
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "run_glue.py", *command, "--logging_steps", "1"],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=file,
        )
    assert process.stdout.readline()
    process.stdout.close()
    assert process.wait(300) == 0, log.read_text()
    assert is_finished(out)
    assert (out / "eval_results.json").exists()


def test_a_console_on_a_full_disk_loses_what_is_written():
    with Path("/dev/full").open("w") as stream:
        console = Console(stream)
        for _ in range(3):
            print("x" * 10_000, file=console, flush=True)


@pytest.fixture
def in_a_terminal():
    """Signals as a terminal's job has them; one in the background, or under nohup, ignores some."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    old = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in old.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("in_a_terminal")
@pytest.mark.parametrize("launched", [False, True])
def test_a_second_ctrl_c_acts_at_once_unless_a_launcher_passed_it_on(launched, monkeypatch):
    """Launchers such as torchrun, which set LOCAL_RANK, pass on what all have received."""
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if launched:
        monkeypatch.setenv("LOCAL_RANK", "0")
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        at_once = not launched and number == signal.SIGINT
        with StopSignal() as stop:
            os.kill(os.getpid(), number)
            with pytest.raises(KeyboardInterrupt) if at_once else nullcontext():
                os.kill(os.getpid(), number)
            assert stop.received == number


@pytest.mark.usefixtures("in_a_terminal")
def test_under_nohup_a_closed_terminal_stops_nothing():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with StopSignal() as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        assert stop.received is None


def test_a_signal_waits_until_a_trained_model_is_saved(glue, tmp_path, monkeypatch):
    def interrupted(*arguments) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        save_model(*arguments)

    save_model = training.trainer.save_model
    monkeypatch.setattr(training.trainer, "save_model", interrupted)
    out = tmp_path / "out"
    ended = glue(out, "--do_train", "--do_eval", "--max_steps", 2)
    assert ended.status == 128 + signal.SIGTERM
    assert "SIGTERM" in ended.err
    assert "the trained model" in ended.err
    assert is_finished(out)
    assert not (out / "eval_results.json").exists()
