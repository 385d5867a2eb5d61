"""Memory for vectors that other threads may still be reading, and the snapshot that peers pull.

A vector of 45 MB in fresh memory costs as much time in page faults as in copying, so memory is used again, but only
when nobody can see it any more: every tensor made here keeps a reference to the array below it, and so does every view
of it, so an array that only the pool refers to has no reader.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

ALIGNMENT = 64  # bytes, torch's own: some kernels round differently on other addresses
_PROBE = [np.empty(0, np.uint8)]
UNUSED = sys.getrefcount(_PROBE[0])  # of an array that only a list refers to


class Buffers:
    """Hands out vectors of one dtype, with the memory of former ones where nobody holds these."""

    def __init__(self, dtype: torch.dtype, kept: int) -> None:
        """kept: of how many vectors memory is kept for reuse; beyond that it is allocated and freed each time."""
        self._dtype = dtype
        self._kept = kept
        self._arrays: list[np.ndarray] = []
        self._lock = threading.Lock()

    def take(self, length: int) -> Tensor:
        """A vector [length] of undefined content that nobody else has."""
        count = length * self._dtype.itemsize
        with self._lock:
            array = self._unused(count + ALIGNMENT)
            begin = -array.ctypes.data % ALIGNMENT
            return torch.from_numpy(array[begin : begin + count]).view(self._dtype)

    def _unused(self, count: int) -> np.ndarray:
        arrays = self._arrays
        free = [i for i in range(len(arrays)) if sys.getrefcount(arrays[i]) == UNUSED]
        for i in free:
            if len(arrays[i]) == count:
                return arrays[i]
        array = np.empty(count, np.uint8)
        if len(arrays) < self._kept:
            arrays.append(array)
        elif free:
            arrays[free[0]] = array
        return array


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """A published vector [d], never changed again, and the steps of its maker at that time."""

    vector: Tensor
    steps: int


class Published:
    """The last snapshot. One thread publishes, many read; nobody waits for anybody, except for the first snapshot."""

    def __init__(self, dtype: torch.dtype, readers: int) -> None:
        self._buffers = Buffers(dtype, readers + 2)  # the latest, the one being written, one for every slow reader
        self._latest: Snapshot | None = None
        self._first = threading.Event()

    def publish(self, x: Tensor, steps: int) -> None:
        """Copy x [d] into memory that no reader holds and make it the latest."""
        vector = self._buffers.take(len(x))
        vector.copy_(x.detach())
        self._latest = Snapshot(vector, steps)
        self._first.set()

    def latest(self, patience_s: float) -> Snapshot | None:
        """The last snapshot; None when there was none for patience_s. Hold it for as long as it is read, no longer."""
        self._first.wait(patience_s)
        return self._latest

    def close(self) -> None:
        """Let nobody wait any longer for a first snapshot."""
        self._first.set()
