"""Check that a module is whole on every rank, and read process groups from a DeviceMesh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel


def check_whole(model: nn.Module) -> None:
    """Raise ValueError for a module that is sharded, or whose gradients another wrapper averages."""
    for module in model.modules():
        if isinstance(module, DistributedDataParallel | FullyShardedDataParallel):
            raise ValueError(f"model must be the module itself, whole on every rank, got {type(module).__name__}")
    for name, parameter in model.named_parameters():
        if isinstance(parameter, DTensor):
            rule = "model must be whole on every rank, as algorithms see one vector of all parameters"
            raise ValueError(f"{rule}, got the sharded {name} (a DTensor)")


def group_of(
    mesh: DeviceMesh, algo: object, options: Mapping[str, Any]
) -> tuple[dist.ProcessGroup | None, dict[str, Any]]:
    """Return the process group of a mesh, and the options with what the mesh says.

    A mesh of one dimension is a group. One of two dimensions is for localsgd: its rows are the groups. Raises
    ValueError."""
    if mesh.ndim == 1:
        return mesh.get_group(), dict(options)
    if mesh.ndim != 2 or algo != "localsgd":
        rule = "group must be a mesh of one dimension, or with algo='localsgd' of two"
        raise ValueError(f"{rule}, got {mesh.ndim} dimensions with {algo!r}")
    if mesh.mesh.flatten().tolist() != list(range(dist.get_world_size())):
        raise ValueError("group must be a mesh of all ranks in ascending order, got another one")
    size = mesh.size(1)
    if options.get("group", size) != size:
        raise ValueError(f"algo.group must be {size}, the length of the mesh's rows, got {options['group']}")
    return None, {**options, "group": size}
