"""Published tables listed, run and shown beside what was measured: the work of reproduce.py."""

import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluation.published_tables import ENTRIES, TEXT, Command, Request
from evaluation.settings import GROUPS
from glue.tasks import get_task
from modeling.errors import UserError
from modeling.loading.files import read_json
from training.parity_settings import ParitySettings
from training.provenance import ROOT
from training.settings import parse
from utils.files import write_json

RESULT = "reproduction.json"
TAKES_FLAGS = {"run_glue.py": GROUPS, "run_parity.py": (ParitySettings,)}


def run_command(command: Command) -> None:
    """One of the suite's scripts, shown and run; UserError when it fails."""
    print(f"$ python {shlex.join(command)}", flush=True)
    script, *flags = command
    done = subprocess.run([sys.executable, str(ROOT / script), *flags], check=False)
    if done.returncode:
        raise UserError(f"{script} ended with status {done.returncode}: see above")


def check_request(name: str, request: Request) -> None:
    """UserError for flags that mean nothing to the entry."""
    entry = ENTRIES[name]
    if request.weights and not entry.weights:
        raise UserError(f"--weights {request.weights}: {name} starts from no weights")
    if request.text and entry.data != TEXT:
        raise UserError(f"--text {request.text}: {name} reads no text")
    for task in request.tasks:
        if get_task(task).folder not in entry.tasks:
            known = f"the table has {', '.join(entry.tasks)}" if entry.tasks else "it has no choice"
            raise UserError(f"--tasks {task}: not one of {name}'s, {known}")


def check_flags(name: str, commands: Sequence[Command], flags: Sequence[str]) -> None:
    """UserError for flags that the scripts would refuse, before the first of them runs."""
    if flags and not commands:
        raise UserError(f"{flags[0]}: {name} has no script to give it to")
    for script, *words in commands:
        if script in TAKES_FLAGS:
            parse(TAKES_FLAGS[script], None, words)


def run_entry(name: str, request: Request) -> dict[str, Any]:
    """Run and measure an entry; writes and returns its reproduction.json."""
    entry, begun = ENTRIES[name], time.perf_counter()
    check_request(name, request)
    commands = entry.commands(request)
    check_flags(name, commands, request.flags)
    for command in commands:
        run_command(command)
    measured = entry.measure(request)
    result = {
        "entry": name,
        "weights": request.weights,
        "flags": list(request.flags),
        "measured": measured,
        "seconds of the last run": round(time.perf_counter() - begun, 1),
    }
    write_json(request.output / RESULT, result)
    return result


def shown(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


def result_table(name: str, result: Mapping[str, Any] | None) -> str:
    """Published and measured side by side, as Markdown; `not run` without a result."""
    entry = ENTRIES[name]
    measured = result["measured"] if result else {}
    rows = list(dict.fromkeys([*entry.published, *measured]))
    lines = [f"**{name}**: {entry.document}", "", "| | published | measured |", "|---|---|---|"]
    for row in rows:
        cells = (shown(entry.published.get(row, "–")), shown(measured.get(row, "not run")))
        lines.append(f"| {row} | {' | '.join(cells)} |")
    if result:
        cut = f", with {shlex.join(result['flags'])}" if result["flags"] else ""
        with_weights = f" with {result['weights']}" if result["weights"] else ""
        seconds = result["seconds of the last run"]
        lines += ["", f"Measured{with_weights}{cut}; the last run took {seconds:.0f} s."]
    return "\n".join([*lines, *(["", entry.note] if entry.note else [])])


def stored_result(directory: Path) -> dict[str, Any] | None:
    """Of an earlier run."""
    return read_json(directory / RESULT) if (directory / RESULT).exists() else None


def listing() -> str:
    """What each entry needs, as Markdown."""
    lines = ["| entry | published in | weights | data | 2 CPU cores | GPU |", "|---" * 6 + "|"]
    for name, entry in ENTRIES.items():
        cpu, gpu = (f"{hours:g} h" if hours else "–" for hours in entry.hours)
        cells = (name, entry.document, entry.weights or "none", entry.data, cpu, gpu)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
