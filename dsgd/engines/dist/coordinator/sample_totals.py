"""Tell free-running workers how many samples all of them have processed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from dsgd.engines.dist.control import Client, Message
from dsgd.engines.dist.coordinator.membership import Membership

INTERVAL_S = 0.01  # between two messages to a worker
MESSAGES_PER_S = 2000  # to all workers together, at most


class SampleTotals:
    """Sends each live worker the samples of all, and its own steps among them, now and then. send: to clients."""

    def __init__(self, members: Membership, send: Callable[[Iterable[Client | None], Message], None]) -> None:
        self._members = members
        self._send = send
        self._interval_s = max(INTERVAL_S, len(members.workers) / MESSAGES_PER_S)
        self._sent = time.monotonic()

    def tell(self, now: float) -> None:
        """Send the totals if that is due. now: by time.monotonic()."""
        if now - self._sent > self._interval_s:
            self._sent = now
            samples = self._members.samples
            for member in self._members.live_workers:
                self._send([member.client], {"kind": "total", "samples": samples, "own_steps": member.steps})
