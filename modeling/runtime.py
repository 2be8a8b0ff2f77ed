"""Threads and memory of a process: a container's quota, OpenMP's spin-wait, glibc's freed memory.

It also names the machine.

Importing this module loads no torch.
"""

import ctypes
import logging
import math
import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from .errors import UserError

logger = logging.getLogger(__name__)

# How often a waiting thread of GNU OpenMP, which torch's wheels for Linux bring along, looks again
# before it sleeps. The library's default, 300,000, takes milliseconds at every barrier: beside
# another busy process, threads then wait awake for one that has no processor. See
# docs/speed.md, "Threads and memory".
SPIN_COUNT = 3000
SPIN_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")  # where a user sets how threads wait


def spin_environment() -> dict[str, str]:
    """Return the environment variables to set before torch is imported, for a short spin count.

    There are none where the user has set how threads wait. Other OpenMP libraries than GNU's do
    not read them.
    """
    if any(name in os.environ for name in SPIN_VARIABLES):
        return {}
    return {"GOMP_SPINCOUNT": str(SPIN_COUNT)}


CGROUP = Path("/sys/fs/cgroup")  # where Linux states a container's limits


def processor_quota(folder: Path = CGROUP) -> int | None:
    """Return how many processors a container may use, rounded up; None: no limit is stated.

    folder: holds cpu.max, of version 2 of Linux's control groups, or the two files of version 1.
    """
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()  # in microseconds
        else:
            quota = (folder / "cpu/cpu.cfs_quota_us").read_text()
            period = (folder / "cpu/cpu.cfs_period_us").read_text()
        share = int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # no such file, or "max"
        return None
    return math.ceil(share) if share > 0 else None


def quota_threads() -> int | None:
    """Return the number of threads to compute with where a quota is below the processors.

    None where it is not, or where the user has set OMP_NUM_THREADS. More threads than the quota's
    would use it up together, and all of them would stand still for the rest of each period.
    """
    quota = processor_quota()
    if quota is None or "OMP_NUM_THREADS" in os.environ:
        return None
    return quota if quota < usable_processors() else None


def usable_processors() -> int:
    """Count the processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def quota_line(threads: int) -> str:
    """Say with how many threads a container computes, and why."""
    return (
        f"this container may use the time of {threads} of {usable_processors()} processors: "
        f"computing with {threads} thread{'s' if threads > 1 else ''}; OMP_NUM_THREADS sets "
        "another number"
    )


@cache  # once in a process
def keep_to_quota() -> None:
    """Make torch compute with no more threads than a container's quota has; log it."""
    import torch

    threads = quota_threads()
    if threads is not None and threads < torch.get_num_threads():
        torch.set_num_threads(threads)
        logger.warning(quota_line(threads))


@contextmanager
def noticing_contention(device: Any) -> Iterator[None]:
    """Warn once if the code within shared its processors while OpenMP's default spin count held.

    The threads of a process alone on its processors compute or spin for nearly all of the time.
    Less than three quarters of it means that other processes ran there as well.

    device: the torch.device that computes; only a CPU has such threads.
    """
    import torch

    wall_start = time.perf_counter()
    cpu_start = time.process_time()
    yield
    wall_seconds = time.perf_counter() - wall_start
    cpu_seconds = time.process_time() - cpu_start  # of all threads
    if device.type != "cpu" or sys.platform != "linux":
        return  # torch's wheels have GNU OpenMP on Linux alone
    threads = torch.get_num_threads()
    is_shared = cpu_seconds < 0.75 * threads * wall_seconds
    has_default_spin_count = bool(spin_environment())
    if threads > 1 and is_shared and has_default_spin_count:
        warn_of_spinning()


@cache  # once in a process
def warn_of_spinning() -> None:
    """Tell how to shorten the spin count: importing the package sets no variable by itself."""
    logger.warning(
        "other processes use this processor too, and PyTorch's threads waste time on it while they "
        "wait for each other: start Python with the environment variable GOMP_SPINCOUNT=%d (this "
        "project's scripts set it themselves)",
        SPIN_COUNT,
    )


# Parameters of mallopt, from the C library's malloc.h.
M_TRIM_THRESHOLD = -1
M_MMAP_MAX = -4


def keep_freed_memory() -> None:
    """Make this process keep the memory that it frees, so that it stays as large as it once was.

    Otherwise glibc hands large tensors back to the system whenever a pass is done with them, and
    the system clears every page before the next pass may have it (docs/speed.md, "Threads
    and memory"). Without glibc nothing changes.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_MAX, 0)  # large blocks come from the heap, as small ones do
        libc.mallopt(M_TRIM_THRESHOLD, -1)  # and the heap never shrinks


def launched_processes() -> int:
    """Count the processes of a launcher such as torchrun; 1 without a launcher.

    Raises UserError where one of a launcher's variables is not a whole number.
    """
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        value = os.environ.get(name, "0")
        if not value.lstrip("-").isdecimal():
            raise UserError(f"{name}={value}: not a whole number; unset it, or start with torchrun")
    return int(os.environ.get("WORLD_SIZE", "1"))


def environment(device: Any) -> dict[str, str]:
    """Describe what numbers were measured with: torch's `device`, its threads, the versions."""
    import torch
    import transformers

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "device": f"{device.type} {name}".strip(),
        "threads": str(torch.get_num_threads()),
    }


def processor() -> str:
    """Return the processor's model name as Linux gives it, or else Python's name for it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
