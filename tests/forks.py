"""Scripts run in processes of their own, which can be killed, and several of which can meet."""

import multiprocessing
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import torch
from safetensors.torch import load_file

import run_glue
import training.layer_sharing.run
import training.search  # noqa: F401
from runs.processes import run_script

# A server that has imported everything forks each run in milliseconds.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.forks"])


def child(
    main, arguments: Sequence, die_at: int | None, log: Path | None, environment: dict[str, str]
) -> None:
    """Run a script in this process; SIGKILL itself at its `die_at`-th step towards the disk."""
    torch.set_num_threads(1)
    sys.argv = [f"{main.__module__}.py", *map(str, arguments)]
    os.environ.update({"HF_HUB_OFFLINE": "1", **environment})
    sys.stdout = sys.stderr = Path(log or os.devnull).open("w", 1)  # noqa: SIM115 - to the end
    if die_at is not None:
        calls = iter(range(10**6))
        for name in ("fsync", "replace", "unlink", "mkdir", "rmdir"):
            setattr(os, name, mortal(getattr(os, name), calls, die_at))
    run_script(main)


def mortal(function, calls, die_at: int):
    def wrapped(*args, **kwargs):
        if next(calls) == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)

    return wrapped


def start(
    arguments: Sequence,
    main=run_glue.main,
    die_at: int | None = None,
    log: Path | None = None,
    **environment: str,
) -> ForkServerProcess:
    process = FORKS.Process(target=child, args=(main, arguments, die_at, log, environment))
    process.start()
    return process


def run(arguments: Sequence, after: float | None = None, **options) -> int:
    """Exit status of a script; killed `after` so many seconds, or at a step towards the disk."""
    process = start(arguments, **options)
    process.join(after)
    if process.is_alive():
        process.kill()
        process.join()
    return process.exitcode


def survive_kills(
    command_of: Callable[[Path], Sequence], reference: Path, folder: Path, enough: int, **options
) -> None:
    """Kill runs at so many and more moments, half of them on the way to the disk; each must end
    with the bits of `reference`, which nothing disturbed.

    Moments in time are random in any case; the ones towards the disk are the same each time.
    """
    draw = random.Random(0)
    started = time.monotonic()
    assert run(command_of(folder / "whole"), **options) == 0
    whole, kills = time.monotonic() - started, 0
    while kills < enough:
        out = folder / f"out-{kills}"
        for _ in range(min(4, enough)):
            if draw.random() < 0.5:
                status = run(command_of(out), die_at=draw.randrange(1, 90), **options)
            else:
                status = run(command_of(out), after=draw.uniform(0, whole), **options)
            kills += status == -signal.SIGKILL
        assert run(command_of(out), **options) == 0
        assert_same_weights(out, reference)
        assert not list(out.glob(".*partial"))


def assert_same_weights(one: Path, other: Path) -> None:
    first, second = (load_file(out / "model.safetensors") for out in (one, other))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def start_together(
    count: int, arguments: Sequence, log: Path | None = None, main=run_glue.main
) -> list[ForkServerProcess]:
    """As torchrun starts them: `count` processes that know of each other."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    world = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    world |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    together = []
    for rank in map(str, range(count)):
        own = log and log.with_suffix(f".{rank}")
        together.append(start(arguments, main, log=own, RANK=rank, LOCAL_RANK=rank, **world))
    return together


def run_together(count: int, arguments: Sequence, log: Path | None = None, **options) -> list[int]:
    """Exit statuses of `count` processes; their outputs in `log`.0, .1, …"""
    together = start_together(count, arguments, log, **options)
    for process in together:
        process.join(120)
    return [process.exitcode for process in together]
