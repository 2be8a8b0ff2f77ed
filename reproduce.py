"""Repeat a published experiment with one command, and compare published with measured values.

    python reproduce.py elbert-rte --weights albert/albert-large-v2
    python reproduce.py act-pretraining --tasks tiny --eval_file text.txt
    python reproduce.py

Without an entry, the command lists all experiments with what each of them needs, and shows the
tables of those that were run. With an entry, it prints and runs the commands of this experiment,
from the download to the table. After an interruption, give the same command again to continue.
Flags that are not listed below, such as --bf16, go to run_glue.py, run_pretraining.py or
run_parity.py, whichever the experiment runs.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # python -P leaves it out

import shlex
import tomllib
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from modeling.errors import UserError
from modeling.files import read_json
from runs.console import markdown_table
from runs.flags import FlagParser
from runs.processes import ROOT, call, run_script


@dataclass(frozen=True)
class Entry:
    """A published table: a table of experiments/published.toml.

    Attributes:
        document: where it is published.
        weights: folder or hub name of the published weights, with {task} where each task has its
            own; "" where none are needed.
        data: what data it needs, in words.
        hours: on 2 CPU cores and, where a GPU would help, on a GPU.
        tasks: the tasks that `commands` are run for.
        commands: scripts with their flags, in which {task}, {weights}, {data_dir} and {output} are
            replaced.
        published: by folder in {output}, the published value at each path of keys in the results.
        results: the file of the results in each of these folders.
    """

    document: str
    weights: str
    data: str
    hours: Sequence[float]
    tasks: Sequence[str]
    commands: Sequence[str]
    published: Mapping[str, Mapping[str, float | str]]
    results: str = "eval_results.json"

    def measured(self, output: Path) -> dict[str, dict[str, Any]]:
        """Read the results that the entry's runs have left in `output`, by folder."""
        paths = {name: output / name / self.results for name in self.published}
        return {name: read_json(path) for name, path in paths.items() if path.exists()}


_TABLES = tomllib.loads((ROOT / "experiments/published.toml").read_text("utf-8"))
ENTRIES = {name: Entry(**table) for name, table in _TABLES.items()}


def run_entry(args: Namespace, script_flags: Sequence[str]) -> None:
    """Run an entry's commands for each of its tasks.

    script_flags: flags that are added to those of the entry's script run_….py.

    Raises UserError for a task that the entry does not have, and for a script that fails.
    """
    entry = ENTRIES[args.entry]
    for task in args.tasks:
        if task not in entry.tasks:
            raise UserError(f"--tasks {task}: {args.entry} has only {', '.join(entry.tasks)}")
    tasks = args.tasks or entry.tasks
    if args.weights and "{task}" in entry.weights and len(tasks) > 1:
        raise UserError(f"--weights {args.weights}: give its task: --tasks {' or '.join(tasks)}")
    for task in tasks:
        places = {
            "task": task,
            "weights": args.weights or entry.weights.format(task=task),
            "data_dir": args.data_dir,
            "output": args.output_dir / args.entry,
        }
        for command in entry.commands:
            # Split first: a place may have spaces.
            script, *flags = [word.format_map(places) for word in shlex.split(command)]
            if script.startswith("run_"):
                flags.extend(script_flags)
            print(f"$ python {shlex.join([script, *flags])}", flush=True)
            call(script, flags)


def value_at(path: str, results: Mapping[str, Any]) -> float | str | None:
    """Look up the value at a path of keys, such as metrics.acc; None where there is none."""
    value: Any = results
    keys = [path] if path in results else path.split(".")  # a piece of a text may be a full stop
    for key in keys:
        if key not in value:
            return None
        value = value[key]
    return value


def as_text(value: float | str | None) -> str:
    """Format a value for a table."""
    if value is None:
        return "–"
    return value if isinstance(value, str) else f"{value:.4g}"


def result_table(name: str, output: Path) -> str:
    """Format an entry's published and measured values side by side, as Markdown.

    output: the folder of the entry's runs.
    """
    entry = ENTRIES[name]
    measured = entry.measured(output)
    rows = []
    for folder, published_values in entry.published.items():
        for path, published in published_values.items():
            metric = path.rpartition(".")[2] or path
            value = value_at(path, measured.get(folder, {}))
            rows.append([f"{folder} {metric}", as_text(published), as_text(value)])
    columns = ("", f"published, with {entry.weights}", f"in {output}")
    table = markdown_table(columns, rows)
    return f"**{name}**: {entry.document}\n\n{table}"


def listing(output_dir: Path) -> str:
    """Say what each entry needs, and whether it was run, as Markdown.

    output_dir: the folder of the entries' folders.
    """
    columns = ("entry", "published in", "weights", "data", "2 CPU cores", "GPU", f"in {output_dir}")
    rows = []
    for name, entry in ENTRIES.items():
        cpu_hours, *gpu_hours = entry.hours
        rows.append(
            [
                name,
                entry.document,
                entry.weights or "none",
                entry.data,
                f"{cpu_hours:g} h",
                f"{gpu_hours[0]:g} h" if gpu_hours else "–",
                "measured" if entry.measured(output_dir / name) else "not run",
            ]
        )
    return markdown_table(columns, rows)


def main() -> None:
    parser = FlagParser(__doc__)
    parser.add_argument(
        "entry",
        nargs="?",
        choices=ENTRIES,
        metavar="entry",
        help=f"experiment to run: {', '.join(ENTRIES)}",
    )
    parser.add_argument(
        "--weights", help="weights to start from: folder or hub name; default: the published ones"
    )
    parser.add_argument(
        "--data_dir", default="glue_data", help="folder with a folder for each GLUE task"
    )
    parser.add_argument(
        "--tasks",
        nargs="+",
        default=[],
        help="GLUE tasks of act-glue, or model sizes of act-pretraining; default: all",
    )
    parser.add_argument(
        "--output_dir", type=Path, default="out/reproduce", help="folder for the entries' folders"
    )
    args, script_flags = parser.parse_known_args()
    if args.entry:
        run_entry(args, script_flags)
    else:
        parser.parse_args()  # without an entry, a flag of another script is an error
        print(listing(args.output_dir))
    for name in [args.entry] if args.entry else ENTRIES:
        output = args.output_dir / name
        if ENTRIES[name].measured(output):
            print(f"\n{result_table(name, output)}")


if __name__ == "__main__":
    run_script(main)
