"""Functions that run in forked processes of their own, so that nothing of them stays in this one.

A process that has begun CUDA, or has a pool of threads, cannot fork others that use them.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple

from dsgd.host.fork import fork
from dsgd.host.signals import blocked, end_with_parent, raise_swallowed
from dsgd.host.stop import STOP_SIGNALS


class Told(NamedTuple):
    """Hold what a child has left. text: the result of its function. status: 0, 1 for an exception, 130 for
    KeyboardInterrupt, that of a SystemExit, or minus the number of the signal that killed it. signals: those of
    STOP_SIGNALS that have come since the block began, and were passed on to it."""

    text: str
    status: int
    signals: Sequence[int]


@dataclass
class _Child:
    """name: for the caller. waiting: signals to be sent once the process exists. text: its result as far as read."""

    name: int
    waiting: deque[int]
    pid: int = 0
    text: bytes = b""

    def send(self) -> None:
        """Send each signal once, though a handler may do the same in the midst of it."""
        while self.pid and self.waiting:
            with contextlib.suppress(IndexError, ProcessLookupError):
                os.kill(self.pid, self.waiting.popleft())


class Children:
    """Processes that call a function each, in a `with` block.

    Inside of it this process passes STOP_SIGNALS on to them, which get none by themselves from a terminal, and does
    nothing else on them. At its end, those that no result of `wait` has named do what they did before the block.
    signals: those that have come."""

    def __init__(self) -> None:
        self.signals: list[int] = []
        self._heard = 0  # of them, those that a result of `wait` has named
        self._children: dict[int, _Child] = {}  # by the pipe on which they tell their results

    def __enter__(self) -> Children:
        self._parent = os.getpid()
        # handlers that raise would do so inside of os.fork, where exceptions are lost
        self._handlers = {number: signal.signal(number, self._pass_on) for number in STOP_SIGNALS}
        try:
            raise_swallowed(self._handlers.values())
        except KeyboardInterrupt:
            self._restore_handlers()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the children that are left, as after an exception, and restore what signals did."""
        heard = self._heard
        self.end()
        while self._children:
            self.wait()
        self._restore_handlers()
        for number in self.signals[heard:]:
            signal.raise_signal(number)

    def end(self) -> None:
        """Ask all children to end."""
        for child in self._children.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGTERM)

    def __len__(self) -> int:
        """Return how many have not been waited for."""
        return len(self._children)

    def start(self, function: Callable[[], str], name: int = 0) -> None:
        """Fork a process that calls `function`, where signals do what they did here before the block. It also gets
        those that have come before: the caller may not have seen the last one yet."""
        reading, writing = os.pipe()
        with blocked(STOP_SIGNALS):  # a signal is either in the list already or comes to a child that is known
            child = self._children[reading] = _Child(name, deque(self.signals))

        def prepare() -> None:
            for pipe in self._children:
                os.close(pipe)
            os.setpgid(0, 0)
            end_with_parent(self._parent, signal.SIGTERM)
            self._restore_handlers()

        def main() -> int:
            text = function().encode()
            with contextlib.suppress(BrokenPipeError):  # whoever was to read it has been killed
                while text:  # a signal ends a call early
                    text = text[os.write(writing, text) :]
            return 0

        try:
            child.pid = fork(prepare, main)
        except OSError:  # no more processes, or no memory
            del self._children[reading]
            os.close(reading)
            raise
        finally:
            os.close(writing)
        child.send()

    def wait(self, idle: Callable[[], None] | None = None, every_s: float | None = None) -> tuple[int, Told]:
        """Wait for the first child that ends. Returns its name and what it has left.

        idle: called meanwhile, whenever so many seconds have passed without news."""
        while True:
            readable, _, _ = select.select(list(self._children), [], [], every_s)
            if idle is not None and not readable:
                idle()
            for pipe in readable:
                child = self._children[pipe]
                if text := os.read(pipe, 1 << 16):
                    child.text += text
                    continue
                _, status = os.waitpid(child.pid, 0)
                del self._children[pipe]
                os.close(pipe)
                signals = self.signals[:]
                self._heard = len(signals)
                return child.name, Told(child.text.decode(), os.waitstatus_to_exitcode(status), signals)

    def _pass_on(self, number: int, frame: object) -> None:
        self.signals.append(number)
        for child in list(self._children.values()):
            child.waiting.append(number)
            child.send()

    def _restore_handlers(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)


def told_by_child(function: Callable[[], str]) -> Told:
    """Fork, call `function` in the child, and wait for its end."""
    with Children() as children:
        children.start(function)
        _, child = children.wait()
    return child
