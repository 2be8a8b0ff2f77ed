"""What an import loads, and what it makes known to transformers."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def printed(code: str) -> str:
    """What `code` prints in a process of its own."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


SCRIPTS = (
    *("run_glue", "run_pretraining", "run_parity", "share_layers", "sweep_exits", "export_onnx"),
    *("reproduce", "convert_albert_original_tf_checkpoint_to_pytorch"),
    *("change_config", "download_glue_data"),
)


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
