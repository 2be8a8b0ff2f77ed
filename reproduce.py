"""Repeat a published table with one command: published values beside those measured here.

    python reproduce.py --list
    python reproduce.py elbert-rte --weights albert/albert-large-v2
    python reproduce.py --table

--list says what each entry needs, and whether it was run. An entry's commands are shown and run,
from download to table. After an interruption, give the same command again to continue. --table
shows the entries that were run. Flags that are not listed below, such as --bf16, go to the entry's
run_glue.py or run_parity.py.
"""
# experiments/published.toml has the values, what each entry needs, and its commands; the entry's
# function here reads what they left. Nothing imports torch until something is measured.

import shlex
import time
import tomllib
from argparse import Namespace
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from glue.tasks import evaluation_tasks, get_task
from modeling.errors import UserError
from modeling.loading.files import read_json
from utils.console import markdown_table
from utils.files import write_json
from utils.flags import FlagParser
from utils.processes import ROOT, run_script

ENTRIES = tomllib.loads((ROOT / "experiments/published.toml").read_text("utf-8"))
CARD_TEXT = "a lump in the middle of the monkeys stirred and then fell quiet ."
RESULT = "reproduction.json"
NO_HALTING_HEAD = (
    "{} has no halting head, so its updates would be chance: give an ACT model, such as "
    "asi/albert-act-base, or one of run_pretraining.py --model_type albert_act"
)
Values = dict[str, float | str]


def elbert_values(args: Namespace) -> Values:
    results = read_json(args.output / "RTE/eval_results.json")
    return {"acc": results["metrics"]["acc"], "computation cost": results["computation_cost"]}


def card_values(args: Namespace) -> Values:
    """Read the results of this run's tasks and, in the same folder, of earlier ones."""
    values: Values = {}
    for task in ENTRIES["act-glue"]["tasks"]:
        for _, suffix in evaluation_tasks(get_task(task)):
            name = f"{task}{suffix}"
            path = args.output / name / "eval_results.json"
            if path.exists():
                results = read_json(path)
                values |= {f"{name} {key}": 100 * x for key, x in results["metrics"].items()}
                values[f"{name} computation cost"] = results["computation_cost"]
    return values


def pretraining_values(args: Namespace) -> Values:
    """Measure accuracies, where the heads of pre-training are there, and updates."""
    from modeling import AlbertActConfig, AlbertActForPreTraining, load_config, load_tokenizer
    from training.pretraining import load_weights, measure
    from training.pretraining_data import PretrainingData
    from training.pretraining_settings import TextSettings
    from training.settings import RunSettings
    from training.start import make_accelerator

    if args.text is None:
        raise UserError("--text is missing: an English text to mask, of paragraphs, one a line")
    config = load_config(args.weights, AlbertActConfig)
    model = AlbertActForPreTraining(config)
    parameters = {name for name, _ in model.named_parameters()}  # without those tied to others
    new = " ".join(parameters.intersection(load_weights(model, args.weights).initialised))
    if ".act." in new:
        raise UserError(NO_HALTING_HEAD.format(args.weights))
    length = min(128, config.max_position_embeddings)
    text = TextSettings(train_files=[args.text], split_sentences=True, max_seq_length=length)
    with TemporaryDirectory() as folder:
        run = RunSettings(output_dir=folder)
        data = PretrainingData(text, run, load_tokenizer(args.weights), batch_size=32)
        found = measure(make_accelerator(False, "no"), model, data)
    return {
        "Max iterations": config.num_hidden_layers,
        "mlm (Acc.)": "no head" if "predictions" in new else 100 * found["mlm_acc"],
        "sop (Acc.)": "no head" if "sop" in new else 100 * found["sop_acc"],
        **found["updates"],
        "computation cost": found["updates"]["All tokens"] / found["max_updates"],
    }


def updates_values(args: Namespace) -> Values:
    """Count how often each piece of the card's example is updated; pieces may repeat."""
    import torch

    from modeling import load_act, load_tokenizer

    classifier, report = load_act(args.weights)
    if ".act." in " ".join(report.initialised):
        raise UserError(NO_HALTING_HEAD.format(args.weights))
    tokenizer, model = load_tokenizer(args.weights), classifier.albert.eval()
    inputs = tokenizer(CARD_TEXT, return_tensors="pt")
    with torch.inference_mode():
        updates = model(**inputs).updates.flatten()
    pieces = tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])
    names = [f"{number} {piece}" for number, piece in enumerate(pieces, 1)]
    cost = float(updates.mean()) / model.config.num_hidden_layers
    return {**dict(zip(names, updates.tolist(), strict=True)), "computation cost": cost}


