"""Who takes part in a run, who is still there, and whom to name when it cannot go on."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dsgd.experiment import Experiment
from dsgd.processes.control.hub import Client
from dsgd.processes.job import BEAT_S, Limits


@dataclass(eq=False)
class Member:
    """A worker (node below p) or a server, as the coordinator sees it."""

    node: int
    name: str
    is_server: bool
    line: Client | None = None
    address: tuple[str, int] | None = None
    joined: bool = False
    ready: bool = False
    ended: bool = False
    ended_s: float = 0.0
    lost: bool = False
    steps: int = 0
    heard: float = 0.0
    counters: dict[str, Any] = field(default_factory=dict)

    def join(self, line: Client, address: tuple[str, int]) -> None:
        self.line, self.address = line, address
        self.joined, self.ready, self.lost = True, False, False
        self.heard = time.monotonic()

    def silent_s(self, now: float) -> float:
        """For how long nothing has come from it."""
        return now - max(self.heard, self.line.heard if self.line is not None else 0.0)


class Membership:
    """All members of a run; samples: that the workers have processed, the lost ones' included."""

    def __init__(self, experiment: Experiment, limits: Limits, log: Callable[[str], None]) -> None:
        p, k = experiment.nodes, experiment.algo.servers
        self.members = [Member(i, f"worker {i}" if i < p else f"server {i - p}", i >= p) for i in range(p + k)]
        self.workers = self.members[:p]
        self._batch_size = experiment.batch_size
        self._limits = limits
        self._asked = time.monotonic()
        self._log = log

    def __getitem__(self, node: int) -> Member:
        return self.members[node]

    @property
    def live_workers(self) -> list[Member]:
        return [worker for worker in self.workers if not worker.lost]

    @property
    def samples(self) -> int:
        return sum(worker.steps for worker in self.workers) * self._batch_size

    def moved(self, member: Member, steps: int) -> None:
        """A sign of life."""
        member.steps = max(member.steps, steps)
        if member.lost:
            member.lost = False
            self._log(f"{member.name} is heard of again")

    def silent(self, now: float) -> list[Member]:
        """Members of which nothing has been heard for too long. Is to be asked all the time: who asks may have been
        stopped together with all others, and the time that it has slept through counts against nobody."""
        slept_s, self._asked = now - self._asked, now
        if slept_s > 2 * BEAT_S:
            for member in self.members:
                member.heard = now - max(0.0, member.silent_s(now) - slept_s)
        return [m for m in self.members if not m.lost and m.silent_s(now) > self._limits.timeout_s]

    def lose(self, member: Member) -> None:
        member.lost = True

    def explain(self, complaint: str, blamed: int | None) -> tuple[str, str | None]:
        """One line that says who is to blame for a complaint, and its name: whoever is silent, else whom it names."""
        now = time.monotonic()
        quiet = max(self.members, key=lambda member: member.silent_s(now))
        if quiet.silent_s(now) > 3 * BEAT_S:
            return f"{quiet.name} has been silent for {quiet.silent_s(now):.1f} s; {complaint}", quiet.name
        if blamed is None:
            return complaint, None
        return f"{self.members[blamed].name} does not answer; {complaint}", self.members[blamed].name
