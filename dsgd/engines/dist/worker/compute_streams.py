"""Streams for a worker's gradients, beside which its GPUs copy and average vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


class ComputeStreams:
    """One stream for each GPU of a worker; nothing on a CPU.

    Without them gradients would be on each device's default stream, where other threads leave their events: whatever
    waited for such an event would wait for the gradient that is under way. devices: those of one kind."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._first = devices[0]
        self._streams = [torch.cuda.Stream(device) for device in devices if device.type == "cuda"]

    def enter(self) -> None:
        """Make them the current streams of the calling thread, and the first device its current one."""
        torch.get_num_threads()  # a new thread computes with all cores until it has asked how many torch was told
        for stream in reversed(self._streams):
            torch.cuda.set_stream(stream)

    def call(self, compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Return a function that computes a tensor of the first device in a thread that has entered, after what the
        caller has queued there until now, and for the caller's stream."""
        if not self._streams:
            return compute
        caller = torch.cuda.current_stream(self._first)
        begun = caller.record_event()

        def computed() -> Tensor:
            for stream in self._streams:
                stream.wait_event(begun)
            result = compute()
            caller.wait_event(torch.cuda.current_stream(self._first).record_event())  # where it is only queued
            result.record_stream(caller)  # or its memory is used again while the caller's work with it is queued
            return result

        return computed
