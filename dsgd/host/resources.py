"""Resources that this machine offers to this process: cores, memory, GPUs.

GPUs are counted without loading CUDA: after that no process could be forked."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import threading
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8  # of glibc's malloc.h

ROOT = Path("/")
DRIVER = Path("/proc/driver/nvidia/gpus")  # of NVIDIA's driver for Linux, a folder for each GPU; WSL2 has none
DEVICES = Path("/dev")  # nvidia0, nvidia1, ...: a container may have nothing else
NVML = "libnvidia-ml.so.1"  # NVIDIA's library for management, which comes with every driver

DRIVER_BYTES = 80  # of the driver's version, as NVML's header has it


def cores() -> int:
    """Return the number of CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def omp_threads(environment: Mapping[str, str]) -> int | None:
    """Return the number of threads in OMP_NUM_THREADS, the first of several; None without one."""
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
    with contextlib.suppress(AttributeError, OSError):  # systems without priorities of threads
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)


def total_memory(root: Path = ROOT) -> int:
    """Return the bytes of memory of the machine, or the limit of the control group, if that is less.

    root: folder with proc/ and sys/. Raises OSError on a system without proc/."""
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
    """Yield limit and use of the control groups (version 2) of this process. The use excludes cached files, which the
    kernel drops when memory is short. A group without a limit has the largest number."""
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


def visible_gpus(
    environment: Mapping[str, str], driver: Path = DRIVER, nvml: str = NVML, devices: Path = DEVICES
) -> int:
    """Return the number of GPUs that this process may use.

    As CUDA reads CUDA_VISIBLE_DEVICES: a list of numbers or names (GPU-..., MIG-...), up to the first that is neither;
    no GPU at all if one is listed twice. 0 without NVIDIA's driver."""
    present = _folders(driver) or _counted(nvml) or _device_files(devices)
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


def are_own(environment: Mapping[str, str]) -> bool:
    """Return whether the GPUs that this task of srun sees are for it alone: SLURM has bound them to it, by
    --gpus-per-task or --gpu-bind. Otherwise all tasks of a machine see the same, and share them by their local rank."""
    bound = environment.get("SLURM_GPU_BIND", "").removeprefix("verbose,").removeprefix("quiet,")
    if bound.startswith("none"):
        return False
    per_task = "SLURM_GPUS_PER_TASK" in environment or "gres/gpu" in environment.get("SLURM_TRES_PER_TASK", "")
    return per_task or bound.startswith(("map", "mask", "per_task", "single:1"))


def _folders(driver: Path) -> int:
    return sum(1 for _ in driver.iterdir()) if driver.is_dir() else 0


@cache
def _counted(nvml: str) -> int:
    """Return the number of GPUs that NVML knows; 0 without it."""
    count = ctypes.c_uint()
    return count.value if _answers(nvml, "nvmlDeviceGetCount_v2", ctypes.byref(count)) else 0


def driver_version(nvml: str = NVML) -> str | None:
    """Return the version of NVIDIA's driver, like `570.86.15`; None if NVML does not know it."""
    text = ctypes.create_string_buffer(DRIVER_BYTES)
    answers = _answers(nvml, "nvmlSystemGetDriverVersion", text, ctypes.c_uint(DRIVER_BYTES))
    return text.value.decode(errors="replace") if answers else None


def _answers(nvml: str, function: str, *arguments: object) -> bool:
    """Ask NVML, which writes its answer into the arguments. Returns whether it has answered."""
    try:
        library = ctypes.CDLL(nvml)
    except OSError:
        return False
    if library.nvmlInit_v2():
        return False
    failed = getattr(library, function)(*arguments)
    library.nvmlShutdown()
    return not failed


def _device_files(devices: Path) -> int:
    return sum(re.fullmatch("nvidia[0-9]+", path.name) is not None for path in devices.iterdir())
