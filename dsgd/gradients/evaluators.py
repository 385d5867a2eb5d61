"""Pending gradients, and the evaluator that computes them by the module itself: the reference for all other evaluators.
It computes them one after the other, or in parallel, each on its own core.

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

    snapshot: [d], the point of the gradient, None once it is evaluated. buffers: [nb], a copy that the forward pass may
    change. rank, step: worker and step of the batch. value: [d], None until it is evaluated. loss: loss of the batch, a
    scalar tensor, because a checkpoint stores tensors; None if nothing is computed. arrives: event after which the GPU
    has written the loss; None: it is already written."""

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
        """Return the loss. Waits for the GPU to compute this gradient and earlier ones, not later ones."""
        if self.arrives is not None:
            self.arrives.synchronize()
        return None if self.loss is None else float(self.loss)


class GradientEvaluator(Protocol):
    """Evaluate pending gradients. device: device of the evaluation."""

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
    """Run calls in `workers` threads. Each computes with an equal share of torch's threads.

    One worker is the calling thread itself. threads_each: torch threads of a worker. total: computing threads, torch's
    included. The calling thread should use no more for its own sums of vectors: waking threads takes longer."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.threads_each = max(1, torch.get_num_threads() // workers)
        self.total = workers * self.threads_each
        self._pool: ThreadPoolExecutor | None = None
        if workers > 1:
            self._pool = ThreadPoolExecutor(workers, "gradients", torch.set_num_threads, (self.threads_each,))

    def share(self, count: int) -> int:
        """Return the number of pieces for one call, of `count` equal pieces: few, because a core may be slower."""
        return max(1, count if self._pool is None else count // (4 * self.workers))

    def starmap(self, function: Callable[..., T], rows: Iterable[tuple[Any, ...]]) -> list[T]:
        """Return the results of the function for the arguments in every row; rows are read in the calling thread.

        All calls have ended when it returns or raises. If several calls fail, it raises the error of the first row."""
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
    """Evaluate gradients one after the other, or in parallel, each by a copy of the module.

    device: device of gradients and of evaluations. side_by_side: number of parallel gradients; more than one needs a
    module that `serves_side_by_side`, on a CPU. No bit depends on the number."""

    def __init__(self, problem: Problem, device: torch.device | None = None, side_by_side: int = 1) -> None:
        self.problem = problem
        self.device = device or torch.device("cpu")
        problem.live_on(self.device)
        self.threads = SideBySide(side_by_side)
        self._idle = SimpleQueue[Problem]()  # idle copies
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
