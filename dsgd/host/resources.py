"""Resources that this machine offers to this process: cores, memory."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8  # of glibc's malloc.h

ROOT = Path("/")


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


def total_memory(root: Path = ROOT) -> int:
    """Return the bytes of memory of the machine, or the limit of the control group, whichever is less.

    root: of the file system, where proc/ and sys/ are. Raises OSError where the system has no proc/."""
    limits = (limit for limit, _ in _groups(root))
    return min(_meminfo(root, "MemTotal"), *limits)


def available_memory(root: Path = ROOT) -> int:
    """Return the bytes of memory that this process can still take without swapping. As `total_memory`."""
    left = (limit - used for limit, used in _groups(root))
    return max(0, min(_meminfo(root, "MemAvailable"), *left))


def _meminfo(root: Path, name: str) -> int:
    lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def _groups(root: Path) -> Iterator[tuple[int, int]]:
    """Yield limit and use of the control group (version 2) of this process and of those around it. The use leaves out
    cached files, which the kernel drops when memory is short. A group without a limit has the largest number."""
    yield 2**63, 0
    lines = (
        (root / "proc/self/cgroup").read_text(encoding="ascii").splitlines()
        if (root / "proc/self/cgroup").is_file()
        else []
    )
    path = next((line[3:].strip("/") for line in lines if line.startswith("0::")), "")
    top = root / "sys/fs/cgroup"
    for folder in (top / path, *(top / path).parents):
        if (folder / "memory.max").is_file() and (
            limit := (folder / "memory.max").read_text(encoding="ascii").strip()
        ) != "max":
            used = int((folder / "memory.current").read_text(encoding="ascii"))
            counts = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines())
            yield int(limit), used - int(counts.get("inactive_file", 0))
