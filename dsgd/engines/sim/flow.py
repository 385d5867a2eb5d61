"""Bytes that go through a port, counted evenly from a transfer's first bit to its last one."""

from __future__ import annotations

from collections import deque


class Flow:
    """Count the bytes of transfers that may overlap."""

    __slots__ = ("_passed", "_passing")

    def __init__(self) -> None:
        self._passed = 0.0  # bytes of transfers that are known to have ended
        self._passing: deque[tuple[float, float, float]] = deque()  # begin and end in seconds, bytes

    def add(self, now_s: float, begin_s: float, end_s: float, size: float) -> None:
        """Add a transfer that begins now or later, and forget what has ended by now."""
        passing = self._passing
        while passing and passing[0][1] <= now_s:
            self._passed += passing.popleft()[2]
        passing.append((begin_s, end_s, size))

    def until(self, time_s: float) -> float:
        """Return the bytes until a time, which must not lie before the last transfer was added."""
        total = self._passed
        for begin_s, end_s, size in self._passing:
            if end_s <= time_s:
                total += size
            elif begin_s < time_s:
                total += size * ((time_s - begin_s) / (end_s - begin_s))
        return total
