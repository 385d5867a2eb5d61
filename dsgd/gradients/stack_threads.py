"""Threads that evaluate several stacks at once: a core is faster on a stack of its own than on a share of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch


class StackThreadPool:
    """Run calls in `workers` threads, each of which computes with an equal share of torch's threads.

    One worker is the calling thread itself. threads_each: torch threads of a worker. The calling thread should use no
    more for its own sums of vectors: waking idle threads takes longer than the sum.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.threads_each = torch.get_num_threads() // workers
        self._pool: ThreadPoolExecutor | None = None
        if workers > 1:
            self._pool = ThreadPoolExecutor(workers, "stack", torch.set_num_threads, (self.threads_each,))

    def starmap(self, function: Callable[..., None], rows: Iterable[tuple[Any, ...]]) -> None:
        """Call the function with the arguments in every row, and wait. Raises what it raises."""
        if self._pool is None:
            for row in rows:
                function(*row)
        else:
            for _ in self._pool.map(lambda row: function(*row), rows):
                pass
