"""A module's trained parameters and their gradients as vectors, which are copies; which part of a sharded module is on
this rank, and which process group a DeviceMesh stands for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from itertools import pairwise
from typing import Any

import torch
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
    """Return this rank's part of a sharded tensor, sharing its memory; any other tensor unchanged."""
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor


def reshard(model: nn.Module) -> None:
    """Free the whole parameters that `fully_shard` keeps after a forward pass: they are copies, which would become
    stale."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def group_of(
    mesh: DeviceMesh, algo: object, options: Mapping[str, Any]
) -> tuple[dist.ProcessGroup | None, dict[str, Any]]:
    """Return the process group of a mesh, and the options with the mesh's groups.

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


class FlatModule:
    """Copy the trained parameters of a module to and from x [d], their gradients to and from g [d].

    parameters, names: parameters that were trained when `take` was called, and their names. A sharded parameter means
    its part on this rank. layout: their shapes, axes in their order in memory. gradients: views of g, with the
    parameters' strides. is_seen: True once an algorithm has x."""

    def __init__(self, module: nn.Module, trusts_versions: bool = False) -> None:
        """trusts_versions: rely on torch's version counter to detect changes of x. It misses changes by NumPy and of
        x.data."""
        self.module, self.trusts_versions = module, trusts_versions
        self.take()

    def take(self) -> None:
        """Make vectors for the parameters that are trained now. Raises ValueError for parameters that do not fit into
        vectors."""
        named = trained(self.module)
        kinds = {(parameter.dtype, parameter.device): name for name, parameter in named.items()}
        if len({device for _, device in kinds}) != 1 or any(dtype.is_complex for dtype, _ in kinds):
            got = ", ".join(f"{name}: {dtype} on {device}" for (dtype, device), name in kinds.items()) or "none"
            raise ValueError(f"model must have trained parameters, real ones on one device, got {got}")
        self.names, self.parameters = list(named), list(named.values())
        self.is_sharded = any(map(is_sharded, self.parameters))
        parts = [local_part(parameter) for parameter in self.parameters]
        self.dtypes = [part.dtype for part in parts]
        self.device = parts[0].device
        self.sizes = [part.numel() for part in parts]
        self.strides = [dense_strides(part) for part in parts]
        self.shapes = [part.shape for part in parts]
        self.layout = [_in_memory(*pair) for pair in zip(self.shapes, self.strides, strict=True)]
        self.is_seen = self._is_lent = False
        self._x, self._values = torch.empty(0), list[Tensor]()
        self._version = 0
        self._buckets = {  # one vector for each dtype
            dtype: torch.zeros(self._length(dtype), dtype=dtype, device=self.device) for dtype in set(self.dtypes)
        }
        self.g = next(iter(self._buckets.values())) if len(self._buckets) == 1 else self._new_vector()
        pieces, ends = list[Tensor](), dict.fromkeys(self._buckets, 0)
        for dtype, size in zip(self.dtypes, self.sizes, strict=True):
            pieces.append(self._buckets[dtype][ends[dtype] : ends[dtype] + size])
            ends[dtype] += size
        self.gradients = self._shaped(pieces)

    def _length(self, dtype: torch.dtype) -> int:
        return sum(size for size, each in zip(self.sizes, self.dtypes, strict=True) if each == dtype)

    def _new_vector(self) -> Tensor:
        """Return an empty vector [d], of the widest dtype."""
        return torch.empty(sum(self.sizes), dtype=reduce(torch.promote_types, self.dtypes), device=self.device)

    def _shaped(self, pieces: Sequence[Tensor]) -> list[Tensor]:
        """Return views of the pieces of a vector, with the shapes and strides of the parameters."""
        forms = zip(pieces, self.shapes, self.strides, strict=True)
        return [piece.as_strided(shape, strides) for piece, shape, strides in forms]

    def bucket_of(self, indices: Sequence[int]) -> Tensor:
        """Return the part of g with the gradients of some parameters, which are adjacent among the parameters of their
        dtype."""
        dtype, first = self.dtypes[indices[0]], indices[0]
        begin = sum(size for size, each in zip(self.sizes[:first], self.dtypes[:first], strict=True) if each == dtype)
        return self._buckets[dtype][begin : begin + sum(self.sizes[index] for index in indices)]

    # Parameters

    @property
    def x(self) -> Tensor:
        """Return the parameters as a vector: within `lent` the vector that the algorithm may change, else a copy."""
        if not self._is_lent:
            return self.copied()
        if not self.is_seen:
            self._check_memory()
            self._x, self.is_seen = self._new_vector(), True
            self._values = self._shaped(self._x.split(self.sizes))
            self.read()
        return self._x

    @property
    def left(self) -> Tensor | None:
        """Return the algorithm's last x, if the parameters are no longer, or not exactly, the same."""
        return self._x.clone() if self.is_seen and not torch.equal(self._x, self.copied()) else None

    def _check_memory(self) -> None:
        """Raise ValueError for parameters in the same memory, whose copies an algorithm may change apart."""
        lying = sorted(
            (part.untyped_storage().data_ptr(), part.storage_offset() * part.element_size(), _reach(part), name)
            for part, name in zip(map(local_part, self.parameters), self.names, strict=True)
            if part.numel()
        )
        for (storage, begin, length, name), (other, next_begin, _, second) in pairwise(lying):
            if storage == other and next_begin < begin + length:
                raise ValueError(f"parameters must not share memory but with algo='sync', got {name} and {second}")

    def _parts(self) -> list[Tensor]:
        if self.is_sharded:
            reshard(self.module)
        return [local_part(parameter).detach() for parameter in self.parameters]

    @torch.no_grad()
    def read(self) -> None:
        """Copy the parameters into x, if an algorithm has it."""
        if self.is_seen:
            _copy(self._values, self._parts())
            self._version = self._x._version

    def write(self) -> None:
        """Copy x into the parameters, unless it is known that the algorithm has not changed it."""
        if self.is_seen and not (self.trusts_versions and self._x._version == self._version):
            self.assign(self._x)
            self._version = self._x._version

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Let an algorithm have x, and maybe change it."""
        self.read()
        self._is_lent = True
        try:
            yield
        finally:
            self._is_lent = False
        self.write()

    @torch.no_grad()
    def copied(self) -> Tensor:
        """Return a copy of the parameters as a vector."""
        vector = self._new_vector()
        _copy(self._shaped(vector.split(self.sizes)), self._parts())
        return vector

    @torch.no_grad()
    def assign(self, vector: Tensor) -> None:
        """Copy a vector into the parameters."""
        _copy(self._parts(), self._shaped(vector.split(self.sizes)))

    # Gradients

    def gather(self, index: int, scale: float = 1.0) -> None:
        """Copy a parameter's gradient into g, times a number; zeros without a gradient."""
        gradient, view = self.parameters[index].grad, self.gradients[index]
        if gradient is None:
            view.zero_()
        elif gradient is view:
            view.mul_(scale)
        else:
            part = local_part(gradient).detach()
            torch.mul(part.to_dense() if part.is_sparse else part, scale, out=view)

    def show(self, index: int) -> None:
        """Make the view of g the gradient of a parameter."""
        parameter, view = self.parameters[index], self.gradients[index]
        if not is_sharded(parameter):
            parameter.grad = view
            return
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        local_part(parameter.grad).copy_(view)

    def collected(self) -> Tensor:
        """Return g, with the present gradients of the parameters."""
        for index, (parameter, view) in enumerate(zip(self.parameters, self.gradients, strict=True)):
            if parameter.grad is not view:
                self.gather(index)
                if parameter.grad is not None:
                    self.show(index)
        if len(self._buckets) > 1:
            _copy(self._shaped(self.g.split(self.sizes)), self.gradients)
        return self.g

    def give(self, g: Tensor) -> None:
        """Make g the gradients of the parameters."""
        if g is self.g:
            return  # which they are
        _copy(self.gradients, self._shaped(g.split(self.sizes)))
        for index, parameter in enumerate(self.parameters):
            if parameter.requires_grad:
                self.show(index)

    # What may change

    def changes(self) -> tuple[list[str], list[str]]:
        """Return the names of newly trained parameters, and of parameters no longer trained.

        Raises ValueError for one that has moved."""
        if self.is_sharded:
            reshard(self.module)
        now, here = trained(self.module), {id(parameter) for parameter in self.parameters}
        for name, parameter, dtype in zip(self.names, self.parameters, self.dtypes, strict=True):
            if parameter.dtype != dtype or local_part(parameter).device != self.device:
                rule = "model must keep its parameters after distribute: call to(), cuda() or half() before it"
                got = f"{name}: {parameter.dtype} on {parameter.device}, before {dtype} on {self.device}"
                raise ValueError(f"{rule}, got {got}")
        trained_now = {id(parameter) for parameter in now.values()}
        new = [name for name, parameter in now.items() if id(parameter) not in here]
        gone = [
            name
            for name, parameter in zip(self.names, self.parameters, strict=True)
            if id(parameter) not in trained_now
        ]
        return new, gone


