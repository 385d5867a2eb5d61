"""The commands as they are installed: a signal that comes while their modules are imported ends them without a word."""

from __future__ import annotations

import atexit
import importlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from dsgd.host.fork import EXIT_INTERRUPTED
from dsgd.host.signals import STOP_SIGNALS


def run() -> int:
    """Run dsgd-run, which sets up what signals do by itself."""
    ended: list[int] = []
    atexit.register(_end_at_once, ended)  # the first to be registered is the last to be called
    _end_on_signals()
    from dsgd.cli.run import main

    ended.append(main())
    return ended[0]


def plot() -> int:
    """Run dsgd-plot."""
    return _imported("dsgd.cli.plot")()


def compare() -> int:
    """Run dsgd-compare."""
    return _imported("dsgd.cli.compare")()


def sweep() -> int:
    """Run dsgd-sweep."""
    return _imported("dsgd.cli.sweep")()


def reproduce() -> int:
    """Run dsgd-reproduce."""
    return _imported("dsgd.cli.reproduce")()


def calibrate() -> int:
    """Run dsgd-calibrate."""
    return _imported("dsgd.cli.calibrate")()


def _imported(module: str) -> Callable[[], int]:
    """Return the function of a command; once it is there signals do again what they did."""
    before = _end_on_signals()
    main = importlib.import_module(module).main
    for number, handler in before.items():
        signal.signal(number, handler)
    return main


def _end_on_signals() -> dict[signal.Signals, Any]:
    """Have STOP_SIGNALS end this process. Returns what they did before."""
    return {number: signal.signal(number, _end) for number in STOP_SIGNALS}


def _end_at_once(ended: Sequence[int]) -> None:
    """End this process with its status, if it has one. Python would delete every object first, which takes a tenth of a
    second once torch is imported."""
    if not ended:  # it ends with an exception
        return
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):  # Python reports it
        return
    os._exit(ended[0])


def _end(number: int, frame: object) -> NoReturn:
    os._exit(EXIT_INTERRUPTED)  # an exception could be lost, or printed, wherever modules are imported
