"""Signals that end a run, and a way to wait for signals in select()."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

# Each asks for a checkpoint and the end: Ctrl-C, kill, and what SLURM can be told to send before a time limit.
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
PR_SET_PDEATHSIG = 1  # of Linux' prctl


def end_with_parent(parent: int, number: signal.Signals) -> None:
    """Have this process, forked by the process `parent`, get a signal when that one ends. Only on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            os._exit(1)


@contextmanager
def signal_pipe() -> Iterator[tuple[int, list[int]]]:
    """Yield a file descriptor, readable after STOP_SIGNALS and SIGCHLD, and the list of the stop signals caught."""
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
        yield reading, caught
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        os.close(reading)
        os.close(writing)


@contextmanager
def remembered(numbers: Sequence[signal.Signals]) -> Iterator[list[int]]:
    """Yield the list of the signals that have come. Ctrl-C after any other of them raises KeyboardInterrupt."""
    caught: list[int] = []

    def remember(number: int, frame: object) -> None:
        caught.append(number)
        if number == signal.SIGINT and len(caught) > 1:
            raise KeyboardInterrupt

    previous = {number: signal.signal(number, remember) for number in numbers}
    try:
        yield caught
    finally:
        for number, handler in previous.items():
            if not caught or number == signal.SIGINT:  # SLURM sends SIGTERM after the signal it was told to send
                signal.signal(number, handler)
