"""Functions that run in a forked process of their own, so that nothing of them stays in this one.

A process that has begun CUDA, or has a pool of threads, cannot fork others that use them.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dsgd.host.fork import fork
from dsgd.host.signals import STOP_SIGNALS, end_with_parent, raise_swallowed


class Told(NamedTuple):
    """Hold what a child has left. text: the result of its function. status: 0, 1 for an exception, 130 for
    KeyboardInterrupt, that of a SystemExit, or minus the number of the signal that killed it. signals: those of
    STOP_SIGNALS that came meanwhile, and were passed on to it."""

    text: str
    status: int
    signals: Sequence[int]


def told_by_child(function: Callable[[], str], ended: Callable[[], None] = lambda: None) -> Told:
    """Fork, call `function` in the child, where signals do what they do here, and wait for its end.

    Meanwhile this process passes STOP_SIGNALS on to the child, which gets none by itself from a terminal, and does
    nothing else on them. ended: called before they do again what they did."""
    parent, child = os.getpid(), 0
    came: list[int] = []
    waiting: deque[int] = deque()  # for the child to be there

    def pass_on(number: int, frame: object) -> None:
        came.append(number)
        waiting.append(number)
        if child:
            _send(child, waiting)

    reading, writing = os.pipe()
    # handlers that raise would do so inside of os.fork, where exceptions are lost
    handlers = {number: signal.signal(number, pass_on) for number in STOP_SIGNALS}

    def prepare() -> None:
        os.close(reading)
        os.setpgid(0, 0)
        end_with_parent(parent, signal.SIGTERM)
        for number, handler in handlers.items():
            signal.signal(number, handler)

    def main() -> int:
        os.write(writing, function().encode())
        return 0

    try:
        raise_swallowed(handlers.values())
        child = fork(prepare, main)
        _send(child, waiting)
        os.close(writing)
        with open(reading, encoding="utf-8") as told:
            text = told.read()
        _, status = os.waitpid(child, 0)
        ended()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return Told(text, os.waitstatus_to_exitcode(status), came)


def _send(child: int, numbers: deque[int]) -> None:
    """Send signals to the child, each once, though a handler may do the same in the midst of it."""
    while numbers:
        with contextlib.suppress(IndexError, ProcessLookupError):
            os.kill(child, numbers.popleft())