def trained(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that require gradients, by name."""
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def dense_strides(tensor: Tensor) -> tuple[int, ...]:
    """Return the strides of a copy: the tensor's, if its numbers are dense in memory, else contiguous strides."""
    like = torch.empty_like(tensor, device="meta")
    return like.stride() if like.stride() == tensor.stride() else like.contiguous().stride()


def has_own_numbers(tensor: Tensor) -> bool:
    """Return whether no two indices of a tensor mean the same number in memory."""
    reach = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride < reach:
            return False
        reach += stride * max(size - 1, 0)
    return True


def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    torch._foreach_copy_(targets, sources)  # pyright: ignore[reportPrivateImportUsage]


def as_vector(tensor: Tensor) -> Tensor:
    """Return a dense tensor as a vector that shares its memory."""
    return tensor.as_strided((tensor.numel(),), (1,))


def _reach(tensor: Tensor) -> int:
    """Return the number of bytes from the first to the last number of a tensor in memory."""
    spread = sum(stride * (size - 1) for stride, size in zip(tensor.stride(), tensor.shape, strict=True))
    return (spread + 1) * tensor.element_size()


def _in_memory(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Return a shape with its axes in their order in memory, channels_last for example."""
    return tuple(shape[axis] for axis in sorted(range(len(shape)), key=lambda axis: -strides[axis]))
