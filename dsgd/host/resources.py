"""Resources that this machine offers to this process: cores, GPUs, memory."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path

NVIDIA_GPUS = Path("/proc/driver/nvidia/gpus")  # a folder for each GPU
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8  # of glibc's malloc.h


def cores() -> int:
    """Return the number of CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def omp_threads(environment: Mapping[str, str]) -> int | None:
    """Return the number of threads in OMP_NUM_THREADS, its first where it lists several; None without one."""
    given = environment.get("OMP_NUM_THREADS", "").partition(",")[0]
    return int(given) if given.isdecimal() and int(given) > 0 else None


def gpus(environment: Mapping[str, str], proc: Path = NVIDIA_GPUS) -> int:
    """Return the number of GPUs that CUDA would offer to this process, without loading CUDA.

    As CUDA reads CUDA_VISIBLE_DEVICES: a list of numbers or names (GPU-..., MIG-...), up to the first that is neither;
    no GPU at all if one is listed twice. 0 without NVIDIA's driver."""
    present = sum(1 for _ in proc.iterdir()) if proc.is_dir() else 0
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    if listed is None or not present:
        return present
    visible: list[str] = []
    for name in map(str.strip, listed.split(",")):
        is_index = re.fullmatch("[0-9]{1,18}", name) and int(name) < present
        if not (is_index or name.startswith(("GPU-", "MIG-"))):
            break  # also -1, NoDevFiles, and the empty list
        visible.append(name)
    return len(visible) if len(set(visible)) == len(visible) else 0


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
