"""Shorten OpenMP's spin-wait, stop glibc from returning freed memory, and name the machine.

Loads no torch by itself.
"""

import ctypes
import logging
import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from elbert_base.errors import UserError

logger = logging.getLogger(__name__)

# GNU OpenMP, which torch's wheels for Linux bring along, spins this often before a thread sleeps.
# Its own count, 300,000, takes milliseconds at every barrier: beside another busy process, threads
# then wait awake for one that has no processor. See docs/speed_internals.md, "How threads wait".
SPIN_COUNT = 3000
OWN = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")  # where the user says so


def waiting() -> dict[str, str]:
    """Variables to set before torch is imported: nothing where the user has set it.

    Other OpenMP libraries do not read it.
    """
    return {} if any(name in os.environ for name in OWN) else {"GOMP_SPINCOUNT": str(SPIN_COUNT)}


@contextmanager
def noticing_contention(device: Any) -> Iterator[None]:
    """Warn once if a pass within shared its processors while OpenMP's own spin count held.

    Its threads then computed or spun for less than three quarters of the time: one alone on its
    processors does so for nearly all of it. device: torch's.
    """
    import torch

    wall, used = time.perf_counter(), time.process_time()
    yield
    wall, used = time.perf_counter() - wall, time.process_time() - used
    threads = torch.get_num_threads() if device.type == "cpu" and sys.platform == "linux" else 1
    if threads > 1 and waiting() and used < 0.75 * threads * wall:
        warn_of_spinning()


@cache
def warn_of_spinning() -> None:
    logger.warning(
        "this processor is shared, and PyTorch's threads waste it waiting for each other: start "
        "Python with GOMP_SPINCOUNT=%d, as the scripts do",
        SPIN_COUNT,
    )


# The C library's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4


def keep_freed_memory() -> None:
    """Make this process keep the memory that it frees: it stays as large as it once was.

    Otherwise glibc hands large tensors back to the system whenever a pass is done with them, and
    the system clears every page before the next pass may have it (docs/speed_internals.md, "Freed
    memory"). Without glibc nothing changes.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_MAX, 0)  # large blocks come from the heap as small ones do
        libc.mallopt(M_TRIM_THRESHOLD, -1)  # which never shrinks


def launched_processes() -> int:
    """Count the processes of a launcher such as torchrun; UserError for what is no number."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        value = os.environ.get(name, "0")
        if not value.lstrip("-").isdecimal():
            raise UserError(f"{name}={value}: not a whole number; unset it, or start with torchrun")
    return int(os.environ.get("WORLD_SIZE", "1"))


def environment(device: Any) -> dict[str, str]:
    """Return what numbers were measured with: torch's `device`, its threads, and the versions."""
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
    """Return the processor's model name where Linux tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(models), platform.processor())
