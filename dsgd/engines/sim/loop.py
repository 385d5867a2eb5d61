"""The event loop of the simulator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
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
    _paused: bool = False

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

    def process(self, until_s: float = inf, most: int = 1) -> None:
        """Advance the clock from event to event and call their actions: at most `most` events, none later than until_s,
        and none after an action that calls `pause`."""
        self._paused = False
        while most > 0 and not self._paused:
            if not self._present:
                if not self._times or self._times[0] > until_s:
                    return
                self.now = heappop(self._times)
                self._present = self._moments.pop(self.now)
                self._present.reverse()
            action, arguments = self._present.pop()
            self.processed += 1
            most -= 1
            action(*arguments)

    def pause(self) -> None:
        """Let `process` return after the present event."""
        self._paused = True
