"""Processes that a command forks for its runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from dsgd.host.fork import Children
from dsgd.host.stop import EXIT_INTERRUPTED

SCRIPT = """
import os, signal, sys
from dsgd.host.fork import Children

def result():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as a run that writes its record before it ends
    os.kill(os.getppid(), signal.SIGKILL)
    sys.stdin.read(1)
    return "done"

with Children() as children:
    children.start(result)
    children.wait()
"""


@pytest.fixture(autouse=True)
def _heeded() -> Iterator[None]:
    """Have SIGINT raise KeyboardInterrupt: a shell lets its jobs in the background ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_child_whose_parent_was_killed_leaves_no_traceback() -> None:
    """It has nobody to hand its result to. Found by the fault campaign, on two comparisons in one folder."""
    pipe = subprocess.PIPE
    parent = subprocess.Popen([sys.executable, "-c", SCRIPT], stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert parent.wait(timeout=300) == -signal.SIGKILL
    assert parent.communicate("x")[1] == ""


def test_a_signal_that_came_before_a_child_began_ends_it_too() -> None:
    """The caller looks for signals first, but one may come between that look and the start."""

    def endless() -> str:
        while True:
            time.sleep(1.0)

    with Children() as children:
        os.kill(os.getpid(), signal.SIGINT)
        children.start(endless)
        _, told = children.wait()
    assert (told.status, told.signals) == (EXIT_INTERRUPTED, [signal.SIGINT])


def test_a_signal_behind_the_last_result_does_what_it_did_before() -> None:
    def signalled() -> None:
        with Children() as children:
            children.start(lambda: "done")
            assert children.wait()[1].text == "done"
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        signalled()


def test_a_signal_that_a_result_has_named_does_nothing_more() -> None:
    def signalling() -> str:
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(100.0)
        return ""

    with Children() as children:
        children.start(signalling)
        assert children.wait()[1].signals == [signal.SIGINT]
