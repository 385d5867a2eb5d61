"""Events in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class Loop:
    """A heap of (time, sequence, action, arguments). The running number breaks ties, so events at equal times happen in
    the order in which they were scheduled, and actions are never compared. now: seconds of virtual time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.processed = 0
        self._sequence = 0
        self.queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []

    def at(self, time_s: float, action: Callable[..., None], *arguments: Any) -> None:
        """Call action(*arguments) when the clock shows time_s. Raises ValueError for a time that has passed."""
        if not time_s >= self.now:
            raise ValueError(f"an event must not lie in the past, got {time_s} at {self.now}")
        heappush(self.queue, (time_s, self._sequence, action, arguments))
        self._sequence += 1

    @property
    def next_time(self) -> float | None:
        """When the next event happens; None if there is none."""
        return self.queue[0][0] if self.queue else None

    def process_one(self) -> None:
        """Advance the clock to the next event and let it happen."""
        self.now, _, action, arguments = heappop(self.queue)
        self.processed += 1
        action(*arguments)
