"""How a script's process begins, is stopped, ends, and runs another script. Loads no torch."""

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import Any, TextIO

from modeling.errors import UserError
from modeling.runtime import quota_line, quota_threads, spin_environment
from runs.flags import expand_paths

ROOT = Path(__file__).parent.parent  # of the project

PARENT = "ELBERT_PARENT_PROCESS"  # variable with the number of the process that runs a script
PARENT_POLL = 1.0  # seconds between looks whether that process lives

# Exit statuses, as shells have them.
USER_ERROR = 2
SIGNALLED = 128  # and the number of the signal


class Console:
    """stdout or stderr, to which writing never fails.

    Where the process that reads it through a pipe has ended, as in `run_glue.py … | head`, further
    output is lost and nothing else: a training goes on. All else is the stream's own.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write a text; return the number of its characters."""
        try:
            return self.stream.write(text)
        except BrokenPipeError:
            self.discard_output()
            return len(text)

    def flush(self) -> None:
        """Write what the stream has buffered."""
        try:
            self.stream.flush()
        except BrokenPipeError:
            self.discard_output()

    def discard_output(self) -> None:
        """Lead the stream, and what it has buffered, to nowhere from now on."""
        null_device = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null_device, self.stream.fileno())
        os.close(null_device)


def run_script(main: Callable[[], None]) -> None:
    """Call a script's `main`, and end the process with an exit status if it fails.

    A UserError, or a file that cannot be read or written, becomes one line on stderr and status 2;
    a signal to stop becomes one line and 128 plus its number, 130 for Ctrl-C.
    """
    replace_closed_streams()
    # Before `main` imports torch, whose threads wait for each other as this says.
    os.environ.update(spin_environment())
    threads = quota_threads()
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)
        print(quota_line(threads), file=sys.stderr)
    parent = os.environ.pop(PARENT, None)
    if parent:
        Thread(target=stop_with_parent, args=(int(parent),), daemon=True).start()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # labels that a console cannot show
    with redirect_stdout(Console(sys.stdout)), redirect_stderr(Console(sys.stderr)):
        try:
            sys.argv[1:] = expand_paths(sys.argv[1:])
            main()
        except (UserError, OSError) as error:
            print(f"error: {printable(str(error))}", file=sys.stderr)
            sys.exit(USER_ERROR)
        except KeyboardInterrupt as interrupt:
            # Ctrl-C raises it without a number, `call` with that of the signal.
            number = interrupt.args[0] if interrupt.args else signal.SIGINT
            print(f"{signal.Signals(number).name}: stopped", file=sys.stderr)
            sys.exit(SIGNALLED + number)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()


def replace_closed_streams() -> None:
    """Lead stdout or stderr to nowhere where the process began without it, as behind `>&-`.

    Its number is taken as well: otherwise the next file that is opened would have it, and get what
    a library prints.
    """
    if sys.stdout is None:
        sys.stdout = stream_to_nowhere(1)
    if sys.stderr is None:
        sys.stderr = stream_to_nowhere(2)


def stream_to_nowhere(number: int) -> TextIO:
    """Open a text stream to nowhere under the number of a standard stream."""
    null_device = os.open(os.devnull, os.O_WRONLY)
    if null_device != number:
        os.dup2(null_device, number)
        os.close(null_device)
    return open(number, "w", encoding="utf-8", closefd=False)


def stop_with_parent(parent: int) -> None:
    """Wait until a parent process has ended, and then stop this one by SIGTERM.

    A parent that ends in order waits for this process. One that was killed, as for want of memory,
    would leave it running, with the output folder locked.
    """
    while os.getppid() == parent:
        time.sleep(PARENT_POLL)
    os.kill(os.getpid(), signal.SIGTERM)


def printable(text: str) -> str:
    """Replace control characters, which a foreign file's name may hold, by question marks."""
    return "".join(character if character.isprintable() else "?" for character in text)


class StopSignal:
    """A context in which SIGTERM, Ctrl-C and a closed terminal only leave a request to stop.

        with StopSignal() as stop:
            while not stop.received:
                ...  # one step

    A second Ctrl-C acts at once. Other signals may come twice by themselves: launchers such as
    torchrun pass on what their workers have already received, and Ctrl-C as well.

    Attributes:
        received: the number of the first signal; None before.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.usual_handlers: dict[int, Any] = {}  # by signal

    def __enter__(self) -> "StopSignal":
        numbers = [signal.SIGTERM, signal.SIGINT]
        # Under nohup it is ignored, and a terminal may close.
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        for number in numbers:
            self.usual_handlers[number] = signal.signal(number, self.receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.usual_handlers.items():
            signal.signal(number, handler)

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: note the first one, and let a second Ctrl-C act."""
        self.received = self.received or number
        is_launched = "LOCAL_RANK" in os.environ  # which launchers set
        if number == signal.SIGINT and not is_launched:
            signal.signal(number, self.usual_handlers[number])


def call(script: str, flags: Sequence[str], log: Path | None = None) -> None:
    """Run a script of the project's root to its end, in a process of its own.

        call("run_glue.py", ["--do_train", "--output_dir", "out"], log=Path("out/run.log"))

    log: the file that its output is added to; by default it goes where this process's output goes.

    Raises:
        UserError: the script ended with another status than 0.
        KeyboardInterrupt: this process was told to stop. The script has then been stopped by
            SIGTERM and has saved what it does; the signal's number is the argument.
    """
    with StopSignal() as stop, log.open("a") if log else nullcontext() as output:
        process = subprocess.Popen(
            [sys.executable, str(ROOT / script), *flags],
            stdout=output,
            stderr=subprocess.STDOUT if log else None,
            # Else a terminal's Ctrl-C would reach it twice, and so stop it at once.
            start_new_session=True,
            env={**os.environ, PARENT: str(os.getpid())},
        )
        try:
            while process.poll() is None and not stop.received:
                time.sleep(0.1)
            if stop.received:
                process.terminate()
            status = process.wait()
        finally:
            process.kill()  # at a second Ctrl-C, which ends the waiting
    if stop.received:
        raise KeyboardInterrupt(stop.received)
    if status:
        raise UserError(f"{script} ended with status {status}{last_line(log)}")


def last_line(log: Path | None) -> str:
    """Quote the last line of a log for an error message; "" where there is no log."""
    if log is None:
        return ""
    *_, line = log.read_text(errors="replace").strip().split("\n")
    return f": {line} (see {log})"
