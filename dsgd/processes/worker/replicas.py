"""Forward and backward passes on the devices of one worker, and the order in which their gradients are reduced.

As in PyTorch's DistributedDataParallel, the gradient [d] is cut into buckets, from the last parameter to the first,
which is about the order in which a backward pass finishes them. A bucket is reduced as soon as all replicas have
finished it and all buckets before it have been reduced, so the order is the same in every pass of every worker.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from dsgd.problem.problem import Problem
from dsgd.processes.worker.batches import Batch


@dataclass(frozen=True)
class GradientBucket:
    """A range of [d], and the indices of the parameters in it."""

    begin: int
    end: int
    parameters: range


def make_buckets(problem: Problem, bucket_bytes: int) -> list[GradientBucket]:
    """Cut [d] into buckets of whole parameters, in the order of communication: the first one ends at d. Each is the
    smallest of at least bucket_bytes; the last one, at 0, may be smaller."""
    buckets: list[GradientBucket] = []
    end, after = problem.dimension, len(problem.parameters)
    for place in reversed(range(after)):
        begin = problem.parameters[place].start
        if place == 0 or (end - begin) * problem.start.itemsize >= bucket_bytes:
            buckets.append(GradientBucket(begin, end, range(place, after)))
            end, after = begin, place
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
        self._parameters = [slot.owner.get_parameter(slot.name) for slot in problem.parameters]
        self._hooks = [
            self._parameters[place].register_post_accumulate_grad_hook(partial(self._finished, index))
            for index, bucket in enumerate(buckets)
            for place in bucket.parameters
        ]

    def run(self, x: Tensor, buffers: Tensor, batch: Batch, weight: float, report: Callable[[int], None]) -> None:
        """Run one forward and backward pass at x [d] for `weight` times the loss. Reports the index of a parameter's
        bucket as soon as its gradient is computed. Updates the buffers [nb] in place. All tensors are on the device."""
        batch.wait()
        problem = self._problem
        problem.bind(x, buffers)
        for parameter in self._parameters:
            parameter.grad = None
        problem.module.train()
        self._report = report
        try:
            loss = problem.data.loss(problem.outputs(batch.inputs), batch.targets)
            (loss * weight).backward()  # no gradient has to be scaled afterwards
        finally:
            self._report = None

    def collect(self, bucket: GradientBucket, factor: float, decay: float, out: Tensor) -> None:
        """Write `factor` times a bucket's gradient plus `decay` times that of the weight decay into out [end - begin].
        The gradient of an unused parameter is zero."""
        for place in bucket.parameters:
            parameter, slot = self._parameters[place], self._problem.parameters[place]
            into = slot.view(out, bucket.begin)
            gradient = into.zero_() if parameter.grad is None else parameter.grad
            if factor != 1:
                gradient = gradient.mul_(factor)
            self._problem.decayed(gradient, parameter.detach(), slot, decay, into)
            parameter.grad = None

    def close(self) -> None:
        """Remove the hooks from the module."""
        for hook in self._hooks:
            hook.remove()

    def _finished(self, index: int, _: Tensor) -> None:
        if self._report is not None:  # otherwise somebody else's pass through the same module
            self._report(index)


def replicate(problem: Problem, devices: Sequence[torch.device], buckets: Sequence[GradientBucket]) -> list[Replica]:
    """Return the problem's own module on the first device, and copies of it on the others."""
    copies = [
        Problem(
            copy.deepcopy(problem.module),
            problem.data,
            problem.dtype,
            weight_decay=0.0,
            decay_norm_and_bias=True,
            autocast=problem.autocast,
            channels_last=problem.channels_last,
            compiled=problem.compiled,
        )
        for _ in devices[1:]
    ]
    return [Replica(of, device, buckets) for of, device in zip([problem, *copies], devices, strict=True)]
