"""Scripts of the suite as processes of their own."""

import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from modeling.errors import UserError
from training.provenance import ROOT


def call(script: str, flags: Sequence[str], log: Path | None = None) -> None:
    """Run a script of the project's root to its end, with its output in `log`; UserError where that
    is an error. A signal to stop is passed on to it, as SIGTERM; when it has saved and is gone, a
    KeyboardInterrupt with the signal's number follows."""
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
