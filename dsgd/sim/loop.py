"""Events in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

Event = tuple[Callable[..., None], tuple[Any, ...]]


class Loop:
    """Events by moment, and a heap of the moments. Those at equal times happen in the order in which they were
    scheduled, and actions are never compared. now: seconds of virtual time.

    Many equal nodes do the same at the same time: then the heap holds few moments, however many events there are."""

    def __init__(self) -> None:
        self.now = 0.0
        self.processed = 0
        self._present: list[Event] = []  # what is left of the latest moment, the next one last
        self._moments: dict[float, list[Event]] = {}  # what has been scheduled since, and for later
        self._times: list[float] = []  # a heap of their keys

    def at(self, time_s: float, action: Callable[..., None], *arguments: Any) -> None:
        """Call action(*arguments) when the clock shows time_s. Raises ValueError for a time that has passed."""
        moment = self._moments.get(time_s)
        if moment is not None:
            moment.append((action, arguments))
            return
        if not time_s >= self.now:
            raise ValueError(f"an event must not lie in the past, got {time_s} at {self.now}")
        self._moments[time_s] = [(action, arguments)]
        heappush(self._times, time_s)

    @property
    def next_time(self) -> float | None:
        """When the next event happens; None if there is none."""
        if self._present:
            return self.now
        return self._times[0] if self._times else None

    def process_one(self) -> None:
        """Advance the clock to the next event and let it happen."""
        if not self._present:
            self.now = heappop(self._times)
            self._present = self._moments.pop(self.now)
            self._present.reverse()
        action, arguments = self._present.pop()
        self.processed += 1
        action(*arguments)
