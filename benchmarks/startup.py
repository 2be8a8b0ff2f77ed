"""How quickly the scripts answer: CPU time to a bare `import torch`, as a ratio.

    python benchmarks/startup.py --rounds 5

Every start is a process of its own; each ratio is that of medians over the rounds, in which all
take turns. Prints a Markdown table with the goals.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
THIRD, THREE_QUARTERS = 1 / 3, 0.75
GOALS = {
    "change_config.py": THIRD,
    "download_glue_data.py": THIRD,
    "run_glue.py": THREE_QUARTERS,
    "run_pretraining.py": THREE_QUARTERS,
    "run_parity.py": THREE_QUARTERS,
    "share_layers.py": THREE_QUARTERS,
    "sweep_exits.py": THREE_QUARTERS,
    "export_onnx.py": THREE_QUARTERS,
    "reproduce.py": THREE_QUARTERS,
    "convert_albert_original_tf_checkpoint_to_pytorch.py": THREE_QUARTERS,
}


def cpu_seconds(*arguments: str) -> float:
    """CPU time of a Python process; raises CalledProcessError if it fails."""
    before = os.times()
    command = [sys.executable, *arguments]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return sum(after[2:4]) - sum(before[2:4])


def ratios(rounds: int) -> dict[str, float]:
    """CPU time of each script's --help over that of a bare `import torch`."""
    commands = {"torch": ("-c", "import torch"), **{name: (name, "--help") for name in GOALS}}
    for command in commands.values():
        cpu_seconds(*command)  # the first start reads the files from disk
    seconds = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            seconds[name].append(cpu_seconds(*command))
    return {name: median(seconds[name]) / median(seconds["torch"]) for name in GOALS}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", default=5, type=int, help="starts of each script")
    print("| `--help` of | CPU time, of `import torch` | goal, at most |\n|---|---|---|")
    for name, ratio in ratios(parser.parse_args().rounds).items():
        print(f"| {name} | {ratio:.2f} | {GOALS[name]:.2f} |")


if __name__ == "__main__":
    main()
