"""Train what the comparison lacks, and record every layer's answers; run as often as you like.

    nohup nice -n 19 python -m experiments.comparison.train --work out/comparison &

All runs read the first 8,000 rows of SST-2's training set, see `prepare.py`. What is already in
experiments/recorded is not repeated. Several processes share the queue: each takes the first run
that nobody holds. A training takes minutes; one that was killed begins anew.
"""

import argparse
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock, Timeout
from safetensors.numpy import load_file, save_file

from experiments.comparison.recorded import RECORDED
from modeling.errors import UserError
from training.runs import call

COMMON = "--task_name SST-2 --do_train --do_lower_case --per_gpu_train_batch_size 32"
COMMON += " --warmup_steps 50 --num_train_epochs 2 --save_steps 0 --overwrite_output_dir"
SEEDS, MORE, CHOOSING = (1, 2, 3), (4, 5), 7


class Run(NamedTuple):
    """One training.

    start: untied-K, the first K of MiniLM's own layers, or shared-K, K passes of one layer.
    last_only: is only the last layer's answer trained (and recorded)?
    """

    family: str
    start: str
    seed: int
    flags: list[str]  # of run_glue.py, beyond COMMON
    last_only: bool

    @property
    def place(self) -> Path:
        return RECORDED / f"SST-2-{self.family}-{self.seed}.safetensors"


def fixed(kind: str, depth: int, seed: int, rate: float = 1e-4) -> Run:
    """Depth `depth` alone: only the last layer answers."""
    flags = f"--model_type elbert --learning_rate {rate:g} --set pooler_input=mean"
    if depth > 1:
        # σ(−30) is 0: the last exit's loss alone counts, N times; so N times the norm is cut.
        flags += f" weight_name=dyn w_init=-30 w_lr=0 --max_grad_norm {depth}"
    family = f"{kind}-{depth}" + (f"-rate{rate:g}" if seed == CHOOSING else "")
    return Run(family, f"{kind}-{depth}", seed, flags.split(), True)


def exits(kind: str, seed: int, rate: float = 1e-4) -> Run:
    """An exit after each of six layers, all trained at once.

    Layers of their own have exits of their own, as DeeBERT and PABEE; shared ones share, as ELBERT.
    """
    flags = f"--model_type elbert --learning_rate {rate:g} --set pooler_input=mean"
    flags += " num_exit_layers=6" if kind == "untied" else ""
    family = f"{kind}-exits" + (f"-rate{rate:g}" if seed == CHOOSING else "")
    return Run(family, f"{kind}-6", seed, flags.split(), False)


def queue() -> Iterator[Run]:
    """The first blocks make a small table; the last one its fourth and fifth seed."""
    yield exits("shared", SEEDS[0])
    for seed in SEEDS:
        yield from (fixed("untied", 3, seed), fixed("untied", 2, seed), exits("untied", seed))
    yield from (fixed("untied", 4, seed) for seed in SEEDS)
    yield from (fixed("shared", 3, seed) for seed in SEEDS)
    yield from (exits("shared", seed) for seed in SEEDS[1:])
    yield from (fixed("untied", depth, seed) for depth in (1, 6, 5) for seed in SEEDS)
    for rate in (5e-5, 1e-4, 2e-4):
        yield fixed("untied", 3, CHOOSING, rate)
        yield from (exits(kind, CHOOSING, rate) for kind in ("shared", "untied"))
    yield from (fixed("shared", depth, seed) for depth in (2, 4, 6, 1, 5) for seed in SEEDS)
    for seed in MORE:
        yield from (exits(kind, seed) for kind in ("shared", "untied"))
        yield from (fixed(k, depth, seed) for k in ("untied", "shared") for depth in range(1, 7))


def train(run: Run, work: Path) -> None:
    """Train in a process of its own, then record in another; UserError where one of them fails."""
    output, data = str(work / "models" / run.place.stem), str(work / "data/SST-2")
    where = ["--model_name_or_path", str(work / "start" / run.start), "--output_dir", output]
    flags = [*COMMON.split(), "--seed", str(run.seed), *run.flags]
    record = "--task_name SST-2 --do_lower_case --batch_size 32 --tables_only --rules entropy"
    began = time.time()
    with (work / "logs" / f"{run.place.stem}.log").open("a") as log:
        call("run_glue.py", ["--data_dir", data, *where, *flags], log)
        places = ["--data_dir", data, "--model_dir", output, "--grid", "exit_thres=0.5"]
        call("sweep_exits.py", [*places, *record.split()], log)
    logits = load_file(Path(output) / "sweep/all_logits.safetensors")["all_logits"]
    notes = {"start": run.start, "flags": flags, "seconds": round(time.time() - began)}
    kept = logits[-1:] if run.last_only else logits
    save_file({"all_logits": kept}, run.place, {"run": json.dumps(notes)})
    shutil.rmtree(output)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="where prepare.py has written")
    work = parser.parse_args().work
    for name in ("logs", "models", "locks"):
        (work / name).mkdir(exist_ok=True)
    for run in queue():
        try:
            with FileLock(work / "locks" / run.place.stem, blocking=False):
                if not run.place.exists():
                    print(time.strftime("%H:%M:%S"), run.place.stem, flush=True)
                    train(run, work)
        except Timeout:
            continue
        except UserError as error:
            print(run.place.stem, error, flush=True)


if __name__ == "__main__":
    main()
