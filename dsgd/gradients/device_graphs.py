"""Evaluates gradients on an accelerator if launching their many small kernels would take most of the time: as replays
of one graph of the device, several in parallel on separate streams.

All replays run the same kernels, so a gradient's bits do not depend on concurrent gradients. Vectors, and data that
fit, stay on the GPU. The host reads only losses, each when its gradient is used, while other gradients are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from dsgd.data.protocols import is_joint
from dsgd.gradients.evaluators import PendingGradient
from dsgd.host import cuda
from dsgd.problem.problem import Problem
from dsgd.problem.slots import ModelFailed

STREAMS = 8  # more than the kernels of a small network can fill

WARM_UP = 3  # calls before the capture, in which libraries choose their kernels

GRAPH: Any = getattr(torch.accelerator, "Graph", None)  # None: a version of torch with graphs for CUDA only

T = TypeVar("T")


class CapturedPass(Generic[T]):
    """Capture a function as a graph of the device, to replay it on its own stream, concurrently with other graphs.

    Random numbers come from its own generator. Before torch 2.12 a generator has one place on the device for its seed,
    which all of its graphs read: concurrent replays would read each other's seeds. A capture that fails leaves its
    generator unusable; torch's default generator is not touched.

    stream: stream of the replays. result: the function's result, in the memory that each replay overwrites. Raises the
    error of the function, or RuntimeError of the device, and leaves the current stream as it was."""

    def __init__(self, function: Callable[[], T], device: torch.device) -> None:
        index = torch.accelerator.current_device_index() if device.index is None else device.index
        self._global = _default_generator(device.type, index)
        self._generator = self._global.clone_state()
        self._graph = GRAPH() if GRAPH else cuda.new_graph()
        self.stream = torch.Stream(torch.device(device.type, index))
        self.stream.wait_stream(torch.accelerator.current_stream(device))
        with self.stream, self._drawing():
            for _ in range(WARM_UP):
                function()
            self.stream.synchronize()
            self.result = self._captured(function)

    def replay(self, seed: int | None) -> None:
        """Queue a replay on the current stream. seed: seed of the random numbers; None: the function draws none."""
        if seed is not None:
            self._generator.manual_seed(seed)
        self._graph.replay()

    def _captured(self, function: Callable[[], T]) -> T:
        failure: Exception | None = None
        try:
            with self._capturing():
                try:
                    return function()
                except Exception as error:  # of the module's code or of the device
                    failure = error
                    raise
        except RuntimeError as error:
            # ending a failed capture raises another error, without the cause
            raise failure or error from None

    def _capturing(self) -> AbstractContextManager[object]:
        return self._graph if GRAPH else cuda.capturing(self._graph, self.stream)

    @contextmanager
    def _drawing(self) -> Iterator[None]:
        """Let torch's global generator of the device use the state of this graph's generator inside of the block."""
        before = self._global.graphsafe_get_state()
        self._global.graphsafe_set_state(self._generator)
        try:
            yield
        finally:
            self._global.graphsafe_set_state(before)


def _default_generator(kind: str, index: int) -> torch.Generator:
    """Return torch's global generator of a device. Raises RuntimeError for an accelerator without one."""
    generators = getattr(torch.get_device_module(kind), "default_generators", None)
    if not generators:
        raise RuntimeError(f"torch shows no generator of {kind} devices")
    return generators[index]


class Uncapturable(Exception):
    """Raised for a module whose gradient is no graph of the device; says why in one line."""


