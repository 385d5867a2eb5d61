"""The parent of a run's processes: signals while it forks, and a coordinator that says nothing any more."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dsgd.engines.dist.launch.parent import Lifeline, Parent, oversight
from dsgd.host.signals import StopRequests, signal_pipe
from tests.support.prefork import Prefork
from tests.support.watched_run import FREE_RUNNING, LONG, SILENCE_S, start

PATIENCE_S = 100  # after which a test gives up; nothing is measured with it

# A signal in the midst of a fork, where Python swallows what a handler raises
HOOKED = """
import os, signal, sys, threading
from dsgd.host.signals import Interruption
from dsgd.host.stop import STOP_SIGNALS
interruption = Interruption()
for number in STOP_SIGNALS:
    signal.signal(number, interruption)
hooks = [lambda: signal.raise_signal(signal.SIGTERM)]
os.register_at_fork(after_in_parent=lambda: hooks and hooks.pop()())
"""
PARENT = f"""{HOOKED}
from pathlib import Path
from dsgd.host.signals import signal_pipe
from dsgd.engines.dist.launch.parent import Parent
with signal_pipe() as signals:
    parent = Parent(Path(sys.argv[1]), signals)
    child = parent.start("child", lambda: threading.Event().wait())
    print(parent.supervise(child, lambda: os.kill(child.pid, signal.SIGKILL)))
"""
CHECK = f"""{HOOKED}
from dsgd.host.fork import run_in_child
def wait():
    with interruption.armed():
        threading.Event().wait()
print(tuple(run_in_child(wait)))
"""


@pytest.mark.parametrize(("program", "out"), [(PARENT, "-9\n"), (CHECK, "('', 130, [15])\n")])
def test_a_signal_in_the_midst_of_a_fork_is_not_lost(tmp_path: Path, program: str, out: str) -> None:
    line = [sys.executable, "-c", program, str(tmp_path)]
    ended = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (ended.stdout, ended.stderr) == (out, "")


def test_a_run_is_ended_by_a_signal_while_its_processes_are_forked(prefork: Prefork, tmp_path: Path) -> None:
    slow = "data._target_=tests.support.slow_gradients.SlowForks"
    watched = start(prefork, tmp_path / "run", *FREE_RUNNING["easgd"], "nodes=2", LONG, slow)
    watched.run.until(lambda: len(watched.observe()) >= 3)
    os.kill(watched.run.pid, signal.SIGTERM)
    watched.assert_ends("interrupted", 130)


def coordinator(line: Lifeline, wait: Callable[[StopRequests], None]) -> int:
    """Fork a process at the other end of the line. Returns its id; its exit status is 0, or 130 if it ends at once."""
    child = os.fork()
    if child == 0:
        status = 70
        try:
            with oversight(line) as stops, stops.armed():
                wait(stops)
            status = 0
        except KeyboardInterrupt:
            status = 130
        finally:
            os._exit(status)
    return child


def until_asked(stops: StopRequests) -> None:
    while not stops:
        time.sleep(0.01)


def for_good(stops: StopRequests) -> None:
    while True:
        time.sleep(0.01)


@pytest.mark.parametrize(("times", "wait", "status"), [(1, until_asked, 0), (2, for_good, 130)])
def test_a_request_to_stop_waits_for_the_coordinator_to_listen(
    times: int, wait: Callable[[StopRequests], None], status: int
) -> None:
    with contextlib.closing(Lifeline(60.0)) as line:
        for _ in range(times):
            line.ask_to_stop()
        assert os.waitstatus_to_exitcode(os.waitpid(coordinator(line, wait), 0)[1]) == status


def test_a_signal_of_somebody_else_asks_the_coordinator_for_nothing() -> None:
    """A terminal, or a launcher, may send it to all processes; the parent passes it on once."""
    with contextlib.closing(Lifeline(60.0)) as line:
        child = coordinator(line, until_asked)
        assert select.select([line.socket], [], [], PATIENCE_S)[0]  # it lives, and its handler stands
        for _ in range(3):
            os.kill(child, signal.SIGINT)
        line.ask_to_stop()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_parent_that_was_stopped_itself_does_not_take_its_coordinator_for_silent(tmp_path: Path) -> None:
    """Only time in which it looked counts."""
    with signal_pipe() as signals:
        parent = Parent(tmp_path, signals)
        line = Lifeline(SILENCE_S)
        over = parent.start("coordinator", lambda: threading.Event().wait(), line=line)  # it says nothing
        parent.polled = time.monotonic() - 10 * SILENCE_S
        assert not parent._poll(over)
        assert parent.status is None
        assert parent.supervise(over, lambda: None) == -signal.SIGKILL
        assert parent.status == "failed"
