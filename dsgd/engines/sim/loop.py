"""The event loop of the simulator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

Event = tuple[Callable[..., None], tuple[Any, ...]]


@dataclass(eq=False)
class EventLoop:
    """Process events in order of time, at equal times in the order of scheduling. now: virtual time, seconds.

    The heap holds distinct times, each with a list of events: many equal nodes do the same at the same time."""

    now: float = 0.0
    processed: int = 0
    _present: list[Event] = field(default_factory=list)  # remaining events of the current time, the next one last
    _moments: dict[float, list[Event]] = field(default_factory=dict)  # scheduled since then, by time
    _times: list[float] = field(default_factory=list)  # a heap of their keys

    def at(self, time_s: float, action: Callable[..., None], *arguments: Any) -> None:
        """Schedule action(*arguments) at time_s. Raises ValueError for a time in the past."""
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
        """Return the time of the next event, or None."""
        if self._present:
            return self.now
        return self._times[0] if self._times else None

    def process_one(self) -> None:
        """Advance the clock to the next event and call its action."""
        if not self._present:
            self.now = heappop(self._times)
            self._present = self._moments.pop(self.now)
            self._present.reverse()
        action, arguments = self._present.pop()
        self.processed += 1
        action(*arguments)
