"""What this process has of the machine it runs on."""

from __future__ import annotations

import ctypes
import os

_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8  # of glibc's malloc.h


def cores() -> int:
    """That it may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keep_freed_memory() -> None:
    """Let this process use its memory again instead of giving it back: a new block of hundreds of kilobytes or more
    otherwise costs a page fault every four kilobytes, every time. Call it before there are threads. For glibc alone."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_ARENA_MAX, 1)  # the arenas of threads cannot hold large blocks
