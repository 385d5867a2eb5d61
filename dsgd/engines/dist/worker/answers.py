"""Have the coroutines' thread answer a peer, between two events."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


def between_events(
    events: SimpleQueue[tuple[Callable[..., None], tuple[Any, ...]]], answer: Callable[[], T], limit_s: float
) -> T | None:
    """Return answer(), called by the thread that takes the events; None, and no call, if that does not come to it
    within limit_s seconds."""
    answered: Future[T] = Future()
    events.put((give_answer, (answered, answer)))
    try:
        return answered.result(limit_s)
    except TimeoutError:
        return None if answered.cancel() else answered.result()


def give_answer(answered: Future[T], answer: Callable[[], T]) -> None:
    """Answer, unless that is no longer waited for."""
    if answered.set_running_or_notify_cancel():
        answered.set_result(answer())
