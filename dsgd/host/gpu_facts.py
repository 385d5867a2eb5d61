"""The accelerator of this process in torch: the computing device, and its fields of a run's summary."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, get_args

import torch

from dsgd.host import cuda
from dsgd.host.devices import AUTO, CPU, Accelerators, accelerators, refusal

FactName = Literal["gpu", "gpu_driver", "cuda", "cudnn", "nccl"]
FACTS: tuple[str, ...] = get_args(FactName)
PEAK = "gpu_peak_bytes"


def chosen_device(name: str) -> torch.device:
    """Return the device for auto (an accelerator if available) | cpu | accelerator | one of torch's types. Raises
    ValueError if it is not available."""
    if name == CPU:
        return torch.device(CPU)
    # counted without torch, which would initialise an accelerator here, so that forked processes could not use it
    present, of_torch = accelerators(os.environ), torch.accelerator.current_accelerator()
    if of_torch is None or of_torch.type != present.type:  # as with NVIDIA's driver, and torch built for CPUs
        present = Accelerators()
    if reason := refusal(name, present):
        raise ValueError(reason)
    if name == AUTO and not present.count:
        return torch.device(CPU)
    if present.type == cuda.TYPE:
        cuda.make_products_deterministic()
    return torch.device(present.type)


def missing_device(device: torch.device) -> str:
    """Return the line that says that torch has no such device; "" if it has. Initialises the accelerator."""
    if device.type == CPU:
        return ""
    of_torch = torch.accelerator.current_accelerator()
    if of_torch is None or of_torch.type != device.type:
        return f"engine.device must be cpu where torch has no {device.type}, got {device}"
    count = torch.accelerator.device_count()
    if (device.index or 0) < count:
        return ""
    return f"engine.device must name a device that is here, got {device}, of which there are {count} by now"


def device_name(device: torch.device) -> str:
    """Return the name of a device's model; its type if torch has no name."""
    named = getattr(torch.get_device_module(device), "get_device_name", None)
    return device.type if named is None else named(device)


def free_bytes(device: torch.device) -> int | None:
    """Return the free memory of a device in bytes; None if unknown."""
    try:
        return torch.accelerator.get_memory_info(device)[0]
    except RuntimeError:  # an accelerator whose allocator keeps no account
        return None


def gpu_facts(devices: Sequence[torch.device]) -> dict[str, str]:
    """Return the name of the accelerators among a process's devices, on CUDA also their driver, and the versions of
    CUDA, cuDNN and NCCL; empty without an accelerator. Unknown values are omitted."""
    used = [device for device in devices if device.type != CPU]
    if not used:
        return {}
    facts = {"gpu": _joined(map(device_name, used))} | (cuda.versions() if used[0].type == cuda.TYPE else {})
    return {name: text for name, text in facts.items() if text}


def peak_bytes(devices: Sequence[torch.device]) -> dict[str, int]:
    """Return the peak memory of tensors on one of a process's accelerators; empty if unknown."""
    try:
        peaks = [torch.accelerator.max_memory_allocated(device) for device in devices if device.type != CPU]
    except RuntimeError:  # as for `free_bytes`
        return {}
    return {PEAK: max(peaks)} if peaks else {}


def combined_facts(of_workers: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the workers' facts on their GPUs: each different text once."""
    workers = list(of_workers)
    texts = {name: _joined(facts[name] for facts in workers if name in facts) for name in FACTS}
    return {name: text for name, text in texts.items() if text}


def _joined(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(texts))
