"""Describe the GPUs that computed a run, with driver and libraries, for its summary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, get_args

import torch
from torch.cuda import nccl as torch_nccl

from dsgd.host.gpus import driver_version

FactName = Literal["gpu", "gpu_driver", "cuda", "cudnn", "nccl"]
FACTS: tuple[str, ...] = get_args(FactName)
PEAK = "gpu_peak_bytes"


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
