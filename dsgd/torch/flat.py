"""A module's trained parameters and their gradients as views of two flat vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

NO_PASS = -1  # number of no backward pass


class FlatModule:
    """Keep the trained parameters of a module in x [d] and their gradients in g [d]. layout: their shapes as they lie
    there.

    A parameter without a gradient has a zero gradient. Raises ValueError for parameters of which no vector can be
    made."""

    def __init__(self, module: nn.Module) -> None:
        named = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
        if not named:
            raise ValueError("model must have parameters that require gradients, got none")
        kinds = {(parameter.dtype, parameter.device): name for name, parameter in named}
        if len(kinds) > 1:
            got = ", ".join(f"{name}: {dtype} on {device}" for (dtype, device), name in kinds.items())
            raise ValueError(f"model must have its trained parameters in one dtype on one device, got {got}")
        ((dtype, device),) = kinds
        if not dtype.is_floating_point:
            raise ValueError(f"model must have parameters of real numbers, got {dtype}")
        self.module = module
        self.parameters = [parameter for _, parameter in named]
        self.sizes = [parameter.numel() for parameter in self.parameters]
        self.x = torch.empty(sum(self.sizes), dtype=dtype, device=device)
        self.g = torch.zeros_like(self.x)
        self.layout = [tuple(_stored(parameter.detach()).shape) for parameter in self.parameters]
        self._views = list(self._views_of(self.g))
        for parameter, view, gradient in zip(self.parameters, self._views_of(self.x), self._views, strict=True):
            view.copy_(parameter.detach())
            parameter.data, parameter.grad = view, gradient
        self._addresses = self._places()
        self._modules = list(module.modules())
        self._registered = self._names()

    def _views_of(self, vector: Tensor) -> Iterator[Tensor]:
        """Yield the views of a vector that have the parameters' shapes and orders in memory."""
        for part, parameter in zip(vector.split(self.sizes), self.parameters, strict=True):
            like = parameter.detach()
            axes = _order(like)
            stored = part.view([like.shape[axis] for axis in axes])
            yield stored.permute([axes.index(axis) for axis in range(like.dim())])

    def gather(self) -> None:
        """Bring gradients that `zero_grad` has let torch put elsewhere back into g."""
        for index in range(len(self.parameters)):
            self.gather_one(index)

    def gather_one(self, index: int) -> None:
        parameter, view = self.parameters[index], self._views[index]
        if parameter.grad is not view:
            view.zero_() if parameter.grad is None else view.copy_(parameter.grad)
            parameter.grad = view

    def frozen(self) -> list[Tensor]:
        return [parameter.detach() for parameter in self.module.parameters() if not parameter.requires_grad]

    def buffers(self) -> list[Tensor]:
        return list(self.module.buffers())

    def _names(self) -> list[object]:
        """Return what tells parameters and layers apart that were added, replaced or removed."""
        names: list[object] = []
        for module in self._modules:
            names += module._parameters.values()
            names.append(len(module._modules))
        return [name if isinstance(name, int) else id(name) for name in names]

    def _places(self) -> list[int]:
        """Return where in memory parameters and views of gradients are, which `Module.to` may change."""
        return [tensor.data_ptr() for tensor in (*self.parameters, *self._views)]

    def check(self) -> None:
        """Raise ValueError if the module's parameters are not those of the beginning."""
        if self._names() != self._registered:
            raise ValueError("model must keep its parameters after distribute, got one that was added or replaced")
        if self._places() != self._addresses:
            raise ValueError("model must stay as it is after distribute: call to(), cuda() or half() before it")


class OverlappedMean:
    """Average g over all ranks in buckets, each as soon as a backward pass has finished it.

    wanted: tells before a backward pass whether it is to be averaged. start_sum: starts the sum of a part of g, and
    returns what waits for it."""

    def __init__(
        self, flat: FlatModule, bucket_bytes: int, nodes: int, start_sum: Callable[[Tensor], Callable[[], Tensor]]
    ) -> None:
        self._flat, self._nodes, self._start_sum = flat, nodes, start_sum
        self.wanted: Callable[[], bool] = lambda: False
        self.done = False  # g holds the mean
        self._parts, self._bucket_of = _buckets(flat, bucket_bytes)
        self._sizes = [self._bucket_of.count(bucket) for bucket in range(len(self._parts))]
        self._waits: list[Callable[[], Tensor]] = []
        self._ready = [0] * len(self._parts)
        self._pass = NO_PASS
        for index, parameter in enumerate(flat.parameters):
            parameter.register_post_accumulate_grad_hook(lambda _, index=index: self._accumulated(index))

    def _accumulated(self, index: int) -> None:
        if not self.wanted():
            return
        if self.done:
            raise RuntimeError(
                "backward was called twice before step(): put all calls but the last into model.no_sync()"
            )
        if self._pass != (current := torch._C._current_graph_task_id()):
            self._drop()
            self._pass = current
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        self._flat.gather_one(index)
        self._ready[self._bucket_of[index]] += 1
        while (at := len(self._waits)) < len(self._parts) and self._ready[at] >= self._sizes[at]:
            self._waits.append(self._start_sum(self._parts[at]))  # in one order on every rank

    def _finish(self) -> None:
        """Average what is left, of parameters without gradients, and wait for everything: the pass has ended."""
        self._flat.gather()
        for part in self._parts[len(self._waits) :]:
            self._waits.append(self._start_sum(part))
        for wait in self._waits:
            wait().div_(self._nodes)
        self.done = True
        self._waits, self._ready, self._pass = [], [0] * len(self._parts), NO_PASS

    def _drop(self) -> None:
        """Wait for the sums of a backward pass that an exception has ended, which no callback finishes."""
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


def _order(tensor: Tensor) -> Sequence[int]:
    """Return the axes in the order in which they lie in memory: that of channels_last, or their own."""
    is_channels_last = tensor.dim() == 4 and not tensor.is_contiguous()
    if is_channels_last and tensor.is_contiguous(memory_format=torch.channels_last):
        return (0, 2, 3, 1)
    return range(tensor.dim())


def _stored(tensor: Tensor) -> Tensor:
    return tensor.permute(*_order(tensor)) if tensor.dim() else tensor


def as_vector(tensor: Tensor) -> Tensor:
    """Return a dense tensor as a vector that shares its memory."""
    return _stored(tensor).reshape(-1)
