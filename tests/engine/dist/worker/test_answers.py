"""Answers of the thread that takes the events: between two of them, or never."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import Any

from dsgd.engines.dist.worker.pairwise_requests import between_events

LIMIT_S = 60.0


def test_what_comes_too_late_is_not_answered_any_more() -> None:
    """The peer is told that there is no answer, and must not be given one after that."""
    events: SimpleQueue[Any] = SimpleQueue()
    answers: list[int] = []
    assert between_events(events, lambda: answers.append(1), 0.01) is None
    action, arguments = events.get()
    action(*arguments)
    assert answers == []


def test_an_answer_that_has_begun_in_time_is_waited_for() -> None:
    begun, over = threading.Event(), threading.Event()

    class AtOnce(SimpleQueue[Any]):
        def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
            threading.Thread(target=item[0], args=item[1]).start()
            assert begun.wait(LIMIT_S)

    def answer() -> str:
        begun.set()
        assert over.wait(LIMIT_S)
        return "an answer"

    threading.Timer(0.1, over.set).start()  # after the limit
    assert between_events(AtOnce(), answer, 0.01) == "an answer"
