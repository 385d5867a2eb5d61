"""The coordinator's view of workers and servers: joined and lost members, the culprit of a failure, and the totals sent
to workers during training.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dsgd.engines.dist.control import Client, Message
from dsgd.engines.dist.coordinator.snapshots import RunTotals, combine_totals
from dsgd.engines.dist.job import HALF_GONE_S, HEARTBEAT_S
from dsgd.experiment import Experiment
from dsgd.host.gpu_facts import PEAK, combined_facts

INTERVAL_S = 0.01  # between two messages to a worker
MESSAGES_PER_S = 2000  # to all workers together, at most


@dataclass(eq=False)
class Member:
    """A worker (node < p) or a server, and the process that now is this node.

    client, snapshots: its two connections; None before they begin and after they have ended. address: address of its
    pairwise plane. joined: True once a process has claimed this node. half_gone: time when the first of the two
    connections ended, by time.monotonic(). steps, counters: last known values, including steps before a resume. gpu:
    facts of its GPUs."""

    node: int
    name: str
    is_server: bool
    client: Client | None = None
    snapshots: Client | None = None
    address: tuple[str, int] | None = None
    joined: bool = False
    ready: bool = False
    ended: bool = False
    ended_s: float = 0.0
    lost: bool = False
    half_gone: float | None = None
    steps: int = 0
    heard: float = 0.0
    counters: dict[str, Any] = field(default_factory=dict)
    gpu: dict[str, str] = field(default_factory=dict)

    def join(self, client: Client, address: tuple[str, int]) -> None:
        """Accept the process that is this node now. It continues the steps and counters of the resumed run."""
        self.client, self.address, self.joined = client, address, True
        self.heard = time.monotonic()

    def owns(self, client: Client) -> bool:
        """Return whether a connection is one of the process that now is this node."""
        return client is self.client or client is self.snapshots

    def silent_s(self, now: float) -> float:
        """Return the seconds since the last data from this member."""
        return now - max(self.heard, self.client.heard if self.client is not None else 0.0)


class Membership:
    """All members of a run, by node."""

    def __init__(self, experiment: Experiment, timeout_s: float, log: Callable[[str], None]) -> None:
        p, k = experiment.nodes, experiment.algo.servers
        self.members = [Member(i, f"worker {i}" if i < p else f"server {i - p}", i >= p) for i in range(p + k)]
        self.workers = self.members[:p]
        self._lost_before: set[int] = set()  # workers lost when the checkpoint of the resumed run was written
        self._experiment = experiment
        self._timeout_s = timeout_s
        self._checked = time.monotonic()
        self._log = log

    def __getitem__(self, node: int) -> Member:
        return self.members[node]

    def restore(self, state: Mapping[str, Any]) -> None:
        """Count the members' steps and counters in a checkpoint."""
        self._lost_before.update(state["lost"])
        for member, stored in zip(self.members, [*state["workers"], *state["servers"]], strict=True):
            member.steps, member.counters = stored["steps"], dict(stored["counters"])

    @property
    def live_workers(self) -> list[Member]:
        return [worker for worker in self.workers if not worker.lost]

    @property
    def lost_workers(self) -> set[int]:
        """Return the workers that the run has lost, also before it was resumed."""
        return self._lost_before | {worker.node for worker in self.workers if worker.lost}

    @property
    def submitting(self) -> set[int]:
        """Nodes that can submit a snapshot."""
        return {member.node for member in self.members if member.ready and not member.lost}

    @property
    def samples(self) -> int:
        """Samples processed by all workers together, lost ones included."""
        return self._experiment.samples_of(sum(worker.steps for worker in self.workers))

    def totals(self, time_s: float) -> RunTotals:
        """Return the totals of the run, as far as known. time_s: time on the training clock."""
        known = {member.node: (member.steps, member.counters) for member in self.members}
        alive = [member.node for member in self.members if not member.lost]
        return combine_totals(self._experiment, time_s, None, known, alive)

    def gpus(self) -> dict[str, Any]:
        """Return the workers' facts on their GPUs, for the summary; empty without a GPU."""
        peaks = [member.counters[PEAK] for member in self.members if PEAK in member.counters]
        return combined_facts(member.gpu for member in self.members) | ({PEAK: max(peaks)} if peaks else {})

    def update(self, member: Member, steps: int, counters: Mapping[str, Any] | None = None) -> None:
        """Record a member's progress, which also shows that it is alive. counters: None or empty: not reported."""
        member.steps = max(member.steps, steps)
        member.counters = dict(counters) if counters else member.counters
        if member.lost and member.client is not None:
            member.lost = False
            self._log(f"{member.name} is heard of again")

    def silent(self, now: float) -> list[Member]:
        """Return the members that have been silent for too long. Call it in every round of the event loop: after a long
        time between two calls, this process or the whole machine may have been stopped. So only the time that a member
        may take between two signs of life counts as silence."""
        forgiven_s, self._checked = now - self._checked - 2 * HEARTBEAT_S, now
        if forgiven_s > 0:
            for member in self.members:
                member.heard = now - max(0.0, member.silent_s(now) - forgiven_s)
        return [m for m in self.members if m.joined and not m.lost and m.silent_s(now) > self._timeout_s]

    def half_gone(self, now: float) -> list[Member]:
        """Return the members with one ended connection whose other one should also have ended."""
        return [m for m in self.members if m.half_gone is not None and now - m.half_gone > HALF_GONE_S]

    def blame(self, complaint: str, suspect: int | None) -> tuple[str, str | None]:
        """Return a line on the cause of a complaint, and the member's name: a silent member, or else the named
        suspect."""
        now = time.monotonic()
        quiet = max((m for m in self.members if not m.lost), key=lambda member: member.silent_s(now))
        if quiet.silent_s(now) > 3 * HEARTBEAT_S:
            return f"{quiet.name} has been silent for {quiet.silent_s(now):.1f} s; {complaint}", quiet.name
        if suspect is None:
            return complaint, None
        return f"{self.members[suspect].name} does not answer; {complaint}", self.members[suspect].name


