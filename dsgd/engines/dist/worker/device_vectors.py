"""Pairwise messages of vectors on a GPU, by way of the host's memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from dsgd.engines.dist.pairwise.plane import Plane, Pulled
from dsgd.engines.dist.pairwise.server import Answer, Answered

S = TypeVar("S")
P = ParamSpec("P")
T = TypeVar("T")


class DeviceThread:
    """Calls functions in the order of submission, in its own thread, on a GPU with its own stream.

    A function with a tensor of the device among its arguments waits for earlier work of its caller on the device; other
    functions begin at once. Its own work on the device is complete when its future is."""

    def __init__(self, device: torch.device, name: str) -> None:
        self._device = device
        self._stream = torch.Stream(device) if device.type != "cpu" else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)  # starts no thread before its first task

    def submit(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call function(*args, **kwargs) after all that was submitted before. Its arguments must not change until the
        future is done."""
        if self._stream is None:
            return self._thread.submit(function, *args, **kwargs)
        caller = torch.accelerator.current_stream(self._device)
        begun = caller.record_event() if _tensors([*args, *kwargs.values()]) else None

        def call() -> T:
            assert self._stream is not None
            with self._stream:
                if begun is not None:
                    self._stream.wait_event(begun)
                result = function(*args, **kwargs)
                self._stream.synchronize()
            for tensor in _tensors(result):  # their memory is this stream's, which must not use it too early again
                tensor.record_stream(caller)
            return result

        return self._thread.submit(call)

    def close(self) -> None:
        """End the thread. Waiting calls are cancelled; a running call is waited for."""
        self._thread.shutdown(wait=True, cancel_futures=True)


def _tensors(value: Any) -> list[Tensor]:
    """Return the tensors on a GPU: the object itself, or tensors among the values of a mapping or sequence."""
    if isinstance(value, Tensor):
        return [] if value.is_cpu else [value]
    several = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else []
    return [tensor for each in several for tensor in _tensors(each)]


class DeviceVectors:
    """Has the methods of `Plane` for vectors on `device`.

    They are copied in a separate thread, on a separate stream, while the device computes."""

    def __init__(self, plane: Plane, device: torch.device) -> None:
        self._plane = plane
        self._device = device
        self._copies = DeviceThread(device, "copies")
        self._published = _done(None)

    def publish(self, x: Tensor, steps: int) -> None:
        """Let peers pull a copy of the present x, soon. Waits for the publication before."""
        self._published.result()
        self._published = self._copies.submit(self._publish, x.detach().clone(), steps)

    def inbox(self) -> list[tuple[Tensor, int, int]]:
        return [(vector.to(self._device), sender, steps) for vector, sender, steps in self._plane.inbox()]

    def pull(self, peer: int) -> Future[Pulled]:
        return self._received(peer, self._plane.pull(peer))

    def push(self, peer: int, vector: Tensor, steps: int) -> Future[bool]:
        return _then(self._copies.submit(self._to_host, vector), lambda copy: self._plane.push(peer, copy, steps))

    def ask(self, peer: int, vector: Tensor, steps: int) -> Future[Pulled]:
        copied = self._copies.submit(self._to_host, vector)
        return self._received(peer, _then(copied, lambda copy: self._plane.ask(peer, copy, steps)))

    def answer_with(self, answer: Answer) -> None:
        def on_device(vector: Tensor, limit_s: float) -> tuple[Tensor, int] | None:
            answered = answer(self._copies.submit(self._to_device, {0: vector}).result()[0], limit_s)
            if answered is None:
                return None
            made, steps = answered
            return self._copies.submit(self._to_host, made).result(), steps

        self._plane.answer_with(on_device)

    def exchange(self, vectors: Mapping[int, Tensor], steps: int, sources: Sequence[int]) -> Future[dict[int, Tensor]]:
        copied = self._copies.submit(self._each_to_host, vectors)  # in turn: exchanges begin in the order of the calls
        exchanged = _then(copied, lambda copies: self._plane.exchange(copies, steps, sources))
        return _then(exchanged, lambda arrived: self._copies.submit(self._to_device, arrived))

    def call(self, server: int, operation: str, part: Tensor | None, scalars: tuple[float, ...]) -> Future[Answered]:
        def received(answer: Answered) -> Future[Answered]:
            vector, staleness = answer
            if vector is None:
                return _done(answer)
            copied = self._copies.submit(self._to_device, {server: vector})
            return _then(copied, lambda arrived: _done((arrived[server], staleness)))

        if part is None:
            return _then(self._plane.call(server, operation, None, scalars), received)
        copied = self._copies.submit(self._to_host, part)
        return _then(_then(copied, lambda copy: self._plane.call(server, operation, copy, scalars)), received)

    def close(self) -> None:
        """End the thread of the copies."""
        self._copies.close()

    def _received(self, peer: int, future: Future[Pulled]) -> Future[Pulled]:
        """Return the future of a peer's vector, copied to the device."""

        def received(pulled: Pulled) -> Future[Pulled]:
            copied = self._copies.submit(self._to_device, {peer: pulled.vector})
            return _then(copied, lambda arrived: _done(replace(pulled, vector=arrived[peer])))

        return _then(future, received)

    def _publish(self, x: Tensor, steps: int) -> None:
        at_host = self._to_host(x)
        if self._device.type != "cpu":
            torch.accelerator.current_stream(self._device).synchronize()
        self._plane.publish(at_host, steps)

    def _to_host(self, vector: Tensor) -> Tensor:
        """Begin to copy a vector to page-locked memory, which torch keeps for the next one."""
        at_host = torch.empty(vector.shape, dtype=vector.dtype, pin_memory=self._device.type != "cpu")
        return at_host.copy_(vector.detach(), non_blocking=True)

    def _each_to_host(self, vectors: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """Begin to copy vectors, one that goes to several nodes once."""
        copies = {
            id(vector): self._to_host(vector) for vector in {id(each): each for each in vectors.values()}.values()
        }
        return {node: copies[id(vector)] for node, vector in vectors.items()}

    def _to_device(self, vectors: Mapping[int, Tensor]) -> dict[int, Tensor]:
        return {node: vector.to(self._device, non_blocking=True) for node, vector in vectors.items()}


def _then(future: Future[S], go_on: Callable[[S], Future[T]]) -> Future[T]:
    """Return the future of `go_on(result of future)`, or of the exception of either."""
    last: Future[T] = Future()

    def end(done: Future[T]) -> None:
        if (error := done.exception()) is not None:
            last.set_exception(error)
        else:
            last.set_result(done.result())

    def first_done(done: Future[S]) -> None:
        try:
            following = go_on(done.result())
        except Exception as error:  # of either: the caller asks the last future for it
            last.set_exception(error)
        else:
            following.add_done_callback(end)

    future.add_done_callback(first_done)
    return last


def _done(result: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(result)
    return future
