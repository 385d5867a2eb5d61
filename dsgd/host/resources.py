"""Resources that this machine offers to this process: cores, memory."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Mapping

_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8  # of glibc's malloc.h


def cores() -> int:
    """Return the number of CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def omp_threads(environment: Mapping[str, str]) -> int | None:
    """Return the number of threads in OMP_NUM_THREADS, its first where it lists several; None without one."""
    given = environment.get("OMP_NUM_THREADS", "").partition(",")[0]
    return int(given) if given.isdecimal() and int(given) > 0 else None


def keep_freed_memory() -> None:
    """Make malloc reuse freed memory instead of returning it to the kernel (glibc only).

    Otherwise every new block of hundreds of kilobytes or more costs a page fault per four kilobytes. Call it before
    the process starts threads."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_ARENA_MAX, 1)  # the arenas of threads cannot hold large blocks


def lower_thread_priority() -> None:
    """Give this thread, and threads it starts later, the lowest CPU priority."""
    with contextlib.suppress(AttributeError, OSError):  # where threads have no priority of their own
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