def parity_values(args: Namespace) -> Values:
    found = read_json(args.output / "results.json")["in_distribution"]
    return {"sampled accuracy": found["accuracy"], "steps": found["steps"]}


MEASURE = {
    "elbert-rte": elbert_values,
    **{f"act-pretraining-{size}": pretraining_values for size in ("tiny", "small", "base")},
    "act-glue": card_values,
    "act-updates": updates_values,
    "parity": parity_values,
}


def commands_of(args: Namespace) -> Iterator[list[str]]:
    """Yield an entry's scripts with their flags; a GLUE task that is there is not fetched."""
    entry = ENTRIES[args.entry]
    known = entry.get("tasks", [""])
    tasks = [get_task(task).folder for task in args.tasks] or known
    if unknown := {*tasks}.difference(known):
        raise UserError(f"--tasks {unknown.pop()}: {args.entry} has only {', '.join(known)}")
    for task, command in product(tasks, entry.get("commands", ())):
        script, *flags = [x.format(task=task, **vars(args)) for x in shlex.split(command)]
        if script != "download_glue_data.py" or not Path(args.data_dir, task).is_dir():
            yield [script, *flags, *(args.flags if script.startswith("run_") else ())]


def run_entry(args: Namespace) -> dict[str, Any]:
    """Run and measure `args.entry`; write and return its reproduction.json in `args.output`.

    args: the flags of reproduce.py; `flags` are for the entry's scripts, beyond the published ones.
    """
    from utils.processes import call

    args.output = Path(args.output_dir, args.entry)
    args.weights = args.weights or ENTRIES[args.entry]["weights"]
    began = time.perf_counter()
    for command in commands_of(args):
        print(f"$ python {shlex.join(command)}", flush=True)
        call(command[0], command[1:])
    result = {
        "entry": args.entry,
        "weights": args.weights,
        "flags": args.flags,
        "measured": MEASURE[args.entry](args),
        "seconds of the last run": round(time.perf_counter() - began, 1),
    }
    write_json(args.output / RESULT, result)
    return result


def result_table(result: Mapping[str, Any]) -> str:
    """Format published and measured values side by side, as Markdown."""
    entry, measured, rows = ENTRIES[result["entry"]], result["measured"], []
    for row in dict.fromkeys([*entry["published"], *measured]):
        cells = entry["published"].get(row, "–"), measured.get(row, "–")
        rows.append([row, *(x if isinstance(x, str) else f"{x:.4g}" for x in cells)])
    cut = f", with {shlex.join(result['flags'])}" if result["flags"] else ""
    weights = f" with {result['weights']}" if result["weights"] else ""
    return (
        f"**{result['entry']}**: {entry['document']}\n\n"
        f"{markdown_table(('', 'published', 'measured'), rows)}\n\n"
        f"Measured{weights}{cut}; the last run took {result['seconds of the last run']:.0f} s."
    )


def listing(output: Path) -> str:
    """Say what each entry needs, and whether it was run, as Markdown."""
    rows = []
    for name, entry in ENTRIES.items():
        hours = [*(f"{x:g} h" for x in entry["hours"]), "–"][:2]
        needs = entry["document"], entry["weights"] or "none", entry["data"]
        state = "measured" if (output / name / RESULT).exists() else "not run"
        rows.append([name, *needs, *hours, state])
    head = ("entry", "published in", "weights", "data", "2 CPU cores", "GPU", "here")
    return markdown_table(head, rows)


def main() -> None:
    parser = FlagParser(__doc__)
    add = parser.add_argument
    add("entry", nargs="?", choices=ENTRIES, metavar="entry", help=", ".join(ENTRIES))
    add("--weights", help="folder or hub name, if not the published weights")
    add("--data_dir", default="glue_data", help="folder with a folder for each GLUE task")
    add("--text", type=Path, help="English text for act-pretraining-*")
    add("--tasks", nargs="+", default=[], help="tasks of act-glue; default: all")
    add("--output_dir", default="out/reproduce", help="folder with a folder for each entry")
    add("--table", action="store_true", help="show the entries that were run")
    add("--list", action="store_true", help="show what each entry needs, and whether it was run")
    args, args.flags = parser.parse_known_args()
    output = Path(args.output_dir)
    if args.flags and "commands" not in ENTRIES.get(args.entry, ()):
        raise UserError(f"{args.flags[0]}: no flag of this script, nor of one that it runs")
    if args.list or not (args.entry or args.table):
        print(listing(output))
    if args.entry:
        print(f"\n{result_table(run_entry(args))}")
    if args.table:
        paths = [output / entry / RESULT for entry in ENTRIES]
        print("\n\n".join(result_table(read_json(path)) for path in paths if path.exists()))


if __name__ == "__main__":
    run_script(main)
