"""A module's trained parameters and their gradients as two flat vectors: views of them, or copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce

import torch
from torch import Tensor, nn

from dsgd.torch.placement import local_part, reshard


class FlatModule:
    """Keep the trained parameters of a module in x [d] and their gradients in g [d], each in its own order in memory.

    layout: their shapes, axes in that order. A parameter without a gradient has a zero gradient. copied: x and g are
    copies, not the memory of the parameters: of a sharded module, whose parts on this rank are meant everywhere here,
    and of parameters with several dtypes, whose vectors have the widest. Raises ValueError for parameters of which no
    vector can be made."""

    def __init__(self, module: nn.Module) -> None:
        named = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
        kinds = {(parameter.dtype, parameter.device): name for name, parameter in named}
        if len({device for _, device in kinds}) != 1 or any(dtype.is_complex for dtype, _ in kinds):
            got = ", ".join(f"{name}: {dtype} on {device}" for (dtype, device), name in kinds.items()) or "none"
            raise ValueError(f"model must have trained parameters, real ones on one device, got {got}")
        self.module = module
        self.parameters = [parameter for _, parameter in named]
        parts = [local_part(parameter) for parameter in self.parameters]
        dtypes = {part.dtype for part in parts}
        self.copied = len(dtypes) > 1 or any(part is not p for part, p in zip(parts, self.parameters, strict=True))
        self.sizes = [part.numel() for part in parts]
        self.x = torch.empty(sum(self.sizes), dtype=reduce(torch.promote_types, dtypes), device=parts[0].device)
        self.g = torch.zeros_like(self.x)
        self.layout = [_layout(part) for part in parts]
        self._values, self._gradients = (self._views(vector, parts) for vector in (self.x, self.g))
        self.read()
        for parameter, view, gradient in zip(self.parameters, self._values, self._gradients, strict=True):
            if not self.copied:
                parameter.data, parameter.grad = view, gradient
        self._registered = self._registrations()

    def _views(self, vector: Tensor, parts: list[Tensor]) -> list[Tensor]:
        """Return the views of a vector that have the parameters' shapes and strides."""
        pairs = zip(vector.split(self.sizes), parts, strict=True)
        return [piece.as_strided(part.shape, _strides(part)) for piece, part in pairs]

    def read(self) -> None:
        """Copy the parameters into x."""
        for parameter, view in zip(self.parameters, self._values, strict=True):
            view.copy_(local_part(parameter).detach())

    def write(self) -> None:
        """Copy x into the parameters, where they are not its memory."""
        if self.copied:
            reshard(self.module)
            for parameter, view in zip(self.parameters, self._values, strict=True):
                local_part(parameter).detach().copy_(view)

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Let an optimizer change x through the parameters, by the gradients in g."""
        if self.copied:
            self.write()
            for parameter, gradient in zip(self.parameters, self._gradients, strict=True):
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                local_part(parameter.grad).copy_(gradient)
        yield
        if self.copied:
            self.read()

    def zero(self) -> None:
        """Make all gradients zero."""
        self.g.zero_()
        for parameter in self.parameters if self.copied else ():
            parameter.grad = None

    def gather(self) -> None:
        """Bring gradients that are elsewhere into g: copies', and those that `zero_grad` has let torch make anew."""
        for index in range(len(self.parameters)):
            self.gather_one(index)

    def gather_one(self, index: int) -> None:
        parameter, view = self.parameters[index], self._gradients[index]
        if parameter.grad is not view:
            view.zero_() if parameter.grad is None else view.copy_(local_part(parameter.grad))
            if not self.copied:
                parameter.grad = view

    def _registrations(self) -> list[int]:
        """Return what changes when a parameter is added, replaced or removed, or a trained one moved by `Module.to`."""
        registered = [id(parameter) for module in self.module.modules() for parameter in module._parameters.values()]
        return registered + [local_part(parameter).data_ptr() for parameter in self.parameters]

    def check(self) -> None:
        """Raise ValueError if the module's parameters are not those of the beginning."""
        if self.copied:
            reshard(self.module)
        if self._registrations() != self._registered:
            rule = "model must keep its parameters after distribute: call to(), cuda() or half() before it"
            raise ValueError(f"{rule}, got one that was added, replaced or moved")


class OverlappedMean:
    """Average g over all ranks in buckets, each as soon as a backward pass has finished it.

    wanted: tells before a backward pass whether it is to be averaged. start_mean: starts the mean of a part of g, and
    returns what waits for it."""

    def __init__(
        self,
        flat: FlatModule,
        bucket_bytes: int,
        wanted: Callable[[], bool],
        start_mean: Callable[[Tensor], Callable[[], Tensor]],
    ) -> None:
        self._flat, self._wanted, self._start_mean = flat, wanted, start_mean
        self.done = False  # g holds the mean
        self._parts, self._bucket_of = _buckets(flat, bucket_bytes)
        self._sizes = [self._bucket_of.count(bucket) for bucket in range(len(self._parts))]
        self._waits: list[Callable[[], Tensor]] = []
        self._ready = [0] * len(self._parts)
        self._pass: int | None = None  # number of the backward pass
        for index, parameter in enumerate(flat.parameters):
            parameter.register_post_accumulate_grad_hook(lambda _, index=index: self._accumulated(index))

    def _accumulated(self, index: int) -> None:
        if not self._wanted():
            return
        if self.done:
            raise RuntimeError("backward was called twice before step(): put all but the last into model.no_sync()")
        if self._pass != (current := torch._C._current_graph_task_id()):
            self._wait()  # for the means of a pass that an exception has ended, which no callback has finished
            self._pass = current
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        self._flat.gather_one(index)
        self._ready[self._bucket_of[index]] += 1
        while (at := len(self._waits)) < len(self._parts) and self._ready[at] >= self._sizes[at]:
            self._waits.append(self._start_mean(self._parts[at]))  # in one order on every rank

    def _finish(self) -> None:
        """Average what is left, of parameters without gradients, and wait for everything: the pass has ended."""
        self._flat.gather()
        self._waits += map(self._start_mean, self._parts[len(self._waits) :])
        self._wait()
        self.done, self._pass = True, None

    def _wait(self) -> None:
        for wait in self._waits:
            wait()
        self._waits, self._ready = [], [0] * len(self._parts)


def _buckets(flat: FlatModule, bucket_bytes: int) -> tuple[list[Tensor], list[int]]:
    """Cut g into parts of whole parameters, from the last, whose gradient comes first. Returns the parts, and the part
    of each parameter."""
    parts, bucket_of = list[Tensor](), [0] * len(flat.sizes)
    end = begin = flat.g.numel()
    for index in reversed(range(len(flat.sizes))):
        bucket_of[index] = len(parts)
        begin -= flat.sizes[index]
        if (end - begin) * flat.g.element_size() >= bucket_bytes or begin == 0:
            parts.append(flat.g[begin:end])
            end = begin
    return parts, bucket_of


def _strides(tensor: Tensor) -> tuple[int, ...]:
    """Return the strides of a copy: those of the tensor, if its numbers lie side by side in memory."""
    return torch.empty_like(tensor, device="meta").stride()


def _layout(tensor: Tensor) -> tuple[int, ...]:
    """Return the shape of a tensor with its axes in their order in memory, channels_last for example."""
    strides = _strides(tensor)
    return tuple(tensor.shape[axis] for axis in sorted(range(tensor.dim()), key=lambda axis: -strides[axis]))


def as_vector(tensor: Tensor) -> Tensor:
    """Return a dense tensor as a vector that shares its memory."""
    return tensor.as_strided((tensor.numel(),), (1,))
