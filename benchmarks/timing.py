"""Runs in turn, each in a process of its own, and their ratios."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any
from unittest.mock import patch

import torch

from utils.environment import environment

Times = dict[str, list[float]]  # of each run by name, seconds in every round


def seconds(run: Callable[[], object], device: torch.device) -> float:
    """Time `run` in seconds, with the work that it leaves to the device."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def take_turns(timers: Mapping[str, Callable[[], float]], rounds: int) -> Times:
    """Call the timers one after the other in every round, so that what slows one slows them all."""
    times: Times = {name: [] for name in timers}
    for _ in range(rounds):
        for name, timer in timers.items():
            times[name].append(timer())
    return times


def ratios(times: Times, name: str) -> list[float]:
    """How many times as fast as the first run this one is, round by round."""
    base = next(iter(times.values()))
    return [b / t for b, t in zip(base, times[name], strict=True)]


def machine(device: torch.device) -> str:
    """Describe in a line where numbers were measured, and with what."""
    return ", ".join(f"{name} {value}" for name, value in environment(device).items())


class OwnProcess:
    """A process that makes something, and then does with it what it is asked; it rests in between.

    What one model has left in the memory allocator changes another's times by a third: contenders
    with processes of their own run as they do for their users. Threads that wait awake, as those of
    ONNX Runtime and OpenMP do for a while, could take the processors from the next contender: a
    process that is not asked anything is stopped.

        with OwnProcess(make) as process:
            process.ask(function, 1)      # function(make(), 1), in the process

    environment: variables that it has beside this one's.
    """

    def __init__(
        self, make: Callable[[], Any], environment: Mapping[str, str] | None = None
    ) -> None:
        spawn = multiprocessing.get_context("spawn")  # a fork would inherit this one's threads
        self.pipe, theirs = spawn.Pipe()
        self.process = spawn.Process(target=serve, args=(make, theirs), daemon=True)
        with patch.dict(os.environ, environment or {}):
            self.process.start()
        theirs.close()

    def ask(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return its answer. Raises EOFError if it has died, after its own traceback."""
        os.kill(self.process.pid, signal.SIGCONT)
        self.pipe.send((function, args))
        answer = self.pipe.recv()
        os.kill(self.process.pid, signal.SIGSTOP)
        return answer

    def __enter__(self) -> "OwnProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.join()


def serve(make: Callable[[], Any], pipe: Connection) -> None:
    """Run an `OwnProcess`."""
    made = make()
    while True:
        try:
            function, args = pipe.recv()
        except EOFError:
            return
        pipe.send(function(made, *args))


@contextmanager
def busy_neighbour() -> Iterator[None]:
    """Keep a process running that takes all of a processor that it gets."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()
