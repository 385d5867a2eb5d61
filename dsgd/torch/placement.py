"""Read which part of a module is on this rank, and which process group from a DeviceMesh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

CODED = ("compressed", "choco")  # their codes are of whole layers


def check_placement(model: nn.Module, algo: object, group: object) -> None:
    """Raise ValueError for a module whose gradients another wrapper averages, and for a sharded one whose ranks with
    equal shards are not named, or whose algorithm needs it whole."""
    for module in model.modules():
        if isinstance(module, DistributedDataParallel | FullyShardedDataParallel):
            raise ValueError(f"model must be the module itself, or sharded by fully_shard, got {type(module).__name__}")
    meshes = {name: x.device_mesh for name, x in model.named_parameters() if isinstance(x, DTensor)}
    if not meshes:
        return
    name, mesh = next(iter(meshes.items()))
    if not (isinstance(model, FSDPModule) and all(each.ndim == 1 for each in meshes.values())):
        rule = "model must be whole, or sharded by fully_shard over a mesh of one dimension"
        raise ValueError(f"{rule}, got {name} on {mesh}")
    if group is None:
        raise ValueError(f"group must be that of the ranks with the same shards, as {name} is sharded, got None")
    if algo in CODED:
        raise ValueError(f"algo must not be {algo}, whose codes need whole layers, as {name} is sharded")


def is_sharded(tensor: Tensor) -> bool:
    return isinstance(tensor, DTensor)


def local_part(tensor: Tensor) -> Tensor:
    """Return what this rank has of a sharded tensor, sharing its memory; another tensor itself."""
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor


def reshard(model: nn.Module) -> None:
    """Free the whole parameters that `fully_shard` keeps after a forward pass: they are copies of what may change."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


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
