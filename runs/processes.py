"""How a script starts, is stopped, ends, and calls another."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from elbert_base.errors import UserError
from elbert_base.runtime import waiting

ROOT = Path(__file__).parent.parent


class Console:
    """stdout or stderr. Where the reader of its pipe goes, what is written is lost, and nothing
    else: a training goes on."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        self.attempt(self.stream.write, text)
        return len(text)

    def flush(self) -> None:
        self.attempt(self.stream.flush)

    def attempt(self, action: Callable[..., Any], *given: Any) -> None:
        try:
            action(*given)
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.stream.fileno())  # where its buffer goes, too
            os.close(nowhere)


def run_script(main: Callable[[], None]) -> None:
    """Call `main`; a UserError, or a file that cannot be read or written, becomes one line on
    stderr and exit status 2, Ctrl-C one and 130.

    Its threads wait for each other as `waiting` says.
    """
    os.environ.update(waiting())
    with redirect_stdout(Console(sys.stdout)), redirect_stderr(Console(sys.stderr)):
        try:
            main()
        except (UserError, OSError) as error:
            shown = "".join(x if x.isprintable() else "?" for x in str(error))
            print(f"error: {shown}", file=sys.stderr)
            sys.exit(2)
        except KeyboardInterrupt as stop:
            number = signal.Signals((stop.args or (signal.SIGINT,))[0])  # see `call`
            print(f"{number.name}: stopped", file=sys.stderr)
            sys.exit(128 + number)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()


class StopSignal:
    """SIGTERM, Ctrl-C and a closed terminal as a wish, granted after the step at hand.

    Only a second Ctrl-C acts at once. Other signals may well come twice: launchers such as torchrun
    pass on, Ctrl-C too, what their workers have already received.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.replaced: dict[int, Any] = {}  # the handlers before, by signal

    def __enter__(self) -> "StopSignal":
        wanted = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # under nohup a terminal may close
            wanted.append(signal.SIGHUP)
        self.replaced = {number: signal.signal(number, self.receive) for number in wanted}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.replaced.items():
            signal.signal(number, handler)

    def receive(self, number: int, frame: FrameType | None) -> None:
        self.received = self.received or number
        if number == signal.SIGINT and "LOCAL_RANK" not in os.environ:  # which launchers set
            signal.signal(number, self.replaced[number])


def call(script: str, flags: Sequence[str], log: Path | None = None) -> None:
    """Run a script of the project's root to its end, with its output in `log`; UserError where that
    is an error. A signal to stop is passed on to it, as SIGTERM; when it has saved and is gone, a
    KeyboardInterrupt with the signal's number follows."""
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
