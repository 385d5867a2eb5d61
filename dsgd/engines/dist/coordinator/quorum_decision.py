"""What workers are told while they train: whose gradients of a step are the first, decided in one place, so that
all take the same, and how many samples all have processed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from dsgd.engines.dist.control import Client, Message
from dsgd.engines.dist.coordinator.membership import Membership
from dsgd.experiment import Experiment

INTERVAL_S = 0.01  # between two messages to a worker
MESSAGES_PER_S = 2000  # to all workers together, at most


class QuorumDecision:
    """Collect who has computed a gradient, step by step, and tell all workers when there are enough."""

    def __init__(self, experiment: Experiment, tell: Callable[[dict[str, Any]], None]) -> None:
        self._count = experiment.contributors
        self._tell = tell
        self._steps = -1  # the latest that a worker has computed a gradient for
        self._first: list[int] = []  # ranks of those that have

    def computed(self, steps: int, rank: int) -> None:
        """Take note of the gradient of a worker that has made so many steps."""
        if steps > self._steps:
            self._steps, self._first = steps, []
        if steps < self._steps or len(self._first) == self._count or rank in self._first:
            return
        self._first.append(rank)
        if len(self._first) == self._count:
            self._tell({"kind": "first", "steps": steps, "ranks": self._first})


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
