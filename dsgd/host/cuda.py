"""Functions of torch for CUDA only. All other code uses `torch.accelerator`."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.cuda import nccl as torch_nccl

from dsgd.host.resources import driver_version

TYPE = "cuda"  # torch's name, also for AMD's GPUs


def make_products_deterministic() -> None:
    """Have cuBLAS compute the same bits every time, before CUDA begins."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def tune() -> None:
    """Set how this process uses CUDA, before it begins: page-locked memory that other processes may read, with every
    driver, and the fastest kernels for the shapes that a run repeats."""
    if not any(name in os.environ for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")):
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "pinned_use_cuda_host_register:True"
    torch.backends.cudnn.benchmark = True


def has_tensor_cores_of_bf16(device: torch.device) -> bool:
    """Return whether a GPU has units for products in bf16 and TF32: NVIDIA's GPUs since 2020."""
    return torch.cuda.get_device_capability(device)[0] >= 8


def allow_tf32(allowed: bool) -> None:
    """Allow TF32 in convolutions, or forbid it."""
    torch.backends.cudnn.allow_tf32 = allowed


def versions() -> dict[str, str | None]:
    """Return the versions of driver, CUDA, cuDNN and NCCL; None or "" if unknown."""
    cudnn = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    nccl = torch_nccl.version() if torch.distributed.is_nccl_available() else ()
    return {
        "gpu_driver": driver_version(),
        "cuda": torch.version.cuda,
        "cudnn": None if cudnn is None else str(cudnn),
        "nccl": ".".join(map(str, nccl)),
    }


def new_graph() -> Any:
    """Return an empty CUDA graph, for versions of torch without `torch.accelerator.Graph`."""
    return torch.cuda.CUDAGraph()


def capturing(graph: Any, stream: Any) -> AbstractContextManager[object]:
    """Return a context whose work on the stream is captured in a graph of `new_graph`."""
    return torch.cuda.graph(graph, stream=stream)
