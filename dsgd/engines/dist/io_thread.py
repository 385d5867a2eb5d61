"""Run coroutines in one thread of a process, which does all input and output that other threads must not wait for.

A coroutine runs until it waits for a socket, for another coroutine or for a time. Sockets are registered once, with
edges: asyncio's loop, which registers them for each wait, took twice the time for a small message.

A wait for a peer counts slices of sleep, not time on the clock: a process that was itself stopped for an hour must not
blame its peers.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import select
import socket
import struct
import termios
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Generator
from concurrent.futures import Executor, Future
from itertools import count
from typing import Any, TypeVar

T = TypeVar("T")
EDGES = select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET
FEW_TIMERS = 1000
LONGEST_POLL_S = 1e5
SLICES_PER_WAIT = 8  # a wait for a peer ends at most one slice too early or too late
_running = threading.local()


class Sleep:
    """One sleep of one coroutine, which awaits it. Its result is the argument of the first call of `settle`."""

    __slots__ = ("result", "task")

    def __init__(self) -> None:
        self.result: tuple[Any] | None = None
        self.task: IoTask | None = None

    def __await__(self) -> Generator[Sleep, None, Any]:
        if self.result is None:
            yield self
        assert self.result is not None
        return self.result[0]

    def settle(self, result: Any) -> None:
        """End the sleep, unless it has ended. Only the thread of the coroutine may call."""
        if self.result is None:
            self.result = (result,)
            if self.task is not None:
                loop().ready.append(self.task)


class IoTask:
    """A coroutine that the loop runs, to an end that others may wait for."""

    def __init__(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self.coroutine = coroutine
        self.ended = False
        self.sleeps: list[Sleep] = []

    def step(self) -> None:
        """Run the coroutine until it sleeps or ends."""
        try:
            self.coroutine.send(None).task = self
        except StopIteration:
            self.end()
        except Exception:
            traceback.print_exc()
            self.end()

    def end(self) -> None:
        self.coroutine.close()
        self.ended = True
        loop().tasks.discard(self)
        for sleep in self.sleeps:
            sleep.settle(True)


class Loop:
    """Runs the coroutines of one thread. ready: tasks that can resume."""

    def __init__(self) -> None:
        self.ready: deque[IoTask] = deque()
        self.tasks: set[IoTask] = set()
        self._epoll = select.epoll()
        self._watched: dict[int, Callable[[], None]] = {}
        self._timers: list[tuple[float, int, Sleep]] = []
        self._numbers = count()
        self._calls: deque[Callable[[], object]] = deque()  # from other threads
        self._woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._woken, select.EPOLLIN | select.EPOLLET)
        self._is_stopped = False
        self._most_timers = FEW_TIMERS  # number of timers at which settled ones are dropped
        self._closing = threading.Lock()  # a closed descriptor's number may belong to another file by the next call

    def watch(self, descriptor: int, ready: Callable[[], None], events: int = EDGES) -> None:
        """Call a function whenever a descriptor becomes ready, until `forget`."""
        self._watched[descriptor] = ready
        self._epoll.register(descriptor, events)

    def forget(self, descriptor: int) -> None:
        if self._watched.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def start(self, coroutine: Coroutine[Any, Any, None]) -> IoTask:
        task = IoTask(coroutine)
        self.tasks.add(task)
        self.ready.append(task)
        return task

    def settle_later(self, sleep: Sleep, delay_s: float) -> None:
        """Settle a sleep as False after `delay_s` seconds."""
        timers = self._timers
        if len(timers) > self._most_timers:
            timers[:] = [timer for timer in timers if timer[2].result is None]
            heapq.heapify(timers)
            self._most_timers = max(FEW_TIMERS, 2 * len(timers))
        heapq.heappush(timers, (time.monotonic() + delay_s, next(self._numbers), sleep))

    def call(self, function: Callable[[], object]) -> bool:
        """Have a function called in the loop's thread, after earlier ones. Returns False if the loop has ended. For any
        thread."""
        with self._closing:
            if self._epoll.closed:
                return False
            self._calls.append(function)
            os.eventfd_write(self._woken, 1)
            return True

    def stop(self) -> None:
        self._is_stopped = True

    def run(self) -> None:
        """Run until `stop`, then cancel all coroutines."""
        _running.loop = self
        ready, calls, watched, timers = self.ready, self._calls, self._watched, self._timers
        while True:
            while ready:
                ready.popleft().step()
            if self._is_stopped:
                break
            while timers and timers[0][2].result is not None:
                heapq.heappop(timers)
            wait_s = min(max(0.0, timers[0][0] - time.monotonic()), LONGEST_POLL_S) if timers else None
            for descriptor, _ in self._epoll.poll(wait_s):
                if (function := watched.get(descriptor)) is not None:
                    function()
            while calls:
                calls.popleft()()
            if timers:
                now = time.monotonic()
                while timers and timers[0][0] <= now:
                    heapq.heappop(timers)[2].settle(False)
        for task in list(self.tasks):
            task.end()
        with self._closing:
            watched.clear()
            self._epoll.close()
            os.close(self._woken)
        for function in calls:
            function()
        del _running.loop


def loop() -> Loop:
    """Return the loop that runs in this thread."""
    return _running.loop


async def settled(sleep: Sleep, limit_s: float | None) -> Any:
    """Return the value that settled a sleep; False after limit_s."""
    if limit_s is not None:
        loop().settle_later(sleep, limit_s)
    return await sleep


async def tasks_ended(tasks: Collection[IoTask], limit_s: float = threading.TIMEOUT_MAX) -> None:
    """Wait for the end of tasks, at most for limit_s."""
    deadline = time.monotonic() + limit_s
    for task in tasks:
        if not task.ended:
            task.sleeps.append(sleep := Sleep())
            await settled(sleep, max(0.0, deadline - time.monotonic()))


async def called(executor: Executor, function: Callable[[], T]) -> T:
    """Call a function in a thread of an executor; returns its result or raises its error."""
    sleep, here = Sleep(), loop()
    future = executor.submit(function)
    future.add_done_callback(lambda done: here.call(lambda: sleep.settle(True)))
    await sleep
    return future.result()


async def _into(coroutine: Coroutine[Any, Any, T], future: Future[T]) -> None:
    try:
        future.set_result(await coroutine)
    except GeneratorExit:
        future.set_exception(ConnectionAbortedError("the loop has ended"))
        raise
    except Exception as error:
        future.set_exception(error)


class IoThread:
    """A loop in its own thread. Any other thread may call its methods."""

    def __init__(self, name: str) -> None:
        self._loop = Loop()
        self.call = self._loop.call
        self._thread = threading.Thread(target=self._loop.run, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the thread, wait for its end, and return its result or raise its error."""
        future: Future[T] = Future()
        self.call(lambda: self._loop.start(_into(coroutine, future)))
        return future.result()

    def close(self) -> None:
        """End all coroutines, and the thread."""
        self._loop.call(self._loop.stop)
        self._thread.join()


class Signal:
    """Wakes the one coroutine that waits for it, or the next one that does. Only the loop's thread may use it."""

    def __init__(self) -> None:
        self._is_set = False
        self._sleep: Sleep | None = None

    def set(self) -> None:
        self._is_set = True
        if self._sleep is not None:
            self._sleep.settle(True)

    async def wait(self, limit_s: float | None = None) -> None:
        """Sleep until it is set, at most for limit_s, and clear it."""
        if not self._is_set:
            self._sleep = Sleep()
            await settled(self._sleep, limit_s)
            self._sleep = None
        self._is_set = False


def unacknowledged(sock: socket.socket) -> int:
    """Return the bytes of a TCP connection that this kernel has not sent, or that are not acknowledged.

    A decrease is progress: on a slow link the last megabytes of a message are in flight long after the write."""
    (count,) = struct.unpack("@i", fcntl.ioctl(sock, termios.TIOCOUTQ, b"\0" * 4))
    return count
