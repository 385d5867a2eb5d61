"""Reuse the memory of vectors that nobody reads any more.

A vector of 45 MB in fresh memory costs as much time in page faults as in copying. Every tensor made here, and every
view of it, holds a reference to its array, so an array that only the pool refers to has no reader.
"""

from __future__ import annotations

import sys
import threading

import numpy as np
import torch
from torch import Tensor

ALIGNMENT = 64  # bytes, torch's own: some kernels round differently on other addresses
_PROBE = [np.empty(0, np.uint8)]
UNUSED = sys.getrefcount(_PROBE[0])  # of an array that only a list refers to


class VectorPool:
    """Allocate vectors of one dtype, in the memory of earlier ones that are no longer referred to."""

    def __init__(self, dtype: torch.dtype, kept: int) -> None:
        """kept: arrays that stay for reuse; beyond that each vector is allocated and freed."""
        self.dtype = dtype
        self._kept = kept
        self._arrays: list[np.ndarray] = []
        self._lock = threading.Lock()

    def take(self, length: int) -> Tensor:
        """Return a vector [length] of undefined content that nobody else refers to."""
        count = length * self.dtype.itemsize
        with self._lock:
            array = self._unused(count + ALIGNMENT)
            begin = -array.ctypes.data % ALIGNMENT
            return torch.from_numpy(array[begin : begin + count]).view(self.dtype)

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
