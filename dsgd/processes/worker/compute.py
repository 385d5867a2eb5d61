"""The thread in which one worker computes all its gradients, and averages those of `mean_gradient` as they come."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from dsgd.problem.precision import compiling
from dsgd.problem.problem import Problem
from dsgd.processes.worker.batches import Batch, Batches
from dsgd.processes.worker.collectives import Groups, collective, finish
from dsgd.processes.worker.replicas import Chunk, InOrder, cut, replicate

# of a third of the vector, within limits: smaller chunks cost more time each, with larger ones less overlaps
CHUNKS, LEAST_CHUNK_BYTES, CHUNK_BYTES = 3, 256 << 10, 16 << 20


class Compute:
    """Gradients of a problem, one after the other in the order of the calls, in a thread of its own.

    devices: where to compute; points, buffers and gradients are on the first. Several devices share a batch in equal
    slices, and what they find is averaged onto the first before anybody else sees it; so are the buffers.
    busy_s: seconds spent in finished forward and backward passes. spans: their (begin, end) by time.monotonic(), or
    None without `trace`.
    """

    def __init__(
        self, problem: Problem, devices: Sequence[torch.device], groups: Groups, *, trace: bool = False
    ) -> None:
        self.busy_s = 0.0
        self.spans: list[tuple[float, float]] | None = [] if trace else None
        self._problem = problem
        self._groups = groups
        share = max(LEAST_CHUNK_BYTES, problem.start.nbytes // CHUNKS)
        self._chunks = cut(problem, min(CHUNK_BYTES, share))
        self._replicas = replicate(problem, devices, self._chunks)
        self._batches = Batches(problem.data, problem.dtype, devices)
        self._prefetches = devices[0].type != "cpu"  # there is nothing beside the computation on a CPU
        # a new thread computes with all cores until it has asked how many threads torch was told to use
        threads = partial(ThreadPoolExecutor, initializer=torch.get_num_threads)
        self._thread = threads(1, thread_name_prefix="compute")
        self._others = threads(len(devices), thread_name_prefix="replica")  # starts none before its first task

    def gradient(self, at: Tensor, buffers: Tensor, rank: int, step: int) -> Future[Tensor]:
        """Gradient [d] at the point `at` [d] of the batch of worker `rank` at its own step, weight decay included.
        Changes the buffers [nb] in place. `at` must not be changed until the answer is there."""
        return self._thread.submit(self._gradient, at, buffers, rank, step, 1)

    def mean_gradient(self, at: Tensor, buffers: Tensor, rank: int, step: int) -> Future[Tensor]:
        """The mean [d] over all workers of their `gradient`, the same bits everywhere; communication begins while the
        backward pass goes on. All workers must make the same calls in the same order. The future may raise
        CollectiveFailed."""
        return self._thread.submit(self._gradient, at, buffers, rank, step, self._groups.nodes)

    def warm_up(self, at: Tensor, buffers: Tensor, rank: int, step: int) -> None:
        """Compute one gradient that nobody gets and no clock counts: what is loaded or tuned on first use is not
        training. Changes nothing. Raises Unsuitable for a module that cannot be compiled."""
        problem = self._problem
        with compiling(type(problem.module).__name__) if problem.compiled else nullcontext():
            self.gradient(at, buffers.clone(), rank, step).result()
        self.busy_s = 0.0
        if self.spans is not None:
            self.spans.clear()

    def close(self) -> None:
        """End the thread: what has not begun is cancelled, what has is waited for, at most up to the time limit of the
        groups. The problem's module is as it was."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._others.shutdown()
        self._batches.close()
        for replica in self._replicas:
            replica.close()

    def _gradient(self, at: Tensor, buffers: Tensor, rank: int, step: int, workers: int) -> Tensor:
        began = time.monotonic()
        before = buffers.clone()
        batches = self._batches.get(rank, step)
        if self._prefetches:
            self._batches.prefetch(rank, step + 1)
        scales = iter(self._problem.loss_scales)
        while True:
            scale = next(scales)
            g = self._pass(at, buffers, batches, f"all-reduce of step {step}", workers, scale, began)
            # an overflow anywhere is in everybody's mean: all agree to repeat the pass
            if scale == 1 or bool(g.isfinite().all()):
                return g
            buffers.copy_(before)
            began = time.monotonic()

    def _pass(
        self,
        at: Tensor,
        buffers: Tensor,
        batches: Sequence[Batch],
        reduction: str,
        workers: int,
        scale: float,
        began: float,
    ) -> Tensor:
        """The gradient [d] by a backward pass through `scale` times the loss, averaged over the workers. began: when
        the computation did, by time.monotonic()."""
        replicas = self._replicas[: len(batches)]
        samples = sum(map(len, batches))
        # shares of the mean: in the loss nothing has to be multiplied afterwards, unless the loss is scaled anyway
        shares = [len(batch) / samples / workers for batch in batches]
        weights, factors = (shares, [1.0] * len(shares)) if scale == 1 else ([scale] * len(shares), shares)
        statistics = [buffers, *(buffers.to(replica.device, copy=True) for replica in replicas[1:])]
        g = torch.empty_like(at)
        reductions: list[dist.Work] = []

        def hand_on(chunk: Chunk) -> None:
            part = g[chunk.begin : chunk.end]
            replicas[0].collect(chunk, factors[0] / scale, 1 / workers, part)
            for replica, factor in zip(replicas[1:], factors[1:], strict=True):
                other = torch.empty_like(part, device=replica.device)
                replica.collect(chunk, factor / scale, 0, other)
                part.add_(other.to(g.device))
            if workers > 1:
                with collective(self._groups.rank, reduction):
                    work = dist.all_reduce(part, group=self._groups.gradients, async_op=True)
                assert work is not None  # none only for those who are not in the group
                reductions.append(work)

        turns = InOrder(self._chunks, len(replicas), hand_on)

        def run(place: int) -> None:
            replica = replicas[place]
            replica.run(at.to(replica.device), statistics[place], batches[place], weights[place], turns.report)

        if len(replicas) == 1:
            run(0)
        else:
            list(self._others.map(run, range(len(replicas))))
            buffers.copy_(torch.stack([of.to(buffers.device) for of in statistics]).mean(dim=0))
        turns.flush()
        finish(g.device)
        ended = time.monotonic()
        self.busy_s += ended - began
        if self.spans is not None:
            self.spans.append((began, ended))
        with collective(self._groups.rank, reduction):
            for work in reductions:
                work.wait()
        finish(g.device)
        return g
