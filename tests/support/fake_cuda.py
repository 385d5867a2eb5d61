"""A CUDA without a GPU: streams that remember what is queued on them, and run it in the order that the program has
allowed and that is worst for it. Tensors are on the CPU."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from dsgd.gradients import device_graphs


class FakeStream:
    """done: how many of the queued operations have run."""

    def __init__(self, cuda: FakeCuda, name: str) -> None:
        self.cuda, self.name = cuda, name
        self.queued: list[Callable[[], bool]] = []  # each says whether it could run
        self.done = 0

    def __enter__(self) -> None:
        self._outer = self.cuda.current_stream()
        torch.accelerator.set_stream(self)  # pyright: ignore[reportArgumentType]

    def __exit__(self, *_: object) -> None:
        torch.accelerator.set_stream(self._outer)  # pyright: ignore[reportArgumentType]

    def queue(self, operation: Callable[[], object]) -> None:
        def run() -> bool:
            operation()
            return True

        self.queued.append(run)

    def record_event(self) -> FakeEvent:
        event = FakeEvent(self.cuda)
        event.record(self)
        return event

    def wait_event(self, event: FakeEvent) -> None:
        stream, place = event.stream, event.place
        self.queued.append(lambda: stream.done >= place)

    def wait_stream(self, other: FakeStream) -> None:
        self.wait_event(other.record_event())

    def synchronize(self) -> None:
        self.cuda.run_until(self, len(self.queued))

    def needs(self) -> set[str]:
        """Return the names of the streams that must run before all that is queued here has run."""
        before = {of.name: of.done for of in self.cuda.streams}
        self.synchronize()
        return {of.name for of in self.cuda.streams if of is not self and of.done > before[of.name]}


class FakeEvent:
    """An event takes as many milliseconds after another one of its stream as operations are between them."""

    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda, self.stream, self.place = cuda, cuda.default, 0

    def record(self, stream: FakeStream | None = None) -> None:
        self.stream = stream or self.cuda.current_stream()
        self.place = len(self.stream.queued)

    def synchronize(self) -> None:
        self.cuda.run_until(self.stream, self.place)

    def elapsed_time(self, later: FakeEvent) -> float:
        assert self.stream is later.stream
        return later.place - self.place


@dataclass
class GeneratorState:
    """place: on the device, where all graphs of this generator read their seed, as before torch 2.12."""

    seed: int = 0
    place: int = -1
    capturing: bool = False


class FakeGenerator:
    def __init__(self, state: GeneratorState) -> None:
        self.state = state

    def clone_state(self) -> FakeGenerator:
        return FakeGenerator(GeneratorState(self.state.seed))

    def graphsafe_get_state(self) -> FakeGenerator:
        return FakeGenerator(self.state)

    def graphsafe_set_state(self, other: FakeGenerator) -> None:
        self.state = other.state

    def manual_seed(self, seed: int) -> None:
        self.state.seed = seed


@dataclass
class FakeGraph:
    cuda: FakeCuda
    kernels: list[Callable[[], object]] = field(default_factory=list)
    state: GeneratorState | None = None
    invalid: bool = False

    def __enter__(self) -> None:
        self.state, self.cuda.capturing = self.cuda.generator.state, self
        self.state.capturing = True

    def __exit__(self, *_: object) -> None:
        """As torch's: a capture that has failed ends in an error of its own."""
        self.cuda.capturing = None
        if self.invalid:
            raise RuntimeError("operation failed due to a previous error during capture")
        assert self.state is not None
        self.state.capturing = False

    def replay(self) -> None:
        state, stream = self.state, self.cuda.current_stream()
        assert state is not None
        seed = state.seed
        stream.queue(lambda: setattr(state, "place", seed))
        for kernel in self.kernels:
            stream.queue(kernel)


class FakeCuda:
    """Replaces what the program uses of `torch.cuda`. default: the stream of every thread that has set no other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.streams: list[FakeStream] = []
        self.default = self.new_stream("default")
        self.generator = FakeGenerator(GeneratorState())
        self.capturing: FakeGraph | None = None
        self._local = threading.local()
        for where, name, replacement in (
            (torch, "Event", lambda *_, **__: FakeEvent(self)),
            (torch, "Stream", lambda device: self.new_stream()),
            (torch.accelerator, "current_stream", self.current_stream),
            (torch.accelerator, "set_stream", lambda stream: setattr(self._local, "stream", stream)),
            (torch.accelerator, "current_device_index", lambda: 0),
            (torch.cuda, "default_generators", (self.generator,)),
            (device_graphs, "GRAPH", lambda: FakeGraph(self)),
        ):
            monkeypatch.setattr(where, name, replacement)

    def new_stream(self, name: str = "") -> FakeStream:
        self.streams.append(FakeStream(self, name or f"stream {len(self.streams)}"))
        return self.streams[-1]

    def current_stream(self, device: Any = None) -> FakeStream:
        return getattr(self._local, "stream", self.default)

    def draw(self, seen: list[int]) -> None:
        """Queue a kernel that draws random numbers, and shows by which seed."""
        state = self.generator.state
        if self.capturing is None:
            if state.capturing:
                raise RuntimeError("Offset increment outside graph capture encountered unexpectedly.")
            seed = state.seed
            self.current_stream().queue(lambda: seen.append(seed))
        else:
            self.capturing.kernels.append(lambda: seen.append(state.place))

    def fail(self, error: Exception) -> None:
        """Do what no capture allows."""
        if self.capturing is not None:
            self.capturing.invalid = True
            raise error

    def run_until(self, wanted: FakeStream, place: int) -> None:
        """Run as little as possible until a stream has run so many operations."""
        if wanted.done < place:
            for _ in range(wanted.done, place):
                self._step(wanted)

    def run(self) -> None:
        """Run all that is queued, the streams by turns, one operation each."""
        while left := [of for of in self.streams if of.done < len(of.queued)]:
            for stream in left:
                self._try(stream)

    def _try(self, stream: FakeStream) -> bool:
        runs = stream.queued[stream.done]()
        stream.done += runs
        return runs

    def _step(self, stream: FakeStream) -> None:
        while not self._try(stream):
            for other in self.streams:
                if other is not stream and other.done < len(other.queued) and self._try(other):
                    break
            else:
                raise AssertionError(f"{stream.name} waits for ever")
