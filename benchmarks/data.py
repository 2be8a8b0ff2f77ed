"""Memory and seconds that 400,000 sentences add to a start of run_glue.py.

    python benchmarks/data.py --data_dir glue_data/SST-2
    python benchmarks/data.py                               (the bundled sample's sentences)

Trains one step of a tiny model on a few sentences, on all of them without a cache, and on all of
them with it. Every run is a process of its own; what the few sentences take, the libraries above
all, is taken off. Sentences are those of the training set, over and over.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "configs" / "sample"
FEW = 64
FLAGS = """--model_type albert --from_scratch --task_name SST-2 --do_train
--do_lower_case --max_seq_length 128 --per_gpu_train_batch_size 32 --max_steps 1 --no_cuda
--overwrite_output_dir""".split()


def sst2_rows(data_dir: str | None) -> Iterator[str]:
    """Rows of an SST-2 training file without end: a sentence, a tab, 0 or 1."""
    if data_dir:
        lines = (Path(data_dir) / "train.tsv").read_text(encoding="utf-8").splitlines()[1:]
    else:
        pairs = (SAMPLE / "RTE" / "train.tsv").read_text(encoding="utf-8").splitlines()[1:]
        lines = [f"{pair.split(chr(9))[1]}\t{i % 2}" for i, pair in enumerate(pairs)]
    return itertools.cycle(lines)


def write_data(folder: Path, data_dir: str | None, count: int) -> Path:
    folder.mkdir()
    with (folder / "train.tsv").open("w", encoding="utf-8") as file:
        file.write("sentence\tlabel\n")
        file.writelines(f"{row}\n" for row in itertools.islice(sst2_rows(data_dir), count))
    return folder


def run_one_step(data: Path, *flags: str) -> tuple[float, float, float]:
    """Seconds, processor seconds and peak MB of a run of one step; a run that fails ends this."""
    paths = {"model_name_or_path": SAMPLE, "data_dir": data, "output_dir": data / "out"}
    paths["config_name"] = data.parent
    named = [text for name, path in paths.items() for text in (f"--{name}", str(path))]
    began = time.perf_counter()
    with tempfile.TemporaryFile() as log:
        command = [sys.executable, str(ROOT / "run_glue.py"), *FLAGS, *named, *flags]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            log.seek(0)
            sys.exit(log.read().decode(errors="replace"))
    kib = usage.ru_maxrss / 1024 if sys.platform == "darwin" else usage.ru_maxrss
    return time.perf_counter() - began, usage.ru_utime + usage.ru_stime, kib / 1024


def figures_of(args: argparse.Namespace, place: Path) -> dict[str, list[float]]:
    """Medians over the rounds, of each run by name."""
    config = json.loads((SAMPLE / "config.json").read_text())
    (place / "config.json").write_text(
        json.dumps(config | {"num_hidden_layers": 2, "cnt_thres": 1})
    )
    few = write_data(place / "few", args.data_dir, FEW)
    many = write_data(place / "many", args.data_dir, args.sentences)
    runs = {"few": (few,), "uncached": (many, "--overwrite_cache"), "cached": (many,)}
    rounds = [[run_one_step(*run) for run in runs.values()] for _ in range(args.rounds)]
    middle = np.median(rounds, axis=0)  # (runs, figures)
    return dict(zip(runs, middle, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data_dir", help="folder with SST-2's train.tsv; none: the sample")
    parser.add_argument("--sentences", default=400_000, type=int)
    parser.add_argument("--rounds", default=3, type=int, help="medians of so many are printed")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        figures = figures_of(args, Path(place))
    few = figures.pop("few")
    print("| | seconds | processor seconds | peak MB |\n| --- | --- | --- | --- |")
    print(markdown_row(f"{FEW} sentences", few))
    for name, taken in figures.items():
        print(markdown_row(f"{args.sentences:,} {name}: above that", taken - few))


def markdown_row(name: str, figures: np.ndarray) -> str:
    seconds, processor, peak = figures
    return f"| {name} | {seconds:.1f} | {processor:.1f} | {peak:.0f} |"


if __name__ == "__main__":
    main()
