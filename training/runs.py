"""Runs of the suite's scripts as processes of their own: started, stopped, gone on with, read."""

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from modeling.errors import UserError
from modeling.loading.files import read_json
from training.provenance import ROOT
from utils.files import write_json
from utils.fingerprint import differences


def call(script: str, flags: Sequence[str], log: IO[str] | None = None) -> None:
    """Run one of the suite's scripts to its end; UserError where that is an error.

    A signal to stop is passed on to it, as SIGTERM; when it has saved and is gone, a
    KeyboardInterrupt with the signal's number follows.

    Args:
        script: its name in the project's root.
        log: takes its output; without, the output goes where this process's goes.
    """
    from training.start import StopSignal

    with StopSignal() as stop:
        # A session of its own: a terminal's Ctrl-C would reach it twice, and so at once.
        child = subprocess.Popen(
            [sys.executable, str(ROOT / script), *flags],
            stdout=log,
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
        raise UserError(f"{script} ended with status {status}")


@dataclass(frozen=True)
class Run:
    """A training and its evaluation by run_glue.py, in a folder of its own.

    flags: the command line, but for what `finish` adds.
    fingerprint: what must be alike for an earlier result in the folder to count, as JSON.
    """

    folder: Path
    flags: Sequence[str]
    fingerprint: Mapping[str, Any]

    def finish(self) -> dict[str, Any]:
        """Train and evaluate, or go on with what was stopped, unless it is done.

        Returns the run's eval_results.json. Raises UserError for a run that fails, naming its log,
        and for a folder of another run.
        """
        note = self.folder / "run.json"
        known = read_json(note) if note.exists() else {}
        if changed := differences(known.get("fingerprint", {}), self.fingerprint):
            name, (before, now) = next(iter(changed.items()))
            raise UserError(f"{self.folder} was begun with {name} {before}, not {now}")
        if not known.get("finished"):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(note, {"fingerprint": self.fingerprint, "finished": False})
            self.train_and_evaluate()
            write_json(note, {"fingerprint": self.fingerprint, "finished": True})
        return read_json(self.folder / "eval_results.json")

    def train_and_evaluate(self) -> None:
        own = ["--output_dir", str(self.folder), "--resume_from_checkpoint", "latest"]
        path = self.folder / "run.log"
        with path.open("a", encoding="utf-8") as log:
            try:
                call("run_glue.py", [*self.flags, *own, "--do_train", "--do_eval"], log)
            except UserError as error:
                last = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
                raise UserError(f"{error}: {''.join(last[-1:])} (see {path})") from error
