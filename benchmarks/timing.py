"""What the benchmarks share: runs in turn, their ratios, and the line that says where they ran."""

import multiprocessing
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

Times = dict[str, list[float]]  # of each run by name, seconds in every round


def seconds(run: Callable[[], object], device: torch.device) -> float:
    """Seconds that `run` takes, what it leaves to the device included."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def take_turns(timers: Mapping[str, Callable[[], float]], rounds: int) -> Times:
    """What the timers return, one after the other in every round: what slows one slows them all."""
    times: Times = {name: [] for name in timers}
    for _ in range(rounds):
        for name, timer in timers.items():
            times[name].append(timer())
    return times


def in_turn(runs: Mapping[str, Callable[[], object]], rounds: int, device: torch.device) -> Times:
    """Times of all runs, in this process."""
    return take_turns({name: partial(seconds, run, device) for name, run in runs.items()}, rounds)


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
        """Raises EOFError if the process has died, after its own traceback."""
        self.signal(signal.SIGCONT)
        self.pipe.send((function, args))
        answer = self.pipe.recv()
        self.signal(signal.SIGSTOP)
        return answer

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def __enter__(self) -> "OwnProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.join()


@contextmanager
def busy_neighbours(count: int) -> Iterator[list[subprocess.Popen]]:
    """So many processes beside, each of which takes all of a processor that it gets."""
    command = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def serve(make: Callable[[], Any], pipe: Connection) -> None:
    """The life of an `OwnProcess`."""
    made = make()
    while True:
        try:
            function, args = pipe.recv()
        except EOFError:
            return
        pipe.send(function(made, *args))


def spread_of(base: list[float], seconds: list[float]) -> str:
    """ "median | lowest–highest" of how many times as fast as `base`, round by round."""
    ratios = sorted(b / t for b, t in zip(base, seconds, strict=True))
    return f"{statistics.median(ratios):.2f} | {ratios[0]:.2f}–{ratios[-1]:.2f}"


def machine(device: torch.device) -> str:
    """Processor, threads and versions."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [x for x in cpuinfo.read_text().splitlines() if x.startswith("model name")]
        name = models[0].partition(":")[2].strip() if models else name
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    return (
        f"{name}, {torch.get_num_threads()} threads; Python {platform.python_version()}, "
        f"torch {torch.__version__}, transformers {version('transformers')}"
    )
