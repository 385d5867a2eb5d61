"""Events in virtual time, and coroutines that wait for them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from heapq import heappop, heappush
from typing import Any, Generic, TypeVar

from dsgd.worker import Request

T = TypeVar("T")


class Loop:
    """A heap of (time, sequence, action, arguments). The running number breaks ties, so events at equal times happen in
    the order in which they were scheduled, and actions are never compared. now: seconds of virtual time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.processed = 0
        self._sequence = 0
        self.queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []

    def at(self, time_s: float, action: Callable[..., None], *arguments: Any) -> None:
        """Call action(*arguments) when the clock shows time_s. Raises ValueError for a time that has passed."""
        if not time_s >= self.now:
            raise ValueError(f"an event must not lie in the past, got {time_s} at {self.now}")
        heappush(self.queue, (time_s, self._sequence, action, arguments))
        self._sequence += 1

    @property
    def next_time(self) -> float | None:
        """When the next event happens; None if there is none."""
        return self.queue[0][0] if self.queue else None

    def process_one(self) -> None:
        """Advance the clock to the next event and let it happen."""
        self.now, _, action, arguments = heappop(self.queue)
        self.processed += 1
        action(*arguments)


class Join(Request):
    """Wait for a task to end; the answer is its result."""

    __slots__ = ("task",)

    def __init__(self, task: Task[Any]) -> None:
        self.task = task


class Task(Generic[T]):
    """A running coroutine. Every request it makes goes to `perform`, which calls `resume` with the answer, now or
    later."""

    __slots__ = ("_coroutine", "_perform", "_waiting", "finished", "owner", "result")

    def __init__(
        self, coroutine: Coroutine[Any, Any, T], owner: Any, perform: Callable[[Task[Any], Request], None]
    ) -> None:
        self._coroutine = coroutine
        self._perform = perform
        self._waiting: list[Task[Any]] = []
        self.owner = owner
        self.finished = False
        self.result: Any = None

    def resume(self, answer: Any = None) -> None:
        """Run on to the next request, or to the end, which resumes whoever waits for it."""
        try:
            request = self._coroutine.send(answer)
        except StopIteration as end:
            self.finished, self.result = True, end.value
            waiting, self._waiting = self._waiting, []
            for task in waiting:
                task.resume(end.value)
            return
        if isinstance(request, Join):
            request.task._waiting.append(self)
        else:
            self._perform(self, request)

    def close(self) -> None:
        """End the coroutine where it stands."""
        self._coroutine.close()

    def __await__(self) -> Generator[Request, Any, T]:
        if not self.finished:
            yield Join(self)
        return self.result
