"""The GPUs of this process as torch has them: which device computes, and driver and libraries for a run's summary."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, get_args

import torch
from torch.cuda import nccl as torch_nccl

from dsgd.host.resources import driver_version, visible_gpus

FactName = Literal["gpu", "gpu_driver", "cuda", "cudnn", "nccl"]
FACTS: tuple[str, ...] = get_args(FactName)
PEAK = "gpu_peak_bytes"


def chosen_device(name: str) -> torch.device:
    """Return the device for auto (CUDA where there is one) | cpu | cuda. Raises ValueError if there is none."""
    # torch begins CUDA in this process to count GPUs by MIG's names, and those that are forked of it cannot use it
    is_here = torch.backends.cuda.is_built() and visible_gpus(os.environ) > 0
    if name == "cpu" or (name == "auto" and not is_here):
        return torch.device("cpu")
    if not is_here:
        raise ValueError(f"engine.device must be cpu or auto where there is no CUDA device, got {name}")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # or its products are not deterministic
    return torch.device("cuda")


def gpu_facts(devices: Sequence[torch.device]) -> dict[str, str]:
    """Return the name of the GPUs among a process's devices, their driver, and the versions of CUDA, cuDNN and NCCL;
    empty without a GPU. What is not known is left out."""
    names = [torch.cuda.get_device_name(device) for device in devices if device.type == "cuda"]
    if not names:
        return {}
    cudnn = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    nccl = torch_nccl.version() if torch.distributed.is_nccl_available() else ()
    facts = {
        "gpu": _joined(names),
        "gpu_driver": driver_version(),
        "cuda": torch.version.cuda,
        "cudnn": None if cudnn is None else str(cudnn),
        "nccl": ".".join(map(str, nccl)),
    }
    return {name: text for name, text in facts.items() if text}


def peak_bytes(devices: Sequence[torch.device]) -> dict[str, int]:
    """Return the most memory that tensors have taken on one of a process's GPUs; empty without a GPU."""
    peaks = [torch.cuda.max_memory_allocated(device) for device in devices if device.type == "cuda"]
    return {PEAK: max(peaks)} if peaks else {}


def combined_facts(of_workers: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return what the workers of a run say of their GPUs: each different text once."""
    workers = list(of_workers)
    texts = {name: _joined(facts[name] for facts in workers if name in facts) for name in FACTS}
    return {name: text for name, text in texts.items() if text}


def _joined(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(texts))
