"""Stacks side by side: where there are several, a core does more on one of its own than on a share of each."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

KEPT_BYTES = 1 << 30  # freed memory below this size is kept for the next tensor
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


class Lanes:
    """count: calls that go on at once, each in a thread that computes with its share of this thread's cores. A single
    lane is this thread itself."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool: ThreadPoolExecutor | None = None
        if count > 1:
            share = torch.get_num_threads() // count
            self._pool = ThreadPoolExecutor(count, "lane", torch.set_num_threads, (share,))

    def each(self, function: Callable[..., None], *columns: Iterable[Any]) -> None:
        """Call the function with every row of the columns. Raises what it raises."""
        rows = zip(*columns, strict=True)
        if self._pool is None:
            for row in rows:
                function(*row)
        else:
            for _ in self._pool.map(lambda row: function(*row), rows):
                pass


def keep_freed_memory() -> None:
    """Let the next tensors have the memory that the last ones leave, of which the system would clear every page anew:
    each pass through a network needs tens of megabytes and frees them all. For glibc."""
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, KEPT_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
