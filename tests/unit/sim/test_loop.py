from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsgd.engines.sim.loop import EventLoop

TIMES = st.sampled_from([0.0, 0.1, 0.2, 0.3, 1.0, 1e9])


def drain(loop: EventLoop) -> None:
    while loop.next_time is not None:
        loop.process()


@given(st.recursive(TIMES, lambda inner: st.tuples(TIMES, st.lists(inner, max_size=4)), max_leaves=30))
def test_the_clock_never_runs_back_whatever_events_schedule(tree: object) -> None:
    """Events happen in the order of time and then of scheduling: one at the present moment after those already due."""
    loop = EventLoop()
    scheduled: list[tuple[float, int]] = []
    happened: list[tuple[float, int]] = []

    def schedule(node: Any) -> None:
        delay, children = node if isinstance(node, tuple) else (node, [])
        key = (loop.now + float(delay), len(scheduled))
        scheduled.append(key)
        loop.at(key[0], happen, key, children)

    def happen(key: tuple[float, int], children: list[object]) -> None:
        assert loop.now == key[0]
        happened.append(key)
        for child in children:
            schedule(child)

    schedule(tree)
    drain(loop)
    assert happened == sorted(scheduled)
    assert loop.processed == len(scheduled)


@pytest.mark.parametrize("time_s", [0.9999, -1.0, math.nan, -math.inf])
def test_an_event_in_the_past_is_refused(time_s: float) -> None:
    loop = EventLoop()
    loop.at(1.0, lambda: None)
    loop.process()
    with pytest.raises(ValueError, match=r"^an event must not lie in the past, got .* at 1\.0$"):
        loop.at(time_s, lambda: None)
    loop.at(1.0, lambda: None)
    assert loop.next_time == 1.0


def test_actions_are_never_compared() -> None:
    """Events at one time with arguments that have no order, tensors for instance."""
    loop, happened = EventLoop(), []
    for item in (object(), {}, object()):
        loop.at(1.0, happened.append, item)
    drain(loop)
    assert len(happened) == 3


def test_processing_ends_at_a_number_of_events_a_time_or_a_pause() -> None:
    loop, happened = EventLoop(), list[int]()

    def happen(number: int) -> None:
        happened.append(number)
        if number == 3:
            loop.pause()

    for number, time_s in enumerate((1.0, 1.0, 2.0, 2.0, 2.0, 3.0)):
        loop.at(time_s, happen, number)
    loop.process(most=1)
    assert happened == [0]
    loop.process(until_s=1.5, most=9)
    assert happened == [0, 1]
    assert loop.now == 1.0
    loop.process(until_s=9.0, most=9)
    assert happened == [0, 1, 2, 3]
    loop.process(until_s=2.0, most=9)  # the pause was for the call before
    assert happened == [0, 1, 2, 3, 4]
    assert loop.next_time == 3.0
