"""Repeat a published table with one command: published values beside those measured here.

    python reproduce.py elbert-rte --weights albert/albert-large-v2
    python reproduce.py

Without an entry, the command lists all, with what each needs, and shows the tables of those that
were run. An entry's commands are shown and run, from download to table. After an interruption, give
the same command again to continue. Flags that are not listed below, such as --bf16, go to the
entry's run_glue.py or run_parity.py.
"""

import shlex
import tomllib
from argparse import Namespace
from itertools import product
from pathlib import Path
from typing import Any

from elbert_base.errors import UserError
from elbert_base.files import read_json
from runs.console import markdown_table
from runs.flags import FlagParser
from runs.processes import ROOT, call, run_script

ENTRIES = tomllib.loads((ROOT / "experiments/published.toml").read_text("utf-8"))


def run_entry(args: Namespace, more: list[str]) -> None:
    """Run an entry's commands for each of its tasks; `more` are flags of its run_ scripts."""
    entry = ENTRIES[args.entry]
    if unknown := set(args.tasks).difference(entry["tasks"]):
        raise UserError(
            f"--tasks {unknown.pop()}: {args.entry} has only {', '.join(entry['tasks'])}"
        )
    places = {
        "weights": args.weights or entry["weights"],
        "data_dir": args.data_dir,
        "output": args.output_dir / args.entry,
    }
    for task, command in product(args.tasks or entry["tasks"], entry["commands"]):
        script, *flags = [x.format(task=task, **places) for x in shlex.split(command)]
        flags += more if script.startswith("run_") else []
        print(f"$ python {shlex.join([script, *flags])}", flush=True)
        call(script, flags)


def measured(name: str, folder: Path) -> dict[str, Any]:
    """Return what runs of an entry left in `folder`, by its results' files."""
    results = ENTRIES[name].get("results", "eval_results.json")
    paths = {task: folder / task / results for task in ENTRIES[name]["published"]}
    return {task: read_json(path) for task, path in paths.items() if path.exists()}


def value_at(path: str, results: dict[str, Any]) -> str:
    """Format the number at a path of keys, such as metrics.acc; "–" where there is none."""
    value: Any = results
    for key in path.split("."):
        value = value.get(key, {})
    return "–" if value == {} else as_text(value)


def as_text(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


def result_table(name: str, folder: Path) -> str:
    """Format published and measured values side by side, as Markdown."""
    entry, found, rows = ENTRIES[name], measured(name, folder), []
    for task, values in entry["published"].items():
        for path, published in values.items():
            row, shown = f"{task} {path.rpartition('.')[2]}", value_at(path, found.get(task, {}))
            rows.append([row, as_text(published), shown])
    table = markdown_table(("", "published", "measured"), rows)
    return f"**{name}**: {entry['document']}\n\n{table}"


def listing(output: Path) -> str:
    """Say what each entry needs, and whether it was run, as Markdown."""
    rows = []
    for name, entry in ENTRIES.items():
        hours = [*(f"{x:g} h" for x in entry["hours"]), "–"][:2]
        needs = entry["document"], entry["weights"] or "none", entry["data"]
        state = "measured" if measured(name, output / name) else "not run"
        rows.append([name, *needs, *hours, state])
    head = ("entry", "published in", "weights", "data", "2 CPU cores", "GPU", "here")
    return markdown_table(head, rows)


def main() -> None:
    parser = FlagParser(__doc__)
    add = parser.add_argument
    add("entry", nargs="?", choices=ENTRIES, metavar="entry", help=", ".join(ENTRIES))
    add("--weights", help="folder or hub name, if not the published weights")
    add("--data_dir", default="glue_data", help="folder with a folder for each GLUE task")
    add("--tasks", nargs="+", default=[], help="tasks of act-glue; default: all")
    add("--output_dir", type=Path, default="out/reproduce", help="folder for the entries' folders")
    args, more = parser.parse_known_args()
    if args.entry:
        run_entry(args, more)
    else:
        parser.parse_args()  # no other script's flags
        print(listing(args.output_dir))
    for name in [args.entry] if args.entry else ENTRIES:
        if measured(name, args.output_dir / name):
            print(f"\n{result_table(name, args.output_dir / name)}")


if __name__ == "__main__":
    run_script(main)
