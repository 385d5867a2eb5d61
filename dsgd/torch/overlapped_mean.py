"""The mean of gradients over all ranks, computed during the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from dsgd.engines.torch.group_channel import GroupChannel
from dsgd.torch.flat import FlatModule

FIRST_BUCKET_BYTES = 1 << 20  # as in DistributedDataParallel: the last to be complete delays the step
TWICE = "backward was called twice before step(): put all but the last into model.no_sync()"
AGAIN = (
    "a parameter got two gradients in one backward pass, by re-entrant checkpoints: use checkpoint(use_reentrant=False)"
)


class OverlappedMean:
    """Average the gradients of a module over all ranks in buckets, each as soon as a backward pass has completed it.

    A rank makes each mean once for each step: `finish` makes what no backward pass has made. wanted: returns, during a
    backward pass, whether to average its gradients. step: returns the number of the next step. done: True if the
    gradients are means. late: ranks that averaged only at the step, without a backward pass."""

    def __init__(
        self,
        flat: FlatModule,
        channel: GroupChannel,
        bucket_bytes: int,
        wanted: Callable[[], bool],
        step: Callable[[], int],
    ) -> None:
        self._flat, self._channel, self._wanted, self._step = flat, channel, wanted, step
        self._bucket_bytes = bucket_bytes
        self.done, self.late = False, list[int]()
        self.arrange()

    def arrange(self) -> None:
        """Make the buckets of the module's parameters, and hook into their gradients."""
        flat = self._flat
        self._buckets = _buckets(flat, (min(FIRST_BUCKET_BYTES, self._bucket_bytes), self._bucket_bytes))
        self._parts = [flat.bucket_of(bucket) for bucket in self._buckets]
        self._number = {index: number for number, bucket in enumerate(self._buckets) for index in bucket}
        self._pass: int | None = None  # autograd's number of the present backward pass
        self._sees_outputs = self._is_entered = False
        self._begin()
        for index, parameter in enumerate(flat.parameters):
            hooks = parameter._post_accumulate_grad_hooks or {}
            for key in [key for key, hook in hooks.items() if _is_hook(hook)]:  # of a model distributed before
                del hooks[key]
            if not flat.is_sharded:
                parameter.register_post_accumulate_grad_hook(partial(self._accumulated, index))

    def _name(self) -> str:
        return f"the average of gradients at step {self._step()}"

    def watch(self, outputs: Any) -> None:
        """Watch for the backward pass that reaches the module's outputs: the outer pass, if passes are nested."""
        for output in tree_leaves(outputs):
            if isinstance(output, Tensor) and output.grad_fn is not None:
                output.register_hook(self._reached)

    def _reached(self, _: Tensor) -> None:
        if self._pass != torch._C._current_graph_task_id():
            self._enter(sees_outputs=True)

    def _enter(self, sees_outputs: bool) -> None:
        self._pass, self._sees_outputs = torch._C._current_graph_task_id(), sees_outputs
        self._is_entered = False  # False: no gradient has been accumulated yet, as in torch.autograd.grad
        torch.autograd.Variable._execution_engine.queue_callback(self._leave)

    def _leave(self) -> None:
        self._pass = None
        if self._is_entered and self._wanted():
            self.finish()

    def agree(self) -> None:
        """Give late ranks the gradients of the first rank that is not late: its loop may have changed the mean, to clip
        it."""
        channel = self._channel
        if self.late and len(self.late) < channel.nodes:
            first = next(rank for rank in range(channel.nodes) if rank not in self.late)
            for part in self._parts:
                channel.from_rank(first, part, self._name())

    @torch.no_grad()
    def _accumulated(self, index: int, _: Tensor) -> None:
        if not self._wanted():
            return
        if self._pass is None or not (self._sees_outputs or self._pass == torch._C._current_graph_task_id()):
            self._enter(sees_outputs=False)
        if not self._is_entered:
            self._is_entered = True
            if self.done and any(map(self._is_mean, range(len(self._flat.parameters)))):
                raise RuntimeError(TWICE)
            self._wait()  # for the means of a pass that an exception has ended
            self._begin()
        if self.done or index in self._ready:
            raise RuntimeError(AGAIN)
        self._take(index)
        self._flat.show(index)
        self._start()

    def _is_mean(self, index: int) -> bool:
        return self._flat.parameters[index].grad is self._flat.gradients[index]

    def _begin(self) -> None:
        self.done = False
        self._ready = dict[int, bool]()  # of each parameter whose gradient is in its bucket: whether it has one
        self._missing = list(map(len, self._buckets))
        self._waits: list[Callable[[], Tensor]] = []

    def _take(self, index: int) -> None:
        self._ready[index] = self._flat.parameters[index].grad is not None
        self._missing[self._number[index]] -= 1
        self._flat.gather(index, 1 / self._channel.nodes)  # before the sum, as DistributedDataParallel does

    def _start(self) -> None:
        """Start the sums of all buckets that are complete, in one order on every rank."""
        while (number := len(self._waits)) < len(self._parts) and not self._missing[number]:
            self._waits.append(self._channel.start_sum(self._parts[number], self._name()))

    def _wait(self) -> None:
        for wait in self._waits:
            wait()

    @torch.no_grad()
    def finish(self, is_late: bool = False) -> None:
        """Average the remaining gradients, and wait for all sums. is_late: no backward pass has been averaged.

        Raises RuntimeError, on every rank, if the ranks are at different steps: one has averaged twice in a step."""
        count = len(self._flat.parameters)
        for index in range(count):
            if index not in self._ready:
                self._take(index)
        self._start()
        has = [self._ready[index] for index in range(count)]
        ranks = [0] * self._channel.nodes
        ranks[self._channel.rank] = 2 * self._step() + is_late
        numbers = torch.tensor([*has, *ranks], dtype=torch.int32, device=self._flat.device)
        self._waits.append(self._channel.start_sum(numbers, self._name()))
        self._wait()
        sums = numbers.tolist()
        steps = [number // 2 for number in sums[count:]]
        if len(set(steps)) > 1:
            rule = "every rank must average one backward pass for each step() (the others in model.no_sync())"
            raise RuntimeError(f"{rule}, got ranks at the steps {', '.join(map(str, steps))}")
        for index in range(count):
            if sums[index]:  # the number of ranks with a gradient
                self._flat.show(index)
        self._begin()
        self.done, self.late = True, [rank for rank, number in enumerate(sums[count:]) if number % 2]


def _is_hook(hook: Callable[..., Any]) -> bool:
    return isinstance(hook, partial) and isinstance(getattr(hook.func, "__self__", None), OverlappedMean)


def _buckets(flat: FlatModule, limits: Sequence[int]) -> list[list[int]]:
    """Divide parameters into buckets of one dtype, the last parameters first, in the order of their gradients.

    limits: bytes at which a bucket is complete, for the first bucket and for all others. The buckets equal
    DistributedDataParallel's with find_unused_parameters, so the sums have the same bits."""
    buckets, latest = list[list[int]](), dict[torch.dtype, list[int]]()
    filled, full = (
        dict.fromkeys(flat.dtypes, 0),
        dict.fromkeys(flat.dtypes, 0),
    )  # bytes of the latest, buckets before it
    for index, (dtype, size) in enumerate(zip(flat.dtypes, flat.sizes, strict=True)):
        if dtype not in latest:
            buckets.append(latest.setdefault(dtype, []))
        latest[dtype].append(index)
        filled[dtype] += size * dtype.itemsize
        if filled[dtype] >= limits[min(full[dtype], len(limits) - 1)]:
            del latest[dtype]
            filled[dtype], full[dtype] = 0, full[dtype] + 1
    return buckets[::-1]
