from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsgd.engines.rules.task import Task
from dsgd.engines.sim.loop import EventLoop
from dsgd.worker import Pull, Push, Request

TIMES = st.sampled_from([0.0, 0.1, 0.2, 0.3, 1.0, 1e9])


def drain(loop: EventLoop) -> None:
    while loop.next_time is not None:
        loop.process_one()


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
    loop.process_one()
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


class Answers:
    """Answers every request after a while, with the number of requests before it."""

    def __init__(self, loop: EventLoop) -> None:
        self.loop = loop
        self.count = 0

    def perform(self, task: Task[object], request: Request) -> None:
        delay = float(request.peer) if isinstance(request, (Pull, Push)) else 0.0
        self.loop.at(self.loop.now + delay, task.resume, self.count)
        self.count += 1


def test_a_task_runs_to_its_first_request_at_once_and_hands_on_its_result() -> None:
    loop = EventLoop()
    answers = Answers(loop)
    seen: list[object] = []

    async def child(seconds: int) -> str:
        seen.append(("child begins", seconds, loop.now))
        await Pull(seconds)
        seen.append(("child ends", seconds, loop.now))
        return f"slept {seconds}"

    async def parent() -> None:
        first, second = Task(child(3), None, answers.perform), Task(child(1), None, answers.perform)
        first.resume()
        second.resume()
        seen.append(("both started", loop.now))
        seen.append((await first, loop.now))
        seen.append((await second, loop.now))  # ended long ago: takes no time

    async def beside() -> None:
        seen.append((await task, "several may wait for one"))

    task = Task(parent(), None, answers.perform)
    waiting = [Task(beside(), None, answers.perform) for _ in range(2)]
    for each in (task, *waiting):
        each.resume()
    drain(loop)
    assert task.finished
    assert seen == [
        ("child begins", 3, 0.0),
        ("child begins", 1, 0.0),
        ("both started", 0.0),
        ("child ends", 1, 1.0),
        ("child ends", 3, 3.0),
        ("slept 3", 3.0),
        ("slept 1", 3.0),
        *[(None, "several may wait for one")] * 2,
    ]
