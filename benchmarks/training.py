"""Examples per second of a fine-tuning: run_glue.py, which trains an exit after every layer, beside
HF's Trainer.

    OMP_NUM_THREADS=2 python benchmarks/training.py --bert $M --data_dir glue_data/SST-2 \\
      --task_name SST-2

Both take the same batches of 32 rows, in bf16 where the processor has it; HF's BERT answers after
its last layer alone. Each training has a process of its own, three of each in turn. The seconds are
those that both report: of the steps, and of ours writing the model, but not loading and tokenising.
"""

import argparse
import json
import multiprocessing
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import transformers
from transformers import AutoModelForSequenceClassification, TrainingArguments

from benchmarks.contenders import DEVICE, HAS_BF16
from glue.features import collate, encode, epoch_batches
from glue.splits import Split
from glue.tasks import get_task
from modeling import ElbertConfig
from modeling.loading.tokenizers import load_tokenizer
from modeling.runtime import environment
from runs.console import markdown_table
from runs.flags import FlagParser
from runs.processes import call, run_script

ROUNDS = 3
BATCH = 32
SEED = 42
LENGTH = 128
FLAGS = "--model_type elbert --recipe recommended --do_train --do_lower_case --num_train_epochs 1 "
FLAGS += f"--save_steps 0 --overwrite_output_dir --per_gpu_train_batch_size {BATCH} --seed {SEED}"


def seconds_of_ours(args: argparse.Namespace, folder: Path) -> float:
    """Train an epoch by run_glue.py."""
    flags = FLAGS.split()
    if HAS_BF16:
        flags.append("--bf16")
    flags += ["--model_name_or_path", str(args.bert), "--data_dir", str(args.data_dir)]
    flags += ["--task_name", args.task_name, "--max_train_samples", str(args.rows)]
    call("run_glue.py", [*flags, "--output_dir", str(folder)], folder / "log.txt")
    return json.loads((folder / "training.json").read_text())["seconds"]


def seconds_of_hf(args: argparse.Namespace, folder: Path) -> float:
    """Train the same epoch by HF's Trainer."""
    tokenizer, task = load_tokenizer(args.bert, True), get_task(args.task_name)
    examples = Split(task, args.data_dir, "train").examples(args.rows)
    features = encode(examples, tokenizer, LENGTH, ElbertConfig())
    rows = epoch_batches(features.lengths, BATCH, SEED, 0)
    batches = [collate(features, x, tokenizer.pad_token_id) for x in rows]
    model = AutoModelForSequenceClassification.from_pretrained(
        args.bert, num_labels=task.num_labels
    )
    arguments = TrainingArguments(
        folder,
        num_train_epochs=1,
        per_device_train_batch_size=1,
        seed=SEED,
        bf16=HAS_BF16,
        use_cpu=DEVICE.type == "cpu",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(model, arguments, lambda x: x[0], batches)  # an item is a batch
    return trainer.train().metrics["train_runtime"]


def main() -> None:
    parser = FlagParser(__doc__)
    add = parser.add_argument
    add("--bert", type=Path, required=True, help="folder of the BERT")
    add("--data_dir", type=Path, required=True, help="folder of the task's .tsv files")
    add("--task_name", required=True, help="GLUE task, e.g. SST-2")
    add("--rows", type=int, default=3200, help="training examples")
    args = parser.parse_args()
    rows = len(Split(get_task(args.task_name), args.data_dir, "train").examples(args.rows))
    rates_of = {"HF's Trainer, one answer": [], "run_glue.py, an exit after every layer": []}
    for _ in range(ROUNDS):
        for name, train in zip(rates_of, (seconds_of_hf, seconds_of_ours), strict=True):
            spawn = multiprocessing.get_context("spawn")
            with TemporaryDirectory() as folder, ProcessPoolExecutor(1, spawn) as pool:
                seconds = pool.submit(train, args, Path(folder)).result()
            rates_of[name].append(rows / seconds)
    print(", ".join(environment(DEVICE).values()), "bf16" if HAS_BF16 else "float32", "\n")
    middle = {name: statistics.median(rates) for name, rates in rates_of.items()}
    first, table = next(iter(middle.values())), []
    for name, rates in rates_of.items():
        shown = f"{middle[name]:.0f} ({min(rates):.0f}–{max(rates):.0f})"
        table.append((name, shown, f"{middle[name] / first:.2f}"))
    columns = "training|examples per second: median (range)|times as fast as the first"
    print(markdown_table(columns.split("|"), table))


if __name__ == "__main__":
    run_script(main)
