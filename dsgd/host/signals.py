"""Signals that end a run: their effect on a command, how a run remembers them, how to wait for them in select()."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from dsgd.host.stop import STOP_SIGNALS

PR_SET_PDEATHSIG = 1  # of Linux' prctl


def end_with_parent(parent: int, number: signal.Signals) -> None:
    """Send a signal to this process, forked by the process `parent`, when the parent ends. Only on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            os._exit(1)


class Interrupted(KeyboardInterrupt):
    """Raised when a signal ends a command: a plain KeyboardInterrupt may come from a user's code."""


@dataclass(eq=False)
class Armed:
    """A handler that raises Interrupted inside of `armed` only: elsewhere, other libraries' code may not tolerate
    it."""

    is_armed: bool = False

    def check(self) -> bool:
        """Return whether a signal has come. Raises Interrupted if it is armed."""
        raise NotImplementedError

    @contextmanager
    def armed(self) -> Iterator[None]:
        """Let signals raise Interrupted inside of the block; at its beginning, if it was due before."""
        before, self.is_armed = self.is_armed, True
        try:
            self.check()
            yield
        finally:
            self.is_armed = before


@dataclass(eq=False)
class Interruption(Armed):
    """A handler for STOP_SIGNALS: they raise Interrupted inside of `armed`, until the command's work is over. Elsewhere
    OmegaConf, during a change, would turn the exception into another error. asked: signals received so far."""

    over: bool = False
    asked: list[int] = field(default_factory=list)

    def __call__(self, number: int, frame: object) -> None:
        if not self.over:
            self.asked.append(number)
            if self.is_armed:
                raise Interrupted

    def check(self) -> bool:
        """Raise Interrupted if a signal has come, and the work is not over."""
        if self.asked and not self.over:
            raise Interrupted
        return bool(self.asked)

    def end(self) -> None:
        """Ignore further signals."""
        self.over = True


@contextmanager
def interruptible(ends_process: bool = False) -> Iterator[Interruption]:
    """Have an Interruption, which is yielded, handle STOP_SIGNALS inside of the block. ends_process: True if this
    process ends after the block, so that signals must not change its exit status; otherwise the previous handlers are
    restored."""
    interruption = Interruption()
    handlers = {number: signal.signal(number, interruption) for number in STOP_SIGNALS}
    try:
        yield interruption
    finally:
        interruption.end()
        for number, handler in handlers.items():
            if ends_process:
                ignore(number)
            else:
                signal.signal(number, handler)


def raise_swallowed(handlers: Iterable[Any]) -> None:
    """Raise Interrupted if one of these handlers got a signal and its exception was lost: Python drops exceptions of a
    destructor, and libraries drop exceptions of callbacks."""
    for handler in handlers:
        if isinstance(handler, Interruption):
            handler.check()


@contextmanager
def block_signals(numbers: Sequence[signal.Signals]) -> Iterator[set[int]]:
    """Block signals in this thread inside of the block, and deliver them at its end; yields the previous mask."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore(number: signal.Signals) -> None:
    """Ignore a signal from now on, also a pending one: Python would report a race condition if the handler was replaced
    before it was called."""
    ctypes.CDLL(None).signal(ctypes.c_int(number), ctypes.c_void_p(int(signal.SIG_IGN)))  # blocks further ones
    signal.signal(number, signal.SIG_IGN)  # calls the handler first for signals that have come


@dataclass(frozen=True)
class CaughtSignals:
    """Signals that were caught without another effect. descriptor: readable after each. numbers: their numbers."""

    descriptor: int
    numbers: list[int]


@contextmanager
def signal_pipe() -> Iterator[CaughtSignals]:
    """Catch STOP_SIGNALS and SIGCHLD inside of the block."""
    caught: list[int] = []
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    previous = {number: signal.getsignal(number) for number in (*STOP_SIGNALS, signal.SIGCHLD)}
    wakeup = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        for number in STOP_SIGNALS:
            signal.signal(number, lambda received, frame: caught.append(received))
        signal.signal(signal.SIGCHLD, lambda received, frame: None)
        raise_swallowed(previous.values())
        yield CaughtSignals(reading, caught)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        os.close(reading)
        os.close(writing)


@dataclass(eq=False)
class StopRequests(Armed):
    """The requests so far to end a run early; true from the first on, which asks for a checkpoint.

    A later Ctrl-C raises Interrupted, once, and only inside of `armed`. Inside of `held` it waits."""

    _count: int = 0
    _impatient: bool = False

    def __bool__(self) -> bool:
        return self._count > 0

    def add(self, is_ctrl_c: bool) -> None:
        """Count a request. May be called by any thread; `deliver` must follow in the main thread."""
        self._count += 1
        self._impatient |= is_ctrl_c and self._count > 1

    def deliver(self) -> None:
        """Raise Interrupted if that is due. Handlers of signals call it."""
        if self.is_armed:
            self.check()

    def check(self) -> bool:
        """Return whether the run should end. Raises Interrupted if it should end at once, also if the handler's
        exception was lost, as in destructors."""
        if self._impatient:
            self.is_armed = False
            raise Interrupted
        return self._count > 0

    @contextmanager
    def held(self) -> Iterator[None]:
        """Delay a second Ctrl-C to the end of the block, so that its writes are complete; it raises there, unless an
        error did."""
        before, self.is_armed = self.is_armed, False
        yield
        self.is_armed = before
        if before:
            self.check()


@contextmanager
def remember_signals(numbers: Sequence[signal.Signals]) -> Iterator[StopRequests]:
    """Yield the requests to stop that these signals make."""
    requests = StopRequests()

    def remember(number: int, frame: object) -> None:
        requests.add(number == signal.SIGINT)
        requests.deliver()

    previous = {number: signal.signal(number, remember) for number in numbers}
    try:
        raise_swallowed(previous.values())
        yield requests
    finally:
        for number, handler in previous.items():
            if not requests or number == signal.SIGINT:  # SLURM sends SIGTERM after the signal of its option --signal
                signal.signal(number, handler)
