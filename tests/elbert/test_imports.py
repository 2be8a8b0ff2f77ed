"""What a script loads before it answers, and how its threads wait."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from elbert_base.runtime import OWN, SPIN_COUNT, noticing_contention

ROOT = Path(__file__).parents[2]


def printed(code: str) -> str:
    """What `code` prints in a process of its own."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


SCRIPTS = (
    "run_glue run_pretraining run_parity share_layers sweep_exits export_onnx reproduce "
    "convert_albert_original_tf_checkpoint_to_pytorch change_config download_glue_data push_to_hub"
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
    assert ends == [
        f"end of {script} {flag} {status} False"
        for script in SCRIPTS
        for flag, status in (("--help", 0), ("--no_such_flag", 2))
    ]


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
    ("own", "spin_count"),
    [({}, SPIN_COUNT), ({"OMP_WAIT_POLICY": "passive"}, 0), ({"GOMP_SPINCOUNT": "77"}, 77)],
)
def test_a_script_waits_briefly_unless_its_user_says_otherwise(own, spin_count):
    environment = {name: value for name, value in os.environ.items() if name not in OWN}
    environment |= own | {"OMP_DISPLAY_ENV": "verbose"}
    command = [sys.executable, "-c", SCRIPT, OPENMP]
    done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, check=True)
    assert f"GOMP_SPINCOUNT = '{spin_count}'" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="torch has GNU OpenMP on Linux")
def test_a_program_on_a_shared_processor_is_told_once_what_to_set(monkeypatch, caplog):
    for name in OWN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr("elbert_base.runtime.time.process_time", lambda: 0.0)  # others had it all
    for _ in range(2):
        with noticing_contention(torch.device("cpu")):
            pass
    assert caplog.text.count(f"GOMP_SPINCOUNT={SPIN_COUNT}") == 1
