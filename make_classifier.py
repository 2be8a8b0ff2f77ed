"""Make a fast classifier from an encoder and a table, with one command.

    python make_classifier.py --train_file reviews.csv --model_name_or_path bert-base-uncased \\
        --output_dir out/reviews

Trains an exit after every layer by the recommended recipe, chooses a threshold on half of the dev
rows and reports the other half, writes an int8 file and a report, and prints how to use them. The
model goes to OUTPUT_DIR/model. Without --validation_file, a share of the training rows is the dev
set, stratified by their labels. After an interruption, give the same command again to continue.

Flags that are not listed below go to the training: run_glue.py --help has them. Needs
requirements-onnx.txt.
"""
# Each step is one of the project's scripts, whose command is shown.

import shlex
from argparse import Namespace
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from elbert_base.errors import UserError
from elbert_base.files import read_json
from glue.custom import custom_task
from glue.tables import as_csv
from glue.tasks import Split, Task
from runs.console import markdown_table
from runs.files import write_text
from runs.flags import FlagParser
from runs.processes import run_script

FULL_DEPTH = ("thres_name=entropy", "exit_thres=0")  # never fires, nor on a predicted value
SMALL = 512  # hidden size up to which an encoder takes the higher learning rate


def split_rows(args: Namespace, task: Task, folder: Path) -> tuple[Path, Path]:
    """Write the training and dev rows of --train_file into `folder`; return their files.

    Raises UserError for a table that cannot be read, or a label with one row.
    """
    from sklearn.model_selection import train_test_split

    needed = (*task.text_columns, *task.label_columns)
    table = Split(task, "", "train").rows(needed)
    rows = [{name: row[name] for name in needed} for _, row in table]
    one = task.labels and not task.multi_label
    labels = [row[task.label_column].strip() for row in rows] if one else None
    how = {"test_size": args.validation_share, "random_state": args.seed, "stratify": labels}
    try:
        parts = train_test_split(rows, **how)
    except ValueError as error:
        raise UserError(
            f"{args.train_file} cannot be split: {error}; give more rows, or a --validation_file"
        ) from error
    files = folder / "train.csv", folder / "validation.csv"
    for path, part in zip(files, parts, strict=True):
        write_text(path, as_csv(part))
    return files


def run(script: str, *flags: Any) -> None:
    """Show a script's command and run it; UserError where it ends in an error."""
    from runs.processes import call

    words = [str(flag) for flag in flags]
    print(f"\n$ python {shlex.join([script, *words])}", flush=True)
    call(script, words)


def train(args: Namespace, model: Path, data: Sequence[Any]) -> None:
    """Train by the recommended recipe; the flags of the user come last, and so win."""
    from elbert import load_config

    rate = 1e-4 if load_config(args.model_name_or_path).hidden_size <= SMALL else 3e-5
    how = f"--learning_rate {rate:g} --per_gpu_train_batch_size 32 --warmup_ratio 0.1".split()
    start = ("--model_name_or_path", args.model_name_or_path, "--seed", args.seed)
    again = ("--save_steps", 500, "--resume_from_checkpoint", "latest")
    recipe = ("--model_type", "elbert", "--recipe", "recommended", "--do_train")
    run("run_glue.py", *recipe, *start, *data, "--output_dir", model, *how, *again, *args.flags)


def evaluate(model: Path, *more: Any) -> list[str]:
    """Evaluate one example at a time; return metric, computation cost and median ms."""
    one = ("--do_eval", "--per_gpu_eval_batch_size", 1, "--out_mode", "one", "--skip_full_depth")
    run("run_glue.py", "--output_dir", model, *one, *more)
    found = read_json(model / "eval_results.json")
    name, value = next(iter(found["metrics"].items()))
    median = found["latency_ms"]["median"]
    return [f"{name} {value:.4f}", f"{found['computation_cost']:.2f}", f"{median:.1f}"]


def main() -> None:
    parser = FlagParser(__doc__)
    add = parser.add_argument
    add("--train_file", required=True, help="CSV, TSV or JSON lines with texts and labels")
    add("--validation_file", help="dev rows; default: a share of --train_file")
    add("--model_name_or_path", required=True, help="encoder: folder or hub name")
    add("--output_dir", type=Path, required=True, help="folder of all results")
    add("--text_column_names", help="text columns; default: sentence1[,sentence2]")
    add("--label_column_name", help="label column; default: label; A,B,C: several labels")
    add("--label_separator", help="separator of several labels in one label cell")
    add("--validation_share", type=float, default=0.2, help="share of dev rows in --train_file")
    add("--max_drop", type=float, default=0.01, help="largest loss of the metric by early exit")
    add("--seed", type=int, default=42, help="random seed")
    args, args.flags = parser.parse_known_args()
    model, file = args.output_dir / "model", args.output_dir / "classifier-int8.onnx"
    named = args.text_column_names, args.label_column_name, args.label_separator
    task = custom_task({"train": args.train_file}, None, *named)
    files = args.train_file, args.validation_file
    if not args.validation_file:
        files = split_rows(args, task, args.output_dir / "data")
    names = ("text_column_names", "label_column_name", "label_separator")
    missing = [x for x in ("onnx_ir", "onnxscript", "onnxruntime") if not find_spec(x)]
    if missing:  # the file is written last, after the training
        raise UserError(f"No module {missing[0]}: pip install -r requirements-onnx.txt")
    columns = [x for n in names if getattr(args, n) for x in (f"--{n}", getattr(args, n))]
    train(args, model, ["--train_file", files[0], "--validation_file", files[1], *columns])
    rules = ["--rules", "entropy"] if task.labels else []
    pick = [*rules, "--pick", f"max_drop={args.max_drop:g}"]
    run("sweep_exits.py", "--model_dir", model, "--batch_size", 32, *pick)
    run("export_onnx.py", "--model_dir", model, "--output", file, "--int8")
    rows = [["all layers, PyTorch", *evaluate(model, "--set", *FULL_DEPTH)]]
    rows.append(["early exit, PyTorch", *evaluate(model)])
    rows.append(["early exit, int8 file", *evaluate(model, "--onnx", file)])
    texts = [f'"{name}"' for name in task.text_columns]
    example = texts[0] if len(texts) == 1 else f"({', '.join(texts)})"
    print(f"\n{markdown_table(('', 'dev rows', 'computation cost', 'ms per example'), rows)}\n")
    print(
        f"Report: {model}/sweep/explorer.html has a slider for the threshold, and every mistake.\n"
        "The held-out half of the dev rows is reported above, after `Picked`.\n\n"
        "In Python (pip install .):\n\n"
        "    import elbert\n"
        f"    classify = elbert.Classifier({str(model)!r})\n"
        f"    print(classify([{example}]))\n\n"
        "The int8 file, without PyTorch (pip install onnxruntime tokenizers):\n\n"
        f"    python examples/onnx_python.py {file} {model}/tokenizer.json {' '.join(texts)}"
    )


if __name__ == "__main__":
    run_script(main)
