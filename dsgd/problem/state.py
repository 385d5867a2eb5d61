"""The parameters and buffers of a module as two flat vectors of one worker.

The buffers' vector has the floating-point ones first, as numbers, and after them the bytes of all others (counters,
masks), each byte as a number, which is exact in any precision. Torch's layers become views of the two vectors. A module
with its own code keeps its tensors, and the vectors are copied into them and out of them. So views of them, tensors
that two layers share, and other references of the code remain valid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from dsgd.problem.slots import ModelFailed, Slot, has_own_code, make_slots, real

WORD = 8  # bytes: alignment of buffers that are stored as bytes

BufferLocation = tuple[nn.Module, str]  # of a buffer: its module, and its name there


class ModuleState:
    """The places of a module's parameters and buffers in x [d] and in the buffers' vector [nb].

    parameters: slots of the trained parameters. buffers: slots of the floating-point buffers. others: slots of the
    other buffers, in bytes, after the first `numbers` entries. trained: the parameters with slots. shared: names of
    tensors that share memory, "" if none do. in_place: whether the module keeps its tensors. is_captured: whether
    passes are captured as graphs, which cannot compare values. Raises ModelFailed for a module whose parameters or
    buffers cannot be kept."""

    def __init__(self, module: nn.Module, dtype: torch.dtype, channels_last: bool) -> None:
        self.module = module
        self._places = _places(module)
        self._overlapping = _overlapping(module)
        self.shared = self._overlapping or next((_names(at) for at in self._places if len(at) > 1), "")
        self.in_place = bool(self.shared) or has_own_code(module)
        self.is_captured = False
        if self._overlapping and not _is_of(module, dtype):
            raise ModelFailed(f"precision must keep {self._overlapping}, which share memory, as they are; got {dtype}")

        def converted(tensor: Tensor) -> Tensor:  # a complex one to the complex numbers of the precision
            return tensor.to(dtype.to_complex() if tensor.is_complex() else dtype) if _is_number(tensor) else tensor

        convert: Callable[[Callable[[Tensor], Tensor]], nn.Module] = module._apply
        convert(converted)
        if channels_last and self.in_place:
            module.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        if self.shared:
            self._tie()
        self.parameters = make_slots(module, "_parameters", attrgetter("requires_grad"), channels_last)
        self.buffers = make_slots(module, "_buffers", _is_number)
        self.others = _byte_slots(make_slots(module, "_buffers", lambda tensor: not _is_number(tensor)))
        self.numbers = sum(slot.shape.numel() for slot in self.buffers)
        self._mode: bool | None = None  # training or not, as last set by `train`
        self._attach()

    def _tie(self) -> None:
        """Let buffers that were one tensor be one again."""
        for first, *same in self._places:
            for owner, name in same:
                owner._buffers[name] = first[0]._buffers[first[1]]

    def _attach(self) -> None:
        """Take hold of the module's tensors."""
        if self.shared:
            self._tie()
        self.trained = [tensor for tensor in self.module.parameters() if tensor.requires_grad]
        self._fixed = [
            (path, tensor, tensor._version)
            for path, tensor in self.module.named_parameters()
            if not tensor.requires_grad
        ]
        self._kept = [_buffer(at[0]) for at in self._places]
        self._of_buffers, self._of_others = (
            [_buffer((slot.owner, slot.name)) for slot in slots] for slots in (self.buffers, self.others)
        )
        self._names = self._registered() if self.in_place else {}
        self._bound: tuple[Tensor | None, Tensor | None] = None, None  # the vectors whose views the module has

    def to(self, device: torch.device) -> None:
        """Move the module to a device. Raises ModelFailed for tensors that share memory, which only the CPU keeps."""
        if self._overlapping and device.type != "cpu":
            raise ModelFailed(f"engine.device must be cpu for {self._overlapping}, which share memory, got {device}")
        self.module.to(device)
        self._attach()

    def start(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the initial vectors."""
        x = torch.empty(sum(slot.shape.numel() for slot in self.parameters), dtype=dtype)
        for slot, tensor in zip(self.parameters, self.trained, strict=True):
            slot.view(x).copy_(real(tensor.detach()))
        buffers = torch.zeros(self.numbers + sum(word_count(slot) for slot in self.others) * WORD, dtype=dtype)
        self._store(buffers)
        return x, buffers

    @torch.no_grad()
    def bind(self, x: Tensor, buffers: Tensor) -> None:
        """Give the module the parameters x [d] and the buffers [nb]. Views of a vector are made once while it stays
        bound: hundreds of views take a millisecond."""
        bound_x, bound_buffers = self._bound
        if not self.in_place:
            if x is not bound_x:
                for slot in self.parameters:
                    slot.owner._parameters[slot.name].data = slot.view(x)  # pyright: ignore[reportOptionalMemberAccess]
            if buffers is not bound_buffers:
                self._bytes = buffers[self.numbers :].to(torch.uint8)
                for slot in self.buffers:
                    slot.owner._buffers[slot.name] = slot.view(buffers)
                for slot, tensor in zip(self.others, self._of_others, strict=True):
                    slot.owner._buffers[slot.name] = self._decoded(slot, tensor)
            elif self.others:
                self._bytes.copy_(buffers[self.numbers :])
            self._bound = x, buffers
            return
        self._bytes = buffers[self.numbers :].to(torch.uint8)
        for at, tensor in zip(self._places, self._kept, strict=True):
            for owner, name in at:
                if owner._buffers[name] is not tensor:
                    owner._buffers[name] = tensor
        _copy([real(tensor.detach()) for tensor in self._of_buffers], [slot.view(buffers) for slot in self.buffers])
        for slot, tensor in zip(self.others, self._of_others, strict=True):
            tensor.copy_(self._decoded(slot, tensor))
        # last, for a buffer that is a view of a parameter
        _copy([real(tensor.detach()) for tensor in self.trained], [slot.view(x) for slot in self.parameters])

    def release(self) -> None:
        """Have the next pass make new views: a CUDA graph owns only the memory that it allocates itself."""
        self._bound = None, None

    def train(self, mode: bool) -> None:
        """Put the module into training or evaluation mode. Torch's layers stay in their mode; a module's own code may
        change a layer's mode, so it is set again."""
        if self.in_place or mode != self._mode:
            self.module.train(mode)
        self._mode = mode

    @torch.no_grad()
    def keep(self, x: Tensor, buffers: Tensor) -> None:
        """Write a pass's changes of the module back into the bound vectors. Raises ModelFailed if they do not fit."""
        if not self.in_place:
            if self.others:
                buffers[self.numbers :].copy_(self._bytes)
            return
        self._check()
        self._store(buffers)
        if self.is_captured:
            return  # the module was seen to leave its parameters alone
        for slot, tensor in zip(self.parameters, self.trained, strict=True):
            before, after = slot.view(x), real(tensor.detach())
            if not torch.equal(before, after):
                before.copy_(after)

    def gradients_into(self, g: Tensor) -> None:
        """Write the gradients of the trained parameters into g [d], zeros for parameters without a gradient."""
        for slot, tensor in zip(self.parameters, self.trained, strict=True):
            if tensor.grad is None:
                slot.view(g).zero_()
            else:
                slot.view(g).copy_(real(dense(tensor.grad)))

    def forget_gradients(self) -> None:
        for tensor in self.trained:
            tensor.grad = None

    def mean(self, buffers: Sequence[Tensor]) -> Tensor:
        """Return the mean of the buffers [nb] of several workers, added in order of rank. Counters and masks are the
        first worker's."""
        total = mean(buffers)
        total[self.numbers :] = buffers[0][self.numbers :]
        return total

    def _decoded(self, slot: Slot, tensor: Tensor) -> Tensor:
        first = slot.start
        return self._bytes[first : first + slot.shape.numel()].view(tensor.dtype).view(tensor.shape)

    def _store(self, buffers: Tensor) -> None:
        """Write the module's buffers into their vector."""
        for slot in self.buffers:
            slot.view(buffers).copy_(real(_buffer((slot.owner, slot.name)).detach()))
        for slot in self.others:
            encoded = _buffer((slot.owner, slot.name)).contiguous().reshape(-1).view(torch.uint8)
            first = self.numbers + slot.start
            buffers[first : first + slot.shape.numel()].copy_(encoded)

    def _registered(self) -> dict[str, object]:
        """Return {name: identity of the parameter, or shape and type of the buffer} of the module."""
        registered: dict[str, object] = {path: id(parameter) for path, parameter in self.module.named_parameters()}
        for prefix, owner in self.module.named_modules():
            for name, buffer in owner._buffers.items():
                registered[f"{prefix}.{name}" if prefix else name] = (
                    None if buffer is None else (buffer.shape, buffer.dtype)
                )
        return registered

    def _check(self) -> None:
        """Raise ModelFailed if a pass has changed state that the vectors do not hold."""
        if (now := self._registered()) != self._names:
            changed = next(path for path in {**now, **self._names} if now.get(path, "") != self._names.get(path, ""))
            rule = "must be the same parameter, or a buffer of the same shape and type, after every pass"
            raise ModelFailed(f"the model's {changed} {rule}; register it as it will be")
        for path, tensor, version in self._fixed:
            if tensor._version != version:
                raise ModelFailed(f"the model's {path} must be a buffer, not a fixed parameter, to change in training")
        for at in self._places:
            if any(_buffer(other) is not _buffer(at[0]) for other in at[1:]):
                raise ModelFailed(f"the model's buffers {_names(at)} must stay one tensor; change it in place")


def mean(vectors: Sequence[Tensor]) -> Tensor:
    """Return the mean of vectors [d], added in order of rank."""
    total = vectors[0].clone()
    for vector in vectors[1:]:
        total.add_(vector)
    return total.div_(len(vectors))


def dense(gradient: Tensor) -> Tensor:
    """Return a gradient as a dense tensor. Embeddings may give sparse ones."""
    return gradient if gradient.layout == torch.strided else gradient.to_dense()


def _names(at: Sequence[BufferLocation]) -> str:
    return " and ".join(f"{type(owner).__name__}.{name}" for owner, name in at)


def _buffer(location: BufferLocation) -> Tensor:
    owner, name = location
    buffer = owner._buffers[name]
    assert buffer is not None
    return buffer


def _copy(to: list[Tensor], source: list[Tensor]) -> None:
    if to:
        torch._foreach_copy_(to, source)  # pyright: ignore[reportPrivateImportUsage]


def _is_number(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def word_count(slot: Slot) -> int:
    """Return the number of words of a slot of bytes."""
    return -(-slot.shape.numel() // WORD)


def _byte_slots(slots: Sequence[Slot]) -> list[Slot]:
    """Return slots of bytes for buffers that are no numbers, each at the beginning of a word."""
    byte_slots, start = list[Slot](), 0
    for slot in slots:
        buffer = _buffer((slot.owner, slot.name))
        byte_slots.append(
            Slot(slot.owner, slot.name, slot.path, start, torch.Size((buffer.numel() * buffer.element_size(),)))
        )
        start += word_count(byte_slots[-1]) * WORD
    return byte_slots


def _places(module: nn.Module) -> list[list[BufferLocation]]:
    """Return for every buffer the places at which it is registered. A buffer whose entries share memory becomes a copy
    that has memory for each."""
    places: dict[int, list[BufferLocation]] = {}
    for owner in module.modules():
        for name, buffer in owner._buffers.items():
            if buffer is not None:
                places.setdefault(id(buffer), []).append((owner, name))
    for at in places.values():
        if torch._debug_has_internal_overlap(_buffer(at[0])) == 1:  # pyright: ignore[reportPrivateImportUsage]
            alone = _buffer(at[0]).detach().clone(memory_format=torch.contiguous_format)
            for owner, name in at:
                owner._buffers[name] = alone
    return list(places.values())


def _overlapping(module: nn.Module) -> str:
    """Return two names of parameters, buffers or other tensors of a module that share memory; "" if none do. Raises
    ModelFailed if both are trained."""
    extents = list[tuple[int, int, str, bool]]()
    seen = set[int]()
    for prefix, owner in module.named_modules():
        for name, tensor in _tensors_of(owner):
            if (
                id(tensor) in seen
                or is_lazy(tensor)
                or tensor.is_meta
                or tensor.layout != torch.strided
                or not tensor.numel()
            ):
                continue
            seen.add(id(tensor))
            extent = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
            begin = tensor.data_ptr()
            path = f"{prefix}.{name}" if prefix else name
            trained = name in owner._parameters and tensor.requires_grad
            extents.append((begin, begin + extent * tensor.element_size(), path, trained))
    names = ""
    reach = 0, "", False  # of earlier tensors: the end of the last one
    for begin, end, path, trained in sorted(extents):
        if begin < reach[0]:
            if trained and reach[2]:
                rule = "must each have memory of its own, or be one parameter"
                both = " and ".join(sorted((reach[1], path)))
                raise ModelFailed(f"the model's {both} {rule}; they share theirs")
            names = names or f"{reach[1]} and {path}"
        if end > reach[0]:
            reach = end, path, trained
    return names


def _tensors_of(owner: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters and buffers of a module without its parts, and the tensors among its other attributes."""
    kept = {name: value for name, value in vars(owner).items() if name not in ("_parameters", "_buffers", "_modules")}
    for name, value in (*owner._parameters.items(), *owner._buffers.items(), *kept.items()):
        several = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
        yield from ((name, each) for each in several if isinstance(each, Tensor))


def _is_of(module: nn.Module, dtype: torch.dtype) -> bool:
    """Return whether a module needs no conversion."""
    tensors = [*module.parameters(), *module.buffers()]
    return all(tensor.dtype in (dtype, dtype.to_complex()) for tensor in tensors if _is_number(tensor))
