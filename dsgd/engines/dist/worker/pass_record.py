"""A worker's forward and backward passes: their streams on its GPUs, their times, and judgement of their losses."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from dsgd.engines.dist.job import TRACE_INTERVALS
from dsgd.engines.dist.worker.averaging import finish_work
from dsgd.engines.rules.marks import Diverged, is_beyond


class ComputeStreams:
    """One stream for each GPU of a worker; nothing on a CPU.

    Without them, gradients would run on each device's default stream, where other threads record their events: a wait
    for such an event would also wait for the present gradient. devices: devices of one kind."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._first = devices[0]
        self._streams = [torch.Stream(device) for device in devices if device.type != "cpu"]

    def enter(self) -> None:
        """Make them the current streams of the calling thread, and the first device its current one."""
        torch.get_num_threads()  # a new thread uses all cores until it has read torch's setting
        for stream in reversed(self._streams):
            torch.accelerator.set_stream(stream)

    @contextmanager
    def entered(self, events: list[torch.Event]) -> Iterator[None]:
        """Make them the current streams of any thread inside of the block, after these events, which are removed.

        For each device, a backward pass runs hooks in a thread of torch's, in which the other devices have their
        default streams."""
        with ExitStack() as stack:
            for stream in reversed(self._streams):
                stack.enter_context(stream)
            while events:
                event = events.pop()
                for stream in self._streams:
                    stream.wait_event(event)
            yield

    def call(self, compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Return a function that computes a tensor of the first device in a thread that has entered. It runs after the
        caller's queued work there, and its result is ready for the caller's stream."""
        if not self._streams:
            return compute
        caller = torch.accelerator.current_stream(self._first)
        begun = caller.record_event()

        def computed() -> Tensor:
            for stream in self._streams:
                stream.wait_event(begun)
            try:
                result = compute()
            finally:  # also after an error, if it is only queued: the caller frees or changes its inputs
                caller.wait_event(torch.accelerator.current_stream(self._first).record_event())
            result.record_stream(caller)  # or its memory is used again while the caller's work with it is queued
            return result

        return computed


@dataclass(frozen=True)
class _QueuedPass:
    """A pass that a GPU may not have finished. begun, ended: events on its stream. loss: a scalar there."""

    step: int
    begun: torch.Event
    ended: torch.Event
    loss: Tensor


class PassRecord:
    """Times passes on a device, and judges their losses.

    late: True reads a loss on a GPU once the next pass has been queued, so the device does not wait. The mark at the
    end judges the last loss. loss_limit: a loss beyond it raises Diverged; None: no limit. busy_s: seconds of finished
    passes. spans: their (begin, end) by time.monotonic(), or None without `trace`, which waits for each pass."""

    def __init__(self, device: torch.device, *, trace: bool = False, late: bool = False) -> None:
        self.loss_limit: float | None = None
        self.busy_s = 0.0
        self.spans: list[tuple[float, float]] | None = [] if trace else None
        self.late = late and not trace and device.type != "cpu"
        self._device = device
        self._before: _QueuedPass | None = None
        self._began = 0.0
        self._events: tuple[torch.Event, torch.Event] | None = None

    def begin(self) -> None:
        """Note the begin of a pass."""
        self._began = time.monotonic()
        if self.late:
            begun, ended = (torch.Event(self._device, enable_timing=True) for _ in range(2))
            self._events = begun, ended
            self._events[0].record()

    def end(self) -> None:
        """Note the end of a pass, or with `late` that it is queued."""
        if self._events is not None:
            self._events[1].record()
            return
        finish_work(self._device)
        ended = time.monotonic()
        self.busy_s += ended - self._began
        if self.spans is not None:
            self.spans.append((self._began, ended))

    def judge(self, step: int, loss: Tensor) -> None:
        """Judge the loss of this pass, of mini-batch `step`; with `late`, judge the loss before it. Raises Diverged."""
        if self._events is None:
            self._check(step, loss)
            return
        before, self._before = self._before, _QueuedPass(step, *self._events, loss)
        if before is not None:
            before.ended.synchronize()
            self.busy_s += before.begun.elapsed_time(before.ended) / 1000
            self._check(before.step, before.loss)

    def forget(self) -> None:
        """Forget all passes until now."""
        finish_work(self._device)
        self._before, self.busy_s = None, 0.0
        if self.spans is not None:
            self.spans.clear()

    def _check(self, step: int, loss: Tensor) -> None:
        if self.loss_limit is not None and is_beyond(value := float(loss), self.loss_limit):
            raise Diverged(f"the loss of the mini-batch of step {step} is {value:g}")


def interval_vector(kind: str, spans: Sequence[tuple[float, float]], origin_s: float) -> Tensor:
    """Return intervals (begin, end) as float64 [2 n] in seconds since the origin; the first TRACE_INTERVALS of them,
    with a line in this process's log about others. kind: name in that line."""
    if len(spans) > TRACE_INTERVALS:
        print(f"the trace holds {TRACE_INTERVALS} of {len(spans)} intervals of {kind}", flush=True)
    return torch.tensor(spans[:TRACE_INTERVALS], dtype=torch.float64).flatten().sub_(origin_s)
