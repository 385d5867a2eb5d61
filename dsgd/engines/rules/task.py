"""Concurrent coroutines, driven by an engine in virtual or real time."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

from dsgd.worker import Request

T = TypeVar("T")


class Join(Request):
    """Wait for a task to end and return its result."""

    __slots__ = ("task",)

    def __init__(self, task: Task[Any]) -> None:
        self.task = task


class Task(Generic[T]):
    """Run a coroutine: pass each of its requests to `perform`, which calls `resume` with the answer, now or later."""

    __slots__ = ("_coroutine", "_perform", "_taken", "_waiting", "closed", "finished", "owner", "result")

    def __init__(
        self, coroutine: Coroutine[Any, Any, T], owner: Any, perform: Callable[[Task[Any], Request], None]
    ) -> None:
        self._coroutine = coroutine
        self._perform = perform
        self._waiting: tuple[Task[Any], ...] = ()
        self._taken: tuple[Callable[[], None], ...] = ()
        self.owner = owner
        self.finished = self.closed = False
        self.result: Any = None

    def resume(self, answer: Any = None) -> None:
        """Run to the next request or to the end; the end resumes the tasks that wait for this one. A closed task drops
        the answer."""
        if self.closed:
            return
        try:
            request = self._coroutine.send(answer)
        except StopIteration as end:
            self.finished, self.result = True, end.value
            waiting, self._waiting = self._waiting, ()
            for task in waiting:
                task.resume(end.value)
            return
        if isinstance(request, Join):
            request.task._waiting += (self,)
        else:
            self._perform(self, request)

    def when_taken(self, action: Callable[[], None]) -> None:
        """Call action() once, when the coroutine that awaits this task resumes with its result."""
        self._taken += (action,)

    def close(self) -> None:
        """Close the coroutine."""
        self.closed = True
        self._coroutine.close()

    def __await__(self) -> Generator[Request, Any, T]:
        if not self.finished:
            yield Join(self)
        taken, self._taken = self._taken, ()
        for action in taken:
            action()
        return self.result


def start(coroutine: Coroutine[Any, Any, T], owner: Any, perform: Callable[[Task[Any], Request], None]) -> Task[T]:
    """Run a coroutine up to its first request, as a new task."""
    task = Task(coroutine, owner, perform)
    task.resume()
    return task
