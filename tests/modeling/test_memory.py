"""The switch that keeps freed memory, by the page faults that the system counts."""

import platform
import resource

import pytest
import torch

from modeling.memory import keep_freed_memory

SIZE = 48 << 20  # bytes; above all thresholds of glibc's own


def page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the switch is glibc's")
def test_memory_is_cleared_by_the_system_a_few_times_and_not_at_every_pass():
    keep_freed_memory()
    before, passes = page_faults(), 20
    for _ in range(passes):
        torch.ones(SIZE, dtype=torch.uint8)
    cleared = (page_faults() - before) * resource.getpagesize()
    assert cleared < passes / 2 * SIZE  # else all of it: the heap may grow once or twice
