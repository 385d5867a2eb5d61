"""Loads a worker's batches onto its devices, the next one while the devices compute with the current one."""

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
    """Data that stay 8-bit until they are on the device: a quarter of the bytes to copy, and no CPU work."""

    scale: Tensor  # [channels, 1, 1] fp64: inputs are pixels * scale + shift
    shift: Tensor

    def pixels(self, rank: int, step: int, pinned: bool = False) -> tuple[Tensor, Tensor]:
        """Return a batch like `Data.batch`, but with inputs [b, *input_shape] uint8. pinned: use page-locked memory."""
        ...


def normalised(pixels: Tensor, data: Pixels, dtype: torch.dtype) -> Tensor:
    """Convert pixels [b, *input_shape] uint8 to inputs [b, *input_shape] on the same device."""
    scale, shift = (part.to(pixels.device, dtype) for part in (data.scale, data.shift))
    return torch.addcmul(shift, pixels.to(dtype), scale)


@dataclass(frozen=True)
class Batch:
    """A device's slice of a batch. arrives: the end of its copy to the device; None on a CPU."""

    inputs: Tensor
    targets: Tensor
    arrives: torch.Event | None

    def __len__(self) -> int:
        return len(self.inputs)

    def wait(self) -> None:
        """Make later work of this thread on the device wait for the copy."""
        if self.arrives is not None:
            computing = torch.accelerator.current_stream(self.inputs.device)
            computing.wait_event(self.arrives)
            for tensor in (self.inputs, self.targets):
                tensor.record_stream(computing)


class Batches:
    """Loads batches for one thread. devices: each gets an equal slice of a batch.

    For GPUs a batch is decoded into pinned memory, copied and normalised in a separate thread, on separate streams."""

    def __init__(self, data: Data, dtype: torch.dtype, devices: Sequence[torch.device]) -> None:
        self._data = data
        self._dtype = dtype
        self._devices = devices
        self._streams = [torch.Stream(device) if device.type != "cpu" else None for device in devices]
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batches")  # starts no thread before its first task
        self._ahead: tuple[tuple[int, int], Future[list[Batch]]] | None = None

    def prefetch(self, rank: int, step: int) -> None:
        """Start loading the batch that `get` will be called for next."""
        self._ahead = (rank, step), self._thread.submit(self._load, rank, step)

    def get(self, rank: int, step: int) -> list[Batch]:
        """Return the slices of a batch; a device without samples has no slice."""
        if self._ahead is None:
            return self._load(rank, step)
        (expected, coming), self._ahead = self._ahead, None
        batch = coming.result()  # also if another batch is wanted: data serve one thread at a time
        return batch if expected == (rank, step) else self._load(rank, step)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _load(self, rank: int, step: int) -> list[Batch]:
        data, count = self._data, len(self._devices)
        to_gpus = self._streams[0] is not None
        whole = data.pixels(rank, step, True) if to_gpus and isinstance(data, Pixels) else data.batch(rank, step)
        slices = zip(*(part.tensor_split(count) for part in whole), strict=True)
        return [self._put(index, *part) for index, part in enumerate(slices) if len(part[0])]

    def _put(self, index: int, inputs: Tensor, targets: Tensor) -> Batch:
        stream, device = self._streams[index], self._devices[index]
        if stream is None:
            return Batch(inputs, targets, None)
        with stream:
            pinned = (part if part.is_pinned() else part.pin_memory() for part in (inputs, targets))
            inputs, targets = (part.to(device, non_blocking=True) for part in pinned)
            if inputs.dtype == torch.uint8 and isinstance(self._data, Pixels):
                inputs = normalised(inputs, self._data, self._dtype)
            return Batch(inputs, targets, stream.record_event())
