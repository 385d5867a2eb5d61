"""Count the GPUs that CUDA would offer to this process, without loading CUDA: after that no process could be forked."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

DRIVER = Path("/proc/driver/nvidia/gpus")  # of NVIDIA's driver for Linux, a folder for each GPU; WSL2 has none
DEVICES = Path("/dev")  # nvidia0, nvidia1, ..., where a container has nothing else
NVML = "libnvidia-ml.so.1"  # NVIDIA's library for management, which comes with every driver

DRIVER_BYTES = 80  # of the driver's version, as NVML's header has it


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
    """Return the version of NVIDIA's driver, like `570.86.15`; None where NVML does not say."""
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
