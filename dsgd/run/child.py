"""Functions that run in a forked process of their own, so that nothing of them stays in this one.

A process that has begun CUDA, or has a pool of threads, cannot fork others that use them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable

from dsgd.host.signals import STOP_SIGNALS, end_with_parent


def text_of_child(function: Callable[[], str]) -> tuple[str, int]:
    """Fork, call `function` in the child, and return its result and the child's exit status.

    The status is 0, 1 for an exception, that of a SystemExit, or minus the number of the signal that killed the child.
    Meanwhile this process passes STOP_SIGNALS on to the child, which gets none by itself from a terminal."""
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reading)
            os.setpgid(0, 0)
            end_with_parent(parent, signal.SIGTERM)
            os.write(writing, function().encode())
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        except Exception:  # the end of this process, which nobody else would report
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)
    os.close(writing)
    handlers = {number: signal.signal(number, lambda received, _: _pass_on(child, received)) for number in STOP_SIGNALS}
    try:
        with open(reading, encoding="utf-8") as told:
            text = told.read()
        _, status = os.waitpid(child, 0)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return text, os.waitstatus_to_exitcode(status)


def _pass_on(child: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, number)