def failure_line(member: Member | None, message: Message) -> str:
    """Return the error that a member reports. member: None for a process that had not announced its role."""
    return message["error"] if member is None else f"{member.name}: {message['error']}"


class QuorumDecision:
    """Collect the workers that have computed a gradient, step by step, and notify all workers when there are enough."""

    def __init__(self, experiment: Experiment, tell: Callable[[dict[str, Any]], None]) -> None:
        self._count = experiment.contributors
        self._tell = tell
        self._steps = -1  # latest step with a computed gradient
        self._first: list[int] = []  # ranks of the workers that have computed it

    def computed(self, steps: int, rank: int) -> None:
        """Note the gradient of a worker after `steps` steps."""
        if steps > self._steps:
            self._steps, self._first = steps, []
        if steps < self._steps or len(self._first) == self._count or rank in self._first:
            return
        self._first.append(rank)
        if len(self._first) == self._count:
            self._tell({"kind": "first", "steps": steps, "ranks": self._first})


class SampleTotals:
    """Sends each live worker the samples of all workers, and its own steps, periodically. send: sends to clients."""

    def __init__(self, members: Membership, send: Callable[[Iterable[Client | None], Message], None]) -> None:
        self._members = members
        self._send = send
        self._interval_s = max(INTERVAL_S, len(members.workers) / MESSAGES_PER_S)
        self._sent = time.monotonic()

    def tell(self, now: float) -> None:
        """Send the totals if they are due. now: time.monotonic()."""
        if now - self._sent > self._interval_s:
            self._sent = now
            samples = self._members.samples
            for member in self._members.live_workers:
                self._send([member.client], {"kind": "total", "samples": samples, "own_steps": member.steps})
