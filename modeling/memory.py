"""Memory that a pass gives back is memory that the next pass asks for."""

import ctypes
import platform

# The C library's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4


def keep_freed_memory() -> None:
    """From now on, this process keeps the memory that it frees: it stays as large as it once was.

    Otherwise glibc hands large tensors back to the system whenever a pass is done with them, and
    the system clears every page before the next pass may have it: docs/speed.md, "Freed memory".
    Without glibc nothing changes.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_MAX, 0)  # large blocks come from the heap as small ones do
        libc.mallopt(M_TRIM_THRESHOLD, -1)  # which never shrinks
