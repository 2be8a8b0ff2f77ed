"""What an import loads, and what it makes known to transformers."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "transformers", "scipy", "sklearn")


def printed(code: str) -> str:
    """What `code` prints in a process of its own."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def test_what_needs_no_torch_does_not_load_it():
    modules = "modeling.keys, modeling.exit_settings"
    code = f"import sys, {modules}, change_config, download_glue_data"
    code += "; from modeling.keys import keys_of"
    for mode, name, value in (
        ("albert", "thres_name", "bias_2"),
        ("albert", "window_score", "lead"),
        ("ponder_albert", "exit_criteria", "sample"),
        ("albert_act", "tau", 0.1),
    ):
        code += f"; modeling.keys.checked({name!r}, {value!r}, keys_of({mode!r}).keys)"
    assert printed(f"{code}; print([x for x in {HEAVY} if x in sys.modules])") == "[]\n"


SCRIPTS = (
    *("run_glue", "run_pretraining", "run_parity", "share_layers", "sweep_exits", "export_onnx"),
    *("reproduce", "convert_albert_original_tf_checkpoint_to_pytorch"),
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
