"""The batches of one worker on its devices, the next one on its way while the devices compute with this one."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from dsgd.data import Data


@runtime_checkable
class Pixels(Protocol):
    """Data that are 8-bit until they are on the device: a quarter of the bytes on the way, and no work for the CPU."""

    scale: Tensor  # [channels, 1, 1] fp64: inputs are pixels * scale + shift
    shift: Tensor

    def pixels(self, rank: int, step: int, pinned: bool = False) -> tuple[Tensor, Tensor]:
        """As `Data.batch`, with inputs [b, *input_shape] uint8. pinned: in memory that devices copy from."""
        ...


def normalised(pixels: Tensor, data: Pixels, dtype: torch.dtype) -> Tensor:
    """Inputs [b, *input_shape] of pixels [b, *input_shape] uint8, where these are."""
    scale, shift = (part.to(pixels.device, dtype) for part in (data.scale, data.shift))
    return torch.addcmul(shift, pixels.to(dtype), scale)


@dataclass(frozen=True)
class Batch:
    """A device's slice of a batch. arrives: when the copy to the device ends; None on a CPU, where it is there."""

    inputs: Tensor
    targets: Tensor
    arrives: torch.cuda.Event | None

    def __len__(self) -> int:
        return len(self.inputs)

    def wait(self) -> None:
        """Let what this thread asks of the device from now on come after the copy."""
        if self.arrives is not None:
            computing = torch.cuda.current_stream(self.inputs.device)
            computing.wait_event(self.arrives)
            for tensor in (self.inputs, self.targets):
                tensor.record_stream(computing)


class Batches:
    """For a thread that asks for one step after the other. devices: each gets an equal slice of a batch.

    On GPUs what a batch needs happens in a thread and on streams of its own: decoding into pinned memory, the copy to
    the device and the normalisation there."""

    def __init__(self, data: Data, dtype: torch.dtype, devices: Sequence[torch.device]) -> None:
        self._data = data
        self._dtype = dtype
        self._devices = devices
        self._streams = [torch.cuda.Stream(device) if device.type == "cuda" else None for device in devices]
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batches")  # starts none before its first task
        self._ahead: tuple[tuple[int, int], Future[list[Batch]]] | None = None

    def prefetch(self, rank: int, step: int) -> None:
        """Begin with a batch that will be asked for next."""
        self._ahead = (rank, step), self._thread.submit(self._load, rank, step)

    def get(self, rank: int, step: int) -> list[Batch]:
        """Of every device that gets any of it."""
        if self._ahead is None:
            return self._load(rank, step)
        (expected, coming), self._ahead = self._ahead, None
        found = coming.result()  # even where another one is wanted: data serve one thread at a time
        return found if expected == (rank, step) else self._load(rank, step)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _load(self, rank: int, step: int) -> list[Batch]:
        data, count = self._data, len(self._devices)
        to_gpus = self._streams[0] is not None
        whole = data.pixels(rank, step, True) if to_gpus and isinstance(data, Pixels) else data.batch(rank, step)
        slices = zip(*(part.tensor_split(count) for part in whole), strict=True)
        return [self._put(place, *part) for place, part in enumerate(slices) if len(part[0])]

    def _put(self, place: int, inputs: Tensor, targets: Tensor) -> Batch:
        stream, device = self._streams[place], self._devices[place]
        if stream is None:
            return Batch(inputs, targets, None)
        with torch.cuda.stream(stream):
            pinned = (part if part.is_pinned() else part.pin_memory() for part in (inputs, targets))
            inputs, targets = (part.to(device, non_blocking=True) for part in pinned)
            if inputs.dtype == torch.uint8 and isinstance(self._data, Pixels):
                inputs = normalised(inputs, self._data, self._dtype)
            arrives = torch.cuda.Event()
            arrives.record(stream)
            return Batch(inputs, targets, arrives)
