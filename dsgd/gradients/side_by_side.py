"""Threads that compute side by side: gradients of different workers, each on a core of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Semaphore
from typing import Any, TypeVar

import torch

T = TypeVar("T")
AHEAD = 2  # calls of each thread whose arguments are there at a time: they hold whole batches


class SideBySide:
    """Run calls in `workers` threads, each of which computes with an equal share of torch's threads.

    One worker is the calling thread itself. threads_each: torch threads of a worker. The calling thread should use no
    more for its own sums of vectors: waking idle threads takes longer than the sum.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.threads_each = max(1, torch.get_num_threads() // workers)
        self._pool: ThreadPoolExecutor | None = None
        if workers > 1:
            self._pool = ThreadPoolExecutor(workers, "gradients", torch.set_num_threads, (self.threads_each,))

    @property
    def total(self) -> int:
        """Return the number of threads that compute, torch's included."""
        return self.workers * self.threads_each

    def share(self, count: int) -> int:
        """Return how many of so many equal pieces to give to one call: small ones, as a core may be slower."""
        return max(1, count if self._pool is None else count // (4 * self.workers))

    def starmap(self, function: Callable[..., T], rows: Iterable[tuple[Any, ...]]) -> list[T]:
        """Return what the function returns for the arguments in every row, which are read in the calling thread.

        All calls have ended when it returns or raises: of several errors that of the first row."""
        if self._pool is None:
            return [function(*row) for row in rows]
        free, futures = Semaphore(AHEAD * self.workers), list[Future[T]]()
        try:
            for row in rows:
                free.acquire()
                futures.append(self._pool.submit(function, *row))
                futures[-1].add_done_callback(lambda _: free.release())
        finally:
            wait(futures)
        return [future.result() for future in futures]
