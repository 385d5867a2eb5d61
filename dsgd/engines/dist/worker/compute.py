"""Compute a worker's gradients on its devices, in a separate thread, and all-reduce them during the backward pass.

As in PyTorch's DistributedDataParallel, the gradient [d] is cut into buckets, from the last parameter to the first:
about the order in which a backward pass finishes them. A bucket is reduced after the buckets before it, as soon as all
replicas have finished it, so the order is the same in every pass of every worker.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dsgd.data.items import Items
from dsgd.engines.dist.worker.averaging import Groups, finish_work
from dsgd.engines.dist.worker.batches import Batch, Batches
from dsgd.engines.dist.worker.pass_record import ComputeStreams, PassRecord
from dsgd.engines.rules.step_rules import bucket_bytes
from dsgd.problem.precision import compiling
from dsgd.problem.problem import Problem
from dsgd.problem.slots import ModelFailed, hook_of, own_function, real
from dsgd.problem.state import dense

LOADS, FAR = 8, 1000  # batches that are timed; steps from the present one to them, which nothing reads ahead


@dataclass(frozen=True)
class GradientBucket:
    """A range of [d], and the indices of the parameters in it."""

    begin: int
    end: int
    parameters: range


def make_buckets(problem: Problem, least_bytes: int) -> list[GradientBucket]:
    """Cut [d] into buckets of whole parameters, in the order of communication: the first one ends at d. Each is the
    smallest of at least least_bytes; the last one, at 0, may be smaller."""
    buckets: list[GradientBucket] = []
    end, after = problem.dimension, len(problem.parameters)
    for number in reversed(range(after)):
        begin = problem.parameters[number].start
        if number == 0 or (end - begin) * problem.start.itemsize >= least_bytes:
            buckets.append(GradientBucket(begin, end, range(number, after)))
            end, after = begin, number
    return buckets


class InOrderReducer:
    """Calls `reduce` for every bucket once all its parameters have been reported, in the order of the buckets. Any
    thread may report."""

    def __init__(
        self, buckets: Sequence[GradientBucket], replicas: int, reduce: Callable[[GradientBucket], None]
    ) -> None:
        self._buckets = buckets
        self._missing = [replicas * len(bucket.parameters) for bucket in buckets]
        self._next = 0
        self._reduce = reduce
        self._lock = threading.Lock()

    def report(self, index: int) -> None:
        """Report that one replica has finished one more parameter of the bucket with this index."""
        with self._lock:
            self._missing[index] -= 1
            self._advance(lambda: not self._missing[self._next])

    def flush(self) -> None:
        """After all passes, reduce the remaining buckets: they have parameters that no forward pass used."""
        with self._lock:
            self._advance(lambda: True)

    @property
    def reduced(self) -> Sequence[GradientBucket]:
        """Return the reduced buckets."""
        return self._buckets[: self._next]

    def _advance(self, is_ready: Callable[[], bool]) -> None:
        while self._next < len(self._buckets) and is_ready():
            self._next += 1
            self._reduce(self._buckets[self._next - 1])


class Replica:
    """The module on one device."""

    def __init__(self, problem: Problem, device: torch.device, buckets: Sequence[GradientBucket]) -> None:
        self.device = device
        self._problem = problem
        self._report: Callable[[int], None] | None = None  # None outside this replica's own passes
        problem.to(device)
        self._buffers: Tensor | None = None  # in one place, so that views of it are made once
        self._parameters = problem.state.trained
        self._may_overlap = hook_of(problem.module) is None
        self._hooks = [
            self._parameters[number].register_post_accumulate_grad_hook(partial(self._finished, index))
            for index, bucket in enumerate(buckets)
            for number in bucket.parameters
        ]

    def run(self, x: Tensor, buffers: Tensor, batch: Batch, weight: float, report: Callable[[int], None]) -> Tensor:
        """Run one forward and backward pass at x [d] for `weight` times the loss, a scalar, which is returned. Reports
        the index of a parameter's bucket as soon as its gradient is computed. Updates the buffers [nb] in place. All
        tensors are on the device. Nothing is reported if that may be too early."""
        batch.wait()
        problem = self._problem
        state = problem.state
        self._buffers = buffers.clone() if self._buffers is None else self._buffers.copy_(buffers)
        state.bind(x, self._buffers)
        state.forget_gradients()
        state.train(True)
        loss = problem.data.loss(problem.outputs(batch.inputs), batch.targets)
        # in a backward pass within the backward pass a gradient may be reported before all of it is there
        complete = not state.in_place or (self._may_overlap and own_function(loss) is None)
        self._report = report if complete else None
        try:
            (loss if weight == 1 else loss * weight).backward()
        finally:
            self._report = None
        state.keep(x, self._buffers)
        buffers.copy_(self._buffers)
        return loss.detach()

    def collect(self, bucket: GradientBucket, factor: float, decay: float, out: Tensor) -> None:
        """Write `factor` times a bucket's gradient plus `decay` times the gradient of the weight decay into out [end -
        begin]. The gradient of an unused parameter is zero."""
        for number in bucket.parameters:
            parameter, slot = self._parameters[number], self._problem.parameters[number]
            into = slot.view(out, bucket.begin)
            gradient = into.zero_() if parameter.grad is None else real(dense(parameter.grad))
            if factor != 1:
                gradient = gradient.mul_(factor)
            self._problem.decayed(gradient, real(parameter.detach()), slot, decay, into)
            parameter.grad = None

    def check_complete(self, reduced: Sequence[GradientBucket]) -> None:
        """Raise ModelFailed if a gradient was added to after its bucket had been reduced."""
        for bucket in reduced:
            for number in bucket.parameters:
                if self._parameters[number].grad is not None:
                    path = self._problem.parameters[number].path
                    raise ModelFailed(f"the model's {path} must have its gradient at once; a hook adds to it later")

    def close(self) -> None:
        """Remove the hooks from the module."""
        for hook in self._hooks:
            hook.remove()

    def _finished(self, index: int, _: Tensor) -> None:
        if self._report is not None:  # otherwise another pass through the same module
            self._report(index)


def replicate(problem: Problem, devices: Sequence[torch.device], buckets: Sequence[GradientBucket]) -> list[Replica]:
    """Return the problem's own module on the first device, and copies of it on the others."""
    copies = [problem.twin() for _ in devices[1:]]
    if copies and (reason := hook_of(problem.module)) is not None:  # a copy has no hooks of parameters
        raise ModelFailed(f"a worker must have one GPU for a model with {reason}, got {len(devices)}")
    return [Replica(instance, device, buckets) for instance, device in zip([problem, *copies], devices, strict=True)]


