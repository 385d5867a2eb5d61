"""Room for the vectors that a coordinator receives: memory up to a limit, then files."""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

LEAST_BYTES = 1 << 20  # of a vector in a file


class Spool:
    """Vectors beyond the limit are pages of files without a name, which the system writes out where memory is scarce. A
    file is gone with its vector, or with this process. Any thread may drop vectors; one asks for them."""

    def __init__(self, folder: Path, limit: int, log: Callable[[str], None]) -> None:
        """folder: of the files. limit: bytes of all vectors in memory."""
        self._folder = folder
        self._limit = limit
        self._log = log
        self._lock = threading.RLock()  # a collection of garbage may free vectors anywhere
        self._held = 0  # bytes of the vectors in memory
        self._has_failed = False

    def empty(self, length: int, dtype: torch.dtype) -> Tensor:
        """Return a vector [length] of this type, with any contents."""
        nbytes = length * dtype.itemsize
        if self._held + nbytes > self._limit and nbytes >= LEAST_BYTES and not self._has_failed:
            try:
                return self._in_file(nbytes).view(dtype)
            except OSError as error:
                self._has_failed = True
                self._log(f"models wait in memory, not in {self._folder}: {error.strerror}")
        vector = torch.empty(length, dtype=dtype)
        with self._lock:
            self._held += nbytes
        weakref.finalize(vector, self._free, nbytes)
        return vector

    def _free(self, nbytes: int) -> None:
        with self._lock:
            self._held -= nbytes

    def _in_file(self, nbytes: int) -> Tensor:
        """Return a tensor of bytes. Raises OSError if there is no room for them."""
        with tempfile.TemporaryFile(dir=self._folder) as file:
            os.posix_fallocate(file.fileno(), 0, nbytes)  # a page without room on the disk would end the process
            return torch.frombuffer(mmap.mmap(file.fileno(), nbytes), dtype=torch.uint8)
