"""Train what the comparison lacks, and record every layer's answers; run as often as you like.

    nohup nice -n 19 python -m experiments.comparison.train --work out/comparison &

A run whose answers are in experiments/recorded is not repeated.
Several processes share the queue of runs.py: each takes the first run that nobody holds. A training
takes minutes; one that was killed begins anew.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

from filelock import FileLock, Timeout
from safetensors.numpy import load_file, save_file

from experiments.comparison.runs import Run, queue

RECORDED = Path(__file__).parents[1] / "recorded"


def place(run: Run) -> Path:
    return RECORDED / f"SST-2-{run.name}.safetensors"


def train(run: Run, work: Path) -> None:
    """Train in a process of its own, then record in another; raises where one of them fails."""
    output = work / "models" / run.name
    flags = run.command(str(work / "data/SST-2"), str(work / "start" / run.start), str(output))
    began = time.time()
    record = "--task_name SST-2 --do_lower_case --batch_size 32 --tables_only --no_cuda".split()
    if run.mode == "albert":
        record += "--rules entropy --grid exit_thres=0.5".split()
    where = ["--model_dir", str(output), "--data_dir", str(work / "data/SST-2")]
    with (work / "logs" / f"{run.name}.log").open("a") as log:
        for command in (["run_glue.py", *flags], ["sweep_exits.py", *where, *record]):
            print("$ python", *command, file=log, flush=True)
            subprocess.run([sys.executable, *command], stdout=log, stderr=log, check=True)
    tensors = load_file(output / "sweep/all_logits.safetensors")
    kept = {n: tensors[n] for n in ("all_logits", "halt_probabilities", "cost") if n in tensors}
    if run.last_only:
        kept["all_logits"] = kept["all_logits"][-1:]
    notes = {**asdict(run), "flags": flags, "seconds": round(time.time() - began)}
    save_file(kept, place(run), {"run": json.dumps(notes)})
    for name in ("checkpoints", "runs", "sweep"):
        shutil.rmtree(output / name, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--only", default="", help="runs whose name begins so")
    arguments = parser.parse_args()
    work, failed = arguments.work, set()
    for name in ("logs", "models", "locks"):
        (work / name).mkdir(parents=True, exist_ok=True)
    while True:
        left = [r for r in queue() if not place(r).exists() and r.name not in failed]
        for run in left:
            if not run.name.startswith(arguments.only):
                continue
            try:
                with FileLock(work / "locks" / run.name, blocking=False):
                    if place(run).exists():  # finished since the list was made
                        continue
                    print(time.strftime("%H:%M:%S"), run.name, flush=True)
                    train(run, work)
                break
            except Timeout:
                continue
            except subprocess.CalledProcessError as error:
                print(run.name, "failed:", error, flush=True)
                failed.add(run.name)
                break
        else:
            return


if __name__ == "__main__":
    main()
