"""What a script loads before it answers, and how threads wait for each other."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from modeling import runtime
from modeling.runtime import (
    SPIN_COUNT,
    SPIN_VARIABLES,
    noticing_contention,
    warn_of_spinning,
)
from tests.conftest import write

ROOT = Path(__file__).parents[2]


def printed(code: str) -> str:
    """Run `code` in a process of its own, and return what it prints."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


SCRIPTS = (
    "run_glue run_pretraining run_parity share_layers sweep_exits export_onnx reproduce "
    "convert_albert_original_tf_checkpoint_to_pytorch change_config download_glue_data push_to_hub "
    "make_classifier classify"
).split()


def test_a_script_answers_without_torch():
    """One after the other in one process: none loads what the next is asked about."""
    code = f"""
import runpy, sys
for script in {SCRIPTS}:
    for flag in ("--help", "--no_such_flag"):
        sys.argv = [script + ".py", flag]
        try:
            runpy.run_path(script + ".py", run_name="__main__")
        except SystemExit as ended:
            print("end of", script, flag, ended.code, "torch" in sys.modules)
"""
    ends = [line for line in printed(code).splitlines() if line.startswith("end of")]
    expected = []
    for script in SCRIPTS:
        expected.append(f"end of {script} --help 0 False")
        expected.append(f"end of {script} --no_such_flag 2 False")
    assert ends == expected


OPENMP = Path(find_spec("torch").origin).parent / "lib" / "libgomp.so.1"
# Loads the library as torch does, without the rest of torch.
SCRIPT = """
import ctypes, sys
from runs.processes import run_script
assert "torch" not in sys.modules
run_script(lambda: ctypes.CDLL(sys.argv[1]))
"""


@pytest.mark.skipif(not OPENMP.exists(), reason="this torch has another OpenMP")
@pytest.mark.parametrize(
    ("user_variables", "spin_count"),
    [({}, SPIN_COUNT), ({"OMP_WAIT_POLICY": "passive"}, 0), ({"GOMP_SPINCOUNT": "77"}, 77)],
)
def test_a_script_waits_briefly_unless_its_user_says_otherwise(user_variables, spin_count):
    environment = {name: x for name, x in os.environ.items() if name not in SPIN_VARIABLES}
    environment |= {**user_variables, "OMP_DISPLAY_ENV": "verbose"}
    command = [sys.executable, "-c", SCRIPT, OPENMP]
    process = subprocess.run(
        command, env=environment, stderr=subprocess.PIPE, text=True, check=True
    )
    assert f"GOMP_SPINCOUNT = '{spin_count}'" in process.stderr


def run_on_a_shared_processor(monkeypatch) -> None:
    """Compute twice, as if other processes had all of the processor's time."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr("modeling.runtime.time.process_time", lambda: 0.0)
    warn_of_spinning.cache_clear()
    for _ in range(2):
        with noticing_contention(torch.device("cpu")):
            pass


@pytest.mark.skipif(sys.platform != "linux", reason="torch has GNU OpenMP on Linux")
def test_a_program_on_a_shared_processor_is_told_once_what_to_set(monkeypatch, caplog):
    """Importing elbert sets no variable, so the program's user has to."""
    for name in SPIN_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    run_on_a_shared_processor(monkeypatch)
    assert caplog.text.count("start Python with the environment variable") == 1
    assert f"GOMP_SPINCOUNT={SPIN_COUNT} " in caplog.text


@pytest.mark.parametrize("name", SPIN_VARIABLES)
def test_a_program_that_says_how_threads_wait_is_told_nothing(name, monkeypatch, caplog):
    """Scripts say it themselves, before they import torch."""
    monkeypatch.setenv(name, "passive" if name == "OMP_WAIT_POLICY" else "3000")
    run_on_a_shared_processor(monkeypatch)
    assert not caplog.text


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"cpu.max": "100000 100000\n"}, 1),
        ({"cpu.max": "150000 100000\n"}, 2),  # one and a half
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({}, None),
    ],
)
def test_a_containers_quota_is_read(files, quota, tmp_path):
    """The files of both versions of Linux's control groups, as its documentation has them."""
    (tmp_path / "cpu").mkdir()
    for name, content in files.items():
        write(tmp_path / name, content)
    assert runtime.processor_quota(tmp_path) == quota


def test_two_threads_in_a_container_of_one_processor_become_one(monkeypatch, caplog):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(runtime, "processor_quota", lambda: 1)
    monkeypatch.setattr(runtime, "usable_processors", lambda: 8)
    threads_before = torch.get_num_threads()
    torch.set_num_threads(2)
    runtime.keep_to_quota.cache_clear()
    try:
        runtime.keep_to_quota()
        assert torch.get_num_threads() == 1
        assert "1 of 8 processors: computing with 1 thread" in caplog.text
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        assert runtime.quota_threads() is None
    finally:
        torch.set_num_threads(threads_before)
