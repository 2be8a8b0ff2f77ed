"""A search that is stopped, killed, and then shared: no process stays behind, nothing is lost."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import run_glue
from modeling.errors import UserError
from tests.forks import assert_same_weights
from training.runs import call

# Prints its process id, then waits for SIGTERM.
WAITING = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(print("saved")))
print(os.getpid(), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_training_before_the_search(number, tmp_path):
    script, log = tmp_path / "waiting.py", tmp_path / "log"
    script.write_text(WAITING)

    def stop():
        while not (log.exists() and log.read_text().endswith("\n")):
            time.sleep(0.05)
        os.kill(os.getpid(), number)

    threading.Thread(target=stop, daemon=True).start()
    with pytest.raises(KeyboardInterrupt) as stopped:
        call(str(script), [], log)
    assert stopped.value.args == (number,)
    child, end = log.read_text().split()
    assert end == "saved"
    with pytest.raises(ProcessLookupError):
        os.kill(int(child), 0)


def test_a_script_that_fails_is_named_with_its_last_line(tmp_path):
    with pytest.raises(UserError, match=r"status 2: error: unknown flag --x.*\(see .*/log\)"):
        call("run_parity.py", ["--x"], tmp_path / "log")


def children_of(process: subprocess.Popen) -> list[int]:
    path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(child) for child in path.read_text().split()]


@pytest.mark.slow
def test_a_stopped_then_killed_search_is_finished_by_two_processes(albert_dir, rte, tmp_path):
    """With the runs, weights and table of one that nothing disturbed."""

    def start(out: Path) -> subprocess.Popen:
        text = (
            f"run_glue.py --hp_search --model_type albert --task_name RTE --data_dir {rte} "
            f"--output_dir {out} --model_name_or_path {albert_dir} --max_seq_length 32 --no_cuda "
            "--hp_learning_rates 1e-3 2e-3 --hp_batch_sizes 2 --hp_epochs 20 --hp_seeds 0 "
            "--hp_sampler grid --logging_steps 1 --save_steps 10"
        )
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        command = [sys.executable, *text.split()]
        return subprocess.Popen(command, cwd=Path(run_glue.__file__).parent, **pipes)

    def started(out: Path) -> subprocess.Popen:
        """A search in the middle of its first run."""
        search = start(out)
        while not any('"step"' in log.read_text() for log in out.glob("*/*/run.log")):
            assert search.poll() is None, search.communicate()
            time.sleep(0.02)
        return search

    out = tmp_path / "out"
    stopped = started(out)
    children = children_of(stopped)
    stopped.terminate()
    assert "Go on with the same command" in stopped.communicate()[1]
    assert stopped.returncode == 128 + signal.SIGTERM
    assert children
    assert not any(Path("/proc", str(child)).exists() for child in children)
    assert list(out.glob("*/*/checkpoint-*"))

    killed = start(out)
    while not (children := children_of(killed)):
        time.sleep(0.02)
    for process in (killed.pid, *children):
        os.kill(process, signal.SIGKILL)
    killed.wait()
    with sqlite3.connect(out / "hp_search.db") as database:  # an hour later
        database.execute("UPDATE trial_heartbeats SET heartbeat = datetime('now', '-1 hour')")
    both = [start(out) for _ in range(2)]
    printed = [search.communicate(timeout=600) for search in both]
    assert [search.returncode for search in both] == [0, 0], printed

    alone = start(tmp_path / "alone")
    alone_out, _ = alone.communicate(timeout=600)
    tables = [text.split("learning_rate")[1].splitlines()[:-1] for text, _ in printed]
    assert tables == [alone_out.split("learning_rate")[1].splitlines()[:-1]] * 2
    folders = sorted(path.parent for path in out.glob("*/*/run.json"))
    assert len(folders) == 2
    for folder in folders:
        assert json.loads((folder / "run.json").read_text())["finished"]
        assert_same_weights(folder, tmp_path / "alone" / folder.relative_to(out))
    log = "".join((folder / "run.log").read_text() for folder in folders)
    assert "Resumed from" in log
    assert log.count("***** Running training *****") <= 2 + 2  # the stopped and the killed one
