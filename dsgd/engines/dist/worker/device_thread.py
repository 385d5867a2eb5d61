"""A thread for work on a worker's device that must not wait for the gradients there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
T = TypeVar("T")


class DeviceThread:
    """Calls functions in the order in which they are submitted, in a thread of its own, on a GPU with a stream of its
    own.

    A function with a tensor of the device among its arguments finds done there what its caller had begun before; one
    without begins at once. What it has done there is done when its future is."""

    def __init__(self, device: torch.device, name: str) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)  # starts no thread before its first task

    def submit(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call function(*args, **kwargs) after all that was submitted before. Its arguments must not change until the
        future is done."""
        if self._stream is None:
            return self._thread.submit(function, *args, **kwargs)
        caller = torch.cuda.current_stream(self._device)
        begun = caller.record_event() if _tensors([*args, *kwargs.values()]) else None

        def call() -> T:
            assert self._stream is not None
            with torch.cuda.stream(self._stream):
                if begun is not None:
                    self._stream.wait_event(begun)
                result = function(*args, **kwargs)
                self._stream.synchronize()
            for tensor in _tensors(result):  # their memory is this stream's, which must not use it too early again
                tensor.record_stream(caller)
            return result

        return self._thread.submit(call)

    def close(self) -> None:
        """End the thread. Calls that have not begun are cancelled; one that has is waited for."""
        self._thread.shutdown(wait=True, cancel_futures=True)


def _tensors(value: Any) -> list[Tensor]:
    """Return the tensors on a GPU: the object itself, or those among the values of a mapping or sequence."""
    if isinstance(value, Tensor):
        return [value] if value.is_cuda else []
    several = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else []
    return [tensor for each in several for tensor in _tensors(each)]
