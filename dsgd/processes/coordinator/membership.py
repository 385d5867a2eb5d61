"""Workers and servers of a run as the coordinator sees them: who has joined, who is lost, who is to blame."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dsgd.experiment import Experiment
from dsgd.processes.control import Client
from dsgd.processes.job import HEARTBEAT_S, Limits


@dataclass(eq=False)
class Member:
    """A worker (node < p) or a server. client: its connection, once it has joined; address: of its pairwise plane."""

    node: int
    name: str
    is_server: bool
    client: Client | None = None
    address: tuple[str, int] | None = None
    ready: bool = False
    ended: bool = False
    ended_s: float = 0.0
    lost: bool = False
    steps: int = 0
    heard: float = 0.0
    counters: dict[str, Any] = field(default_factory=dict)

    def join(self, client: Client, address: tuple[str, int]) -> None:
        self.client, self.address = client, address
        self.ready = self.lost = False
        self.heard = time.monotonic()

    def silent_s(self, now: float) -> float:
        """Return for how many seconds nothing has arrived from this member."""
        return now - max(self.heard, self.client.heard if self.client is not None else 0.0)


class Membership:
    """All members of a run, by node."""

    def __init__(self, experiment: Experiment, limits: Limits, log: Callable[[str], None]) -> None:
        p, k = experiment.nodes, experiment.algo.servers
        self.members = [Member(i, f"worker {i}" if i < p else f"server {i - p}", i >= p) for i in range(p + k)]
        self.workers = self.members[:p]
        self._batch_size = experiment.batch_size
        self._limits = limits
        self._checked = time.monotonic()
        self._log = log

    def __getitem__(self, node: int) -> Member:
        return self.members[node]

    @property
    def live_workers(self) -> list[Member]:
        return [worker for worker in self.workers if not worker.lost]

    @property
    def samples(self) -> int:
        """Samples processed by all workers together, lost ones included."""
        return sum(worker.steps for worker in self.workers) * self._batch_size

    def update(self, member: Member, steps: int) -> None:
        """Record a member's progress, which also shows that it is alive."""
        member.steps = max(member.steps, steps)
        if member.lost:
            member.lost = False
            self._log(f"{member.name} is heard of again")

    def silent(self, now: float) -> list[Member]:
        """Return the members that have been silent for too long. Call it in every round of the event loop: after a gap
        between two calls the whole machine may have been suspended, and the gap counts against nobody."""
        gap_s, self._checked = now - self._checked, now
        if gap_s > 2 * HEARTBEAT_S:
            for member in self.members:
                member.heard = now - max(0.0, member.silent_s(now) - gap_s)
        return [m for m in self.members if not m.lost and m.silent_s(now) > self._limits.timeout_s]

    def blame(self, complaint: str, suspect: int | None) -> tuple[str, str | None]:
        """Return a line on who caused a complaint, and its name: a silent member, else the suspect that it names."""
        now = time.monotonic()
        quiet = max(self.members, key=lambda member: member.silent_s(now))
        if quiet.silent_s(now) > 3 * HEARTBEAT_S:
            return f"{quiet.name} has been silent for {quiet.silent_s(now):.1f} s; {complaint}", quiet.name
        if suspect is None:
            return complaint, None
        return f"{self.members[suspect].name} does not answer; {complaint}", self.members[suspect].name
