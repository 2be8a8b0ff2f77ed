"""Runs of the suite's scripts as processes of their own: started, stopped, gone on with, read."""

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from modeling.errors import UserError
from modeling.loading.files import read_json
from training.provenance import ROOT
from utils.files import write_json
from utils.fingerprint import differences


def call(script: str, flags: Sequence[str], log: Path | None = None) -> None:
    """Run one of the suite's scripts to its end; UserError where that is an error.

    A signal to stop is passed on to it, as SIGTERM; when it has saved and is gone, a
    KeyboardInterrupt with the signal's number follows.

    Args:
        script: its name in the project's root.
        log: gets its output; without, the output goes where this process's goes.
    """
    from training.start import StopSignal

    with StopSignal() as stop, log.open("a") if log else nullcontext() as output:
        # A session of its own: a terminal's Ctrl-C would reach it twice, and so at once.
        child = subprocess.Popen(
            [sys.executable, str(ROOT / script), *flags],
            stdout=output,
            stderr=subprocess.STDOUT if log else None,
            start_new_session=True,
        )
        try:
            while child.poll() is None and not stop.received:
                time.sleep(0.1)
            if stop.received:
                child.terminate()
            status = child.wait()
        finally:
            child.kill()  # at a second Ctrl-C
    if stop.received:
        raise KeyboardInterrupt(stop.received)
    if status:
        last = log.read_text(errors="replace").strip().rpartition("\n")[2] if log else ""
        said = f": {last} (see {log})" if log else ""
        raise UserError(f"{script} ended with status {status}{said}")


def finished_run(
    folder: Path, flags: Sequence[str], fingerprint: Mapping[str, Any]
) -> dict[str, Any]:
    """Train and evaluate by run_glue.py, or go on with what was stopped, unless it is done.

    Returns the eval_results.json. Raises UserError for a run that fails, naming its log, and for a
    folder of another run: `fingerprint` is what must be alike for it to count, as JSON.
    """
    note = folder / "run.json"
    known = read_json(note) if note.exists() else {"fingerprint": {}, "finished": False}
    for name, (before, now) in differences(known["fingerprint"], fingerprint).items():
        raise UserError(f"{folder} was begun with {name} {before}, not {now}")
    if not known["finished"]:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(note, {"fingerprint": fingerprint, "finished": False})
        own = ["--output_dir", str(folder), "--resume_from_checkpoint", "latest"]
        call("run_glue.py", [*flags, *own, "--do_train", "--do_eval"], folder / "run.log")
        write_json(note, {"fingerprint": fingerprint, "finished": True})
    return read_json(folder / "eval_results.json")
