"""Computes a worker's gradients in a thread of its own, and all-reduces mean gradients during the backward pass."""

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
from dsgd.processes.worker.replicas import GradientBucket, InOrderReducer, make_buckets, replicate

# a third of the vector, within limits: small buckets have more overhead, large ones less overlap
BUCKETS, MIN_BUCKET_BYTES, MAX_BUCKET_BYTES = 3, 256 << 10, 16 << 20


class Compute:
    """Computes gradients of a problem in the order of the calls, in a thread of its own.

    devices: points, buffers and gradients are on the first. Several devices get equal slices of a batch, and their
    gradients and buffers are averaged on the first. busy_s: seconds spent in finished forward and backward passes.
    spans: their (begin, end) by time.monotonic(), or None without `trace`.
    """

    def __init__(
        self, problem: Problem, devices: Sequence[torch.device], groups: Groups, *, trace: bool = False
    ) -> None:
        self.busy_s = 0.0
        self.spans: list[tuple[float, float]] | None = [] if trace else None
        self._problem = problem
        self._groups = groups
        bucket_bytes = max(MIN_BUCKET_BYTES, problem.start.nbytes // BUCKETS)
        self._buckets = make_buckets(problem, min(MAX_BUCKET_BYTES, bucket_bytes))
        self._replicas = replicate(problem, devices, self._buckets)
        self._batches = Batches(problem.data, problem.dtype, devices)
        self._prefetches = devices[0].type != "cpu"  # on a CPU it would only compete with the computation
        # a new thread computes with all cores until it has asked how many threads torch was told to use
        threads = partial(ThreadPoolExecutor, initializer=torch.get_num_threads)
        self._thread = threads(1, thread_name_prefix="compute")
        self._others = threads(len(devices), thread_name_prefix="replica")  # starts no thread before its first task

    def gradient(self, at: Tensor, buffers: Tensor, rank: int, step: int) -> Future[Tensor]:
        """Compute the gradient [d] at the point `at` [d] of worker `rank`'s batch of `step`, weight decay included.
        Updates the buffers [nb] in place. `at` must not change until the future is done."""
        return self._thread.submit(self._gradient, at, buffers, rank, step, 1)

    def mean_gradient(self, at: Tensor, buffers: Tensor, rank: int, step: int) -> Future[Tensor]:
        """Compute the mean [d] over all workers of their `gradient`, bitwise equal in all of them; communication
        overlaps with the backward pass. All workers must make the same calls in the same order. The future may raise
        CollectiveFailed."""
        return self._thread.submit(self._gradient, at, buffers, rank, step, self._groups.nodes)

    def warm_up(self, at: Tensor, buffers: Tensor, rank: int, step: int) -> None:
        """Compute a gradient outside of the run's time, for what is loaded or tuned on first use. Changes nothing.
        Raises Unsuitable for a module that cannot be compiled."""
        problem = self._problem
        with compiling(type(problem.module).__name__) if problem.compiled else nullcontext():
            self.gradient(at, buffers.clone(), rank, step).result()
        self.busy_s = 0.0
        if self.spans is not None:
            self.spans.clear()

    def close(self) -> None:
        """End the thread. Calls that have not begun are cancelled; one that has is waited for, at most for the time
        limit of the groups. Restores the problem's module."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._others.shutdown()
        self._batches.close()
        for replica in self._replicas:
            replica.close()

    def _gradient(self, at: Tensor, buffers: Tensor, rank: int, step: int, workers: int) -> Tensor:
        began = time.monotonic()
        start_buffers = buffers.clone()
        batches = self._batches.get(rank, step)
        if self._prefetches:
            self._batches.prefetch(rank, step + 1)
        scales = iter(self._problem.loss_scales)
        while True:
            scale = next(scales)
            g = self._pass(at, buffers, batches, f"all-reduce of step {step}", workers, scale, began)
            # an overflow of one worker shows in the mean of all: all repeat the pass
            if scale == 1 or bool(g.isfinite().all()):
                return g
            buffers.copy_(start_buffers)
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
        """Return the gradient [d] by a backward pass through `scale` times the loss, averaged over the workers. began:
        start of the computation, by time.monotonic()."""
        replicas = self._replicas[: len(batches)]
        samples = sum(map(len, batches))
        # a slice's share of the mean is a weight of its loss, so that gradients need no scaling afterwards
        shares = [len(batch) / samples / workers for batch in batches]
        weights, factors = (shares, [1.0] * len(shares)) if scale == 1 else ([scale] * len(shares), shares)
        statistics = [buffers, *(buffers.to(replica.device, copy=True) for replica in replicas[1:])]
        g = torch.empty_like(at)
        reductions: list[dist.Work] = []

        def reduce(bucket: GradientBucket) -> None:
            part = g[bucket.begin : bucket.end]
            replicas[0].collect(bucket, factors[0] / scale, 1 / workers, part)
            for replica, factor in zip(replicas[1:], factors[1:], strict=True):
                other = torch.empty_like(part, device=replica.device)
                replica.collect(bucket, factor / scale, 0, other)
                part.add_(other.to(g.device))
            if workers > 1:
                with collective(self._groups.rank, reduction):
                    work = dist.all_reduce(part, group=self._groups.gradients, async_op=True)
                assert work is not None  # None is for processes outside the group
                reductions.append(work)

        reducer = InOrderReducer(self._buckets, len(replicas), reduce)

        def run(place: int) -> None:
            replica = replicas[place]
            replica.run(at.to(replica.device), statistics[place], batches[place], weights[place], reducer.report)

        if len(replicas) == 1:
            run(0)
        else:
            list(self._others.map(run, range(len(replicas))))
            buffers.copy_(torch.stack([of.to(buffers.device) for of in statistics]).mean(dim=0))
        reducer.flush()
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
