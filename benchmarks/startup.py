"""Seconds from the start of Python to an import, or to the first answer.

    OMP_NUM_THREADS=2 python benchmarks/startup.py --model_dir out/film_reviews/model \\
      --encoder sentence-transformers/all-MiniLM-L6-v2

Each contender is a new process, in turn, round after round; files are in the system's cache. CPU
seconds are those of all its threads. HF's pipeline has the same encoder and a random head.
"""

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from benchmarks.contenders import processor_flags
from modeling.runtime import environment
from runs.console import markdown_table
from runs.flags import FlagParser
from runs.processes import ROOT, run_script

TEXT = "A moving, funny and beautifully acted film."


class Start(NamedTuple):
    """How long a process took."""

    seconds: float
    cpu_seconds: float


def contenders(model_dir: str, encoder: str) -> dict[str, list[str]]:
    """Return what follows `python` for each contender."""
    hf = (
        f"from transformers import pipeline; pipeline('text-classification', {encoder!r})({TEXT!r})"
    )
    ours = f"import elbert; elbert.Classifier({model_dir!r}"
    file = f"{model_dir}/classifier-int8.onnx"
    tokenizer = f"{model_dir}/tokenizer.json"
    return {
        "import torch": ["-c", "import torch"],
        "from transformers import pipeline": ["-c", "from transformers import pipeline"],
        "import elbert": ["-c", "import elbert"],
        "HF's pipeline, first answer": ["-c", hf],
        "Classifier, first answer": ["-c", f"{ours})({TEXT!r})"],
        "Classifier with the ONNX file, first answer": [
            "-c",
            f"{ours}, onnx='classifier-int8.onnx')({TEXT!r})",
        ],
        "onnx_python.py, first answer": ["examples/onnx_python.py", file, tokenizer, TEXT],
    }


def run(words: list[str]) -> Start:
    """Run a process to its end."""
    before = os.times()
    started = time.perf_counter()
    subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, check=True)
    seconds = time.perf_counter() - started
    after = os.times()
    user = after.children_user - before.children_user
    system = after.children_system - before.children_system
    return Start(seconds, user + system)


def main() -> None:
    parser = FlagParser(__doc__)
    add = parser.add_argument
    add("--model_dir", type=Path, required=True, help="folder of make_classifier.py's model")
    add("--encoder", required=True, help="folder or hub name of its encoder, for HF's pipeline")
    add("--rounds", type=int, default=10)
    args = parser.parse_args()
    commands = contenders(str(args.model_dir.resolve()), args.encoder)
    starts: dict[str, list[Start]] = {name: [] for name in commands}
    for words in commands.values():  # reads files into the system's cache
        run(words)
    for _ in range(args.rounds):
        for name, words in commands.items():
            starts[name].append(run(words))
    print(", ".join(environment(torch.device("cpu")).values()))
    print(f"flags: {processor_flags()}\n")
    rows = []
    for name, of_contender in starts.items():
        seconds = [start.seconds for start in of_contender]
        middle = statistics.median(seconds)
        cpu_seconds = statistics.median(start.cpu_seconds for start in of_contender)
        spread = f"{middle:.1f} ({min(seconds):.1f}–{max(seconds):.1f})"
        rows.append([name, spread, f"{cpu_seconds:.1f}"])
    print(markdown_table(["", "seconds: median (range)", "CPU seconds"], rows))


if __name__ == "__main__":
    run_script(main)
