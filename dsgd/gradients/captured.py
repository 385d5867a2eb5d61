"""A function of tensors at fixed places as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch

WARM_UP = 3  # calls before the capture, in which libraries choose their kernels

T = TypeVar("T")


class CapturedPass(Generic[T]):
    """Capture a function as a CUDA graph, to replay it on a stream of its own beside other graphs.

    Random numbers come from a generator of its own. Before torch 2.12 a generator has one place on the device for its
    seed, which all graphs of this generator read: replays of several graphs side by side would read each other's. A
    capture that fails leaves its generator unusable; torch's own is not touched.

    stream: of the replays. result: what the function returned, at the places where each replay writes it. Raises the
    error of the function, or RuntimeError of CUDA, and leaves the current stream as it was."""

    def __init__(self, function: Callable[[], T], device: torch.device) -> None:
        index = torch.cuda.current_device() if device.index is None else device.index
        self._global = torch.cuda.default_generators[index]
        self._generator = self._global.clone_state()
        self._graph = torch.cuda.CUDAGraph()
        self.stream = torch.cuda.Stream(device)
        self.stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(self.stream), self._drawing():
            for _ in range(WARM_UP):
                function()
            self.stream.synchronize()
            self.result = self._captured(function)

    def replay(self, seed: int | None) -> None:
        """Queue a replay on the current stream. seed: of the random numbers; None: the function draws none."""
        if seed is not None:
            self._generator.manual_seed(seed)
        self._graph.replay()

    def _captured(self, function: Callable[[], T]) -> T:
        failure: Exception | None = None
        try:
            with torch.cuda.graph(self._graph, stream=self.stream):
                try:
                    return function()
                except Exception as error:  # of the module's code or of CUDA
                    failure = error
                    raise
        except RuntimeError as error:
            # ending a capture that has failed raises once more, without the cause
            raise failure or error from None

    @contextmanager
    def _drawing(self) -> Iterator[None]:
        """Let torch's global generator of the device use the state of this graph's generator inside of the block."""
        before = self._global.graphsafe_get_state()
        self._global.graphsafe_set_state(self._generator)
        try:
            yield
        finally:
            self._global.graphsafe_set_state(before)