class GraphEvaluator:
    """Evaluate gradients as replays of a graph of the device; on a CPU by the same passes without a graph.

    Moves the problem, its vectors and its data to the device. streams: number of concurrent gradients; reduced if the
    GPU lacks memory. Raises Uncapturable."""

    def __init__(self, problem: Problem, device: torch.device, streams: int = STREAMS) -> None:
        self.problem = problem
        self.device = device
        problem.live_on(device)
        try:
            # by the module itself, which shows whether it draws: a replay leaves torch's random stream alone
            problem.gradient_and_loss(problem.start.clone(), problem.start_buffers.clone(), 0, 0)
            self._lanes = [_Lane(problem)]
        except (RuntimeError, ModelFailed) as error:  # of the device, which names the operation
            raise Uncapturable(" ".join(str(error).split())) from error
        while device.type != "cpu" and len(self._lanes) < streams:
            try:
                self._lanes.append(_Lane(problem))
            except torch.OutOfMemoryError:
                break
            except (RuntimeError, ModelFailed) as error:
                raise Uncapturable(" ".join(str(error).split())) from error

    @property
    def streams(self) -> int:
        """Return the number of parallel gradients."""
        return len(self._lanes)

    def evaluate(self, pending: Sequence[PendingGradient]) -> None:
        points = [item.snapshot for item in pending if item.snapshot is not None]
        values = [torch.empty_like(x) for x in points]
        losses = torch.empty(len(pending), dtype=self.problem.dtype, pin_memory=self.device.type != "cpu")
        data = self.problem.data
        # before the lanes, which wait for it: hundreds of batches are drawn and made in a few operations
        joint = data.batches([item.rank for item in pending], [item.step for item in pending]) if is_joint(data) else ()
        for lane in self._lanes:
            lane.wait_for_caller()
        for index, (item, x, g) in enumerate(zip(pending, points, values, strict=True)):
            lane = self._lanes[index % len(self._lanes)]
            with lane.queue(), self.problem.drawing(item.rank, item.step) as seed:
                inputs, targets = (
                    (part[index] for part in joint) if joint else self.problem.data.batch(item.rank, item.step)
                )
                lane.gradient(x, item.buffers, (inputs, targets), g, losses[index], seed)
                item.set(g, item.buffers, losses[index])
                item.arrives = lane.event()
        for lane in self._lanes:
            lane.join_caller()


class _Lane:
    """One gradient at a time, at fixed places in memory: on a GPU a stream, and a graph of the pass."""

    def __init__(self, problem: Problem) -> None:
        # a module that keeps its tensors serves one stream at a time
        self._problem = problem.twin() if problem.state.in_place else problem
        self._x, self._buffers = problem.start.clone(), problem.start_buffers.clone()
        self._inputs, self._targets = (part.to(problem.device, copy=True) for part in problem.data.batch(0, 0))
        on_gpu = problem.device.type != "cpu"
        self._problem.state.is_captured = on_gpu
        self._captured = CapturedPass(self._pass, problem.device) if on_gpu else None

    def queue(self) -> AbstractContextManager[object]:
        """Return a context in which work on the device is queued on this lane's stream."""
        return nullcontext() if self._captured is None else self._captured.stream

    def gradient(
        self, x: Tensor, buffers: Tensor, batch: tuple[Tensor, Tensor], g: Tensor, loss: Tensor, seed: int | None
    ) -> None:
        """Write the gradient at x [d] to g [d], and the loss of the batch to a scalar of the host; change the buffers
        [nb]. seed: seed of the module's random numbers."""
        inputs, targets = batch
        self._x.copy_(x)
        self._buffers.copy_(buffers)
        self._inputs.copy_(inputs)
        self._targets.copy_(targets)
        if self._captured is None:
            computed = self._pass()
        else:
            self._captured.replay(seed)
            computed = self._captured.result
        g.copy_(computed[0])
        loss.copy_(computed[1], non_blocking=True)
        buffers.copy_(self._buffers)

    def event(self) -> torch.Event | None:
        """Return the end of this lane's queued work; None on a CPU."""
        return None if self._captured is None else self._captured.stream.record_event()

    def wait_for_caller(self) -> None:
        """Let later work of this lane begin after the caller's queued work."""
        if self._captured is not None:
            self._captured.stream.wait_stream(torch.accelerator.current_stream(self._problem.device))

    def join_caller(self) -> None:
        """Let later work of the caller begin after this lane's queued work."""
        if self._captured is not None:
            torch.accelerator.current_stream(self._problem.device).wait_stream(self._captured.stream)

    def _pass(self) -> tuple[Tensor, Tensor]:
        self._problem.state.release()
        return self._problem.gradient_of_batch(self._x, self._buffers, self._inputs, self._targets)
