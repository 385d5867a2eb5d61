"""What signals do to a run: counted, deferred while something is written, and without effect after the end."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import pytest

from dsgd.host.signals import Interruption, StopRequests, remember_signals, signal_pipe
from dsgd.host.stop import STOP_SIGNALS
from tests.support.each_row import each_row


def test_a_second_ctrl_c_waits_for_what_is_being_written() -> None:
    done = []

    def run(stops: StopRequests) -> None:
        with stops.armed():
            assert not stops
            with stops.held():
                interrupt_twice()
                assert stops
                done.append("written")
            done.append("never")

    with remember_signals(STOP_SIGNALS) as stops, pytest.raises(KeyboardInterrupt):
        run(stops)
    assert done == ["written"]


def test_nothing_is_raised_once_the_status_is_decided_on() -> None:
    with remember_signals(STOP_SIGNALS) as stops:
        with stops.armed():
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)  # SLURM's signals come in twos
        for _ in range(3):
            signal.raise_signal(signal.SIGINT)


def test_a_second_ctrl_c_raises_once_and_again_only_where_it_is_looked_for() -> None:
    with remember_signals(STOP_SIGNALS) as stops, stops.armed():
        with pytest.raises(KeyboardInterrupt):  # Python may swallow it, as in destructors
            interrupt_twice()
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            stops.check()


def test_an_error_while_writing_is_not_hidden_by_a_second_ctrl_c() -> None:
    def write(stops: StopRequests) -> None:
        with stops.armed(), stops.held():
            interrupt_twice()
            raise OSError("full")

    with remember_signals(STOP_SIGNALS) as stops, pytest.raises(OSError, match="full"):
        write(stops)


def interrupt_twice() -> None:
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)


def test_a_command_is_interrupted_until_its_work_is_over() -> None:
    interruption = Interruption()
    before = signal.signal(signal.SIGTERM, interruption)
    try:
        with pytest.raises(KeyboardInterrupt), interruption.armed():
            signal.raise_signal(signal.SIGTERM)
        interruption.end()
        with interruption.armed():
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert interruption.asked == [signal.SIGTERM]


def test_a_signal_waits_until_the_code_of_others_is_left() -> None:
    interruption = Interruption()
    reached = []
    before = signal.signal(signal.SIGTERM, interruption)
    try:
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt), interruption.armed():
            reached.append("inside")
        with pytest.raises(KeyboardInterrupt):
            interruption.check()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not reached


@each_row("begin", [signal_pipe, partial(remember_signals, STOP_SIGNALS)])
def test_an_interruption_that_somebody_swallowed_is_heard_when_the_run_begins(
    begin: Callable[[], AbstractContextManager[object]],
) -> None:
    interruption = Interruption()
    before = signal.signal(signal.SIGTERM, interruption)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt), begin():
            pass
        assert signal.getsignal(signal.SIGTERM) is interruption
    finally:
        signal.signal(signal.SIGTERM, before)
