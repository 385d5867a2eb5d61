"""Gradients that workers have asked for, and the evaluator that takes one after the other by the module itself, the
reference for all others; also side by side, each on a core of its own.

An evaluator gets all pending gradients at once and may compute them in any grouping; neither order nor grouping may
change a result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from queue import SimpleQueue
from threading import Semaphore
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from dsgd.problem.problem import Problem

T = TypeVar("T")
AHEAD = 2  # calls of each thread whose arguments are there at a time: they hold whole batches


class PendingGradient:
    """Hold the arguments of a gradient until it is evaluated, and then its value.

    snapshot: [d], where to take it, None once it is evaluated. buffers: [nb], a copy that the forward pass may change.
    rank, step: of the batch. value: [d], None until it is evaluated. loss: of the batch, a scalar; None, too, where
    nothing is computed. A tensor, since a checkpoint stores those. arrives: when a GPU has written it; None: at once.
    """

    __slots__ = ("arrives", "buffers", "loss", "rank", "snapshot", "step", "value")

    def __init__(self, rank: int, step: int, snapshot: Tensor, buffers: Tensor) -> None:
        self.rank = rank
        self.step = step
        self.snapshot: Tensor | None = snapshot
        self.buffers = buffers
        self.value: Tensor | None = None
        self.loss: Tensor | None = None
        self.arrives: torch.Event | None = None

    def set(self, value: Tensor, buffers: Tensor, loss: Tensor | None = None) -> None:
        """Set the gradient [d], the buffers [nb] after the forward pass and the loss, and release the snapshot."""
        self.value = value
        self.loss = loss
        self.buffers = buffers
        self.snapshot = None

    def read_loss(self) -> float | None:
        """Return the loss, for which a GPU computes this gradient and those before it, and no others."""
        if self.arrives is not None:
            self.arrives.synchronize()
        return None if self.loss is None else float(self.loss)


class GradientEvaluator(Protocol):
    """Evaluate pending gradients. device: where that happens."""

    device: torch.device

    def evaluate(self, pending: Sequence[PendingGradient]) -> None:
        """Set the value of every pending gradient."""
        ...


class NullEvaluator:
    """Set every gradient to zeros."""

    device = torch.device("cpu")

    def evaluate(self, pending: Sequence[PendingGradient]) -> None:
        for item in pending:
            assert item.snapshot is not None
            item.set(torch.zeros_like(item.snapshot), item.buffers, item.snapshot.new_zeros(()))


class SideBySide:
    """Run calls in `workers` threads, each of which computes with an equal share of torch's threads.

    One worker is the calling thread itself. threads_each: torch threads of a worker. total: threads
    that compute, torch's included. The calling thread should use no
    more for its own sums of vectors: waking idle threads takes longer than the sum.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.threads_each = max(1, torch.get_num_threads() // workers)
        self.total = workers * self.threads_each
        self._pool: ThreadPoolExecutor | None = None
        if workers > 1:
            self._pool = ThreadPoolExecutor(workers, "gradients", torch.set_num_threads, (self.threads_each,))

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


class LoopEvaluator:
    """Evaluate gradients one after the other, or side by side, each by a copy of the module.

    device: where to compute, evaluation of models included. side_by_side: how many gradients at a time. More than one
    is for modules that `serve_side_by_side`, on a CPU. No bit depends on how many."""

    def __init__(self, problem: Problem, device: torch.device | None = None, side_by_side: int = 1) -> None:
        self.problem = problem
        self.device = device or torch.device("cpu")
        problem.live_on(self.device)
        self.threads = SideBySide(side_by_side)
        self._idle = SimpleQueue[Problem]()  # copies with which no thread computes
        for _ in range(side_by_side if side_by_side > 1 else 0):
            self._idle.put(problem.twin())

    def evaluate(self, pending: Sequence[PendingGradient]) -> None:
        if self.threads.workers > 1:
            batch = self.problem.data.batch  # read here, as data sets serve one thread at a time
            self.threads.starmap(self._evaluate, ((item, *batch(item.rank, item.step)) for item in pending))
            return
        for item in pending:
            assert item.snapshot is not None
            x, buffers = item.snapshot.to(self.device), item.buffers.to(self.device)
            computed = *self.problem.gradient_and_loss(x, buffers, item.rank, item.step), buffers
            g, loss, buffers = (part.to(item.snapshot.device) for part in computed)
            item.set(g, buffers, loss)

    def _evaluate(self, item: PendingGradient, inputs: Tensor, targets: Tensor) -> None:
        assert item.snapshot is not None
        problem = self._idle.get()
        try:
            g, loss = problem.gradient_of_batch(item.snapshot, item.buffers, inputs, targets)
        finally:
            self._idle.put(problem)
        item.set(g, item.buffers, loss)
