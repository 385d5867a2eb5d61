"""The device of a simulation."""

from __future__ import annotations

import os

import torch

from dsgd.host.gpus import visible_gpus


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
