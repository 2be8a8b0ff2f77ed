"""A search that is stopped: no process stays behind, and its run goes on."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import run_glue
from tests.forks import assert_same_weights
from training.search import run_to_its_end

# Prints its process id, then waits for SIGTERM.
WAITING = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(print("saved")))
print(os.getpid(), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_training_before_the_search(number, tmp_path):
    log, search = tmp_path / "log", os.getpid()

    def stop():
        while not (log.exists() and log.read_text().endswith("\n")):
            time.sleep(0.05)
        os.kill(search, number)

    threading.Thread(target=stop, daemon=True).start()
    with log.open("w") as file, pytest.raises(KeyboardInterrupt) as stopped:
        run_to_its_end([sys.executable, "-c", WAITING], file)
    assert stopped.value.args == (number,)
    child, end = log.read_text().split()
    assert end == "saved"
    with pytest.raises(ProcessLookupError):
        os.kill(int(child), 0)


@pytest.mark.slow
def test_a_stopped_search_leaves_no_process_and_ends_like_an_undisturbed_one(
    albert_dir, rte, tmp_path
):
    def command(out: Path) -> list[str]:
        text = (
            f"run_glue.py --hp_search --model_type albert --task_name RTE --data_dir {rte} "
            f"--output_dir {out} --model_name_or_path {albert_dir} --max_seq_length 32 --no_cuda "
            "--hp_learning_rates 1e-3 --hp_batch_sizes 2 --hp_epochs 20 --hp_seeds 0 "
            "--logging_steps 1"
        )
        return [sys.executable, *text.split()]

    root = Path(run_glue.__file__).parent
    alone = subprocess.run(command(tmp_path / "alone"), cwd=root, check=True, capture_output=True)
    out = tmp_path / "out"
    place = out / "albert-rte/000-lr0.001-bs2-ep20-seed0"
    search = subprocess.Popen(command(out), cwd=root, stderr=subprocess.PIPE)
    log = place.with_name(f"{place.name}.log")
    while not (log.exists() and '"step"' in log.read_text()):  # before, there is nothing to save
        assert search.poll() is None
        time.sleep(0.02)
    children = Path(f"/proc/{search.pid}/task/{search.pid}/children").read_text().split()
    search.terminate()
    assert b"Go on with the same command" in search.communicate()[1]
    assert search.returncode == 128 + signal.SIGTERM
    assert children
    assert not any(Path("/proc", child).exists() for child in children)
    assert [path.name for path in place.glob("checkpoint-*")]
    again = subprocess.run(command(out), cwd=root, check=True, capture_output=True)
    assert "Resumed from" in log.read_text()
    assert_same_weights(place, tmp_path / "alone/albert-rte" / place.name)
    assert again.stdout.splitlines()[-1].split()[-1] == alone.stdout.splitlines()[-1].split()[-1]