class Compute:
    """Computes gradients of a problem in the order of the calls, in its own thread.

    devices: points, buffers and gradients are on the first. Several devices get equal slices of a batch, and their
    gradients and buffers are averaged on the first. passes: their times and losses; a gradient raises Diverged if
    `passes` judges so. late: argument of `PassRecord`; the future of a gradient on a GPU is done once it is queued
    there."""

    def __init__(
        self,
        problem: Problem,
        devices: Sequence[torch.device],
        groups: Groups,
        *,
        trace: bool = False,
        late: bool = False,
    ) -> None:
        self.passes = PassRecord(devices[0], trace=trace, late=late)
        self._problem = problem
        self._groups = groups
        self._buckets = make_buckets(problem, bucket_bytes(problem.start.nbytes))
        self.devices = tuple(devices)
        self._replicas = replicate(problem, devices, self._buckets)
        self._batches = Batches(problem.data, problem.dtype, devices)
        self._prefetches = devices[0].type != "cpu"  # on a CPU it would only compete with the computation
        self._streams = ComputeStreams(devices)
        threads = partial(ThreadPoolExecutor, initializer=self._streams.enter)
        self._thread = threads(1, thread_name_prefix="compute")
        self._others = threads(len(devices), thread_name_prefix="replica")  # starts no thread before its first task

    def gradient(self, at: Tensor, buffers: Tensor, rank: int, step: int) -> Future[Tensor]:
        """Compute the gradient [d] at the point `at` [d] of worker `rank`'s batch of `step`, weight decay included.
        Updates the buffers [nb] in place. `at` must not change until the future is done."""
        return self._submit(at, buffers, rank, step, 1, step + 1)

    def mean_gradient(self, at: Tensor, buffers: Tensor, rank: int, step: int) -> Future[Tensor]:
        """Compute the mean [d] over all workers of their `gradient`, bitwise equal in all of them; communication
        overlaps with the backward pass. All workers must make the same calls in the same order. The future may raise
        CannotGoOn."""
        return self._submit(at, buffers, rank, step, self._groups.nodes, step + 1)

    def warm_up(self, at: Tensor, buffers: Tensor, rank: int, step: int) -> None:
        """Compute a gradient outside of the run's time, because the first use loads and tunes code. Changes nothing,
        and begins to load the same batch again for the run. Raises Unsuitable for a module that cannot be compiled."""
        problem = self._problem
        with compiling(type(problem.module).__name__) if problem.compiled else nullcontext():
            self._submit(at, buffers.clone(), rank, step, 1, step).result()
        self.passes.forget()

    def input_rates(self, at: Tensor, buffers: Tensor, rank: int, step: int) -> tuple[float, float]:
        """Return how many samples are loaded in a second, and how many the model takes, outside of the run's time.
        Changes nothing, as `warm_up`, after which it is called."""
        scale = next(iter(self._problem.loss_scales))
        first = step + FAR
        batches = self._thread.submit(self._batches.get, rank, first).result()  # cancels what is read ahead
        begun = time.monotonic()
        for later in range(1, LOADS + 1):
            batches = self._thread.submit(self._batches.get, rank, first + later).result()
        load_s = (time.monotonic() - begun) / LOADS

        def one_pass() -> Tensor:
            with self._problem.drawing(rank, step):
                return self._pass(at, buffers.clone(), batches, step, 1, scale)[0]

        begun = time.monotonic()
        self._thread.submit(self._streams.call(one_pass)).result()
        finish_work(at.device)
        pass_s = time.monotonic() - begun
        self.passes.forget()
        if self._prefetches and self._can_load_beside:
            self._batches.prefetch(rank, step)
        samples = sum(map(len, batches))
        return samples / load_s, samples / pass_s

    def close(self) -> None:
        """End the thread. Waiting calls are cancelled; a running call is waited for, at most for the time limit of the
        groups. Restores the problem's module."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._others.shutdown()
        self._batches.close()
        for replica in self._replicas:
            replica.close()

    def _submit(self, *arguments: Any) -> Future[Tensor]:
        return self._thread.submit(self._streams.call(partial(self._gradient, *arguments)))

    def _gradient(self, at: Tensor, buffers: Tensor, rank: int, step: int, workers: int, next_step: int) -> Tensor:
        self.passes.begin()
        start_buffers = buffers.clone()
        batches = self._batches.get(rank, step)
        if self._prefetches and self._can_load_beside:
            self._batches.prefetch(rank, next_step)
        scales = iter(self._problem.loss_scales)
        while True:
            scale = next(scales)
            with self._problem.drawing(rank, step):
                g, loss = self._pass(at, buffers, batches, step, workers, scale)
            # an overflow of one worker shows in the mean of all: all repeat the pass
            if scale == 1 or bool(g.isfinite().all()):
                self.passes.judge(step, loss)  # in lock-step all workers have their mean, so none waits for this one
                return g
            buffers.copy_(start_buffers)
            self.passes.begin()

    @property
    def _can_load_beside(self) -> bool:
        """Return whether a batch may be loaded while the module computes: not if both may draw from torch's stream."""
        never_draws = self._problem.draws is False and not self._problem.state.in_place
        return never_draws or not isinstance(self._problem.data, Items)

    def _pass(
        self, at: Tensor, buffers: Tensor, batches: Sequence[Batch], step: int, workers: int, scale: float
    ) -> tuple[Tensor, Tensor]:
        """Return the gradient [d] by a backward pass through `scale` times the loss, averaged over the workers, and
        this worker's own loss, a scalar."""
        replicas = self._replicas[: len(batches)]
        samples = sum(map(len, batches))
        # a slice's share of the mean is a weight of its loss, so that gradients need no scaling afterwards
        # (the module's code sees gradients of its loss, as in a single process)
        shares = [len(batch) / samples / workers for batch in batches]
        weighs = scale == 1 and not self._problem.state.in_place
        weights, factors = (shares, [1.0] * len(shares)) if weighs else ([scale] * len(shares), shares)
        statistics = [buffers, *(buffers.to(replica.device, copy=True) for replica in replicas[1:])]
        g = torch.empty_like(at)
        reductions: list[Callable[[], None]] = []

        finished: list[torch.Event] = []  # of gradients on several devices

        def reduce_beside(bucket: GradientBucket) -> None:
            with self._streams.entered(finished):
                reduce(bucket)

        def report_beside(index: int) -> None:
            finished.append(torch.accelerator.current_stream().record_event())
            reducer.report(index)

        def reduce(bucket: GradientBucket) -> None:
            part = g[bucket.begin : bucket.end]
            replicas[0].collect(bucket, factors[0] / scale, 1 / workers, part)
            for replica, factor in zip(replicas[1:], factors[1:], strict=True):
                other = torch.empty_like(part, device=replica.device)
                replica.collect(bucket, factor / scale, 0, other)
                part.add_(other.to(g.device))
            if workers > 1 and self._groups.gradients is not None:
                reductions.append(self._groups.gradients.begin(part, f"all-reduce of step {step}"))

        beside = len(replicas) > 1 and g.device.type != "cpu"
        reducer = InOrderReducer(self._buckets, len(replicas), reduce_beside if beside else reduce)
        report = report_beside if beside else reducer.report

        def run(index: int) -> Tensor:
            replica = replicas[index]
            return replica.run(at.to(replica.device), statistics[index], batches[index], weights[index], report)

        if len(replicas) == 1:
            loss = run(0)
        else:
            losses = self._others.map(run, range(len(replicas)))
            slices = zip(losses, batches, strict=True)
            loss = torch.stack([part.to(g.device) * (len(batch) / samples) for part, batch in slices]).sum()
            buffers.copy_(self._problem.state.mean([vector.to(buffers.device) for vector in statistics]))
        for replica in replicas:
            replica.check_complete(reducer.reduced)
        reducer.flush()
        self.passes.end()
        for wait in reductions:
            wait()
        if not self.passes.late:
            finish_work(g.device)
        return g, loss
