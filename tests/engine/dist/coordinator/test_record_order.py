"""Whatever order snapshots come in, whoever dies or resumes: what a record counts never goes back."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dsgd.engines.dist.control import Client, Message
from dsgd.engines.dist.coordinator.membership import Member, Membership
from dsgd.engines.dist.coordinator.snapshot_schedule import SnapshotSchedule
from dsgd.engines.dist.coordinator.snapshots import LAST, PendingSnapshots, Snapshot, initial_snapshots
from dsgd.engines.rules.marks import Counters
from dsgd.problem.problem import build_problem
from tests.support.cases import prepared

NODES = 3
EVERY_STEPS = 2  # of all workers, between two marks
EVERY_TIME_S = 0.3
OPTIONS = ("experiment=quadratic", f"nodes={NODES}", f"eval.every_steps={EVERY_STEPS}", "batch_size=1")
NODE = st.integers(0, NODES - 1)
SOME = st.integers(0, 3)


class Process:
    """What a worker's process has done, what it was asked for, and what it has submitted that has not arrived."""

    def __init__(self, client: Client, steps: int, counters: dict[str, Any]) -> None:
        self.client = client
        self.steps = steps
        self.sent, self.missed = counters.get("sent", [0])[0], counters.get("missed", 0)
        self.staleness = list(counters.get("staleness", (0, 0, 0)))
        self.asked: deque[Message] = deque()
        self.submitted: deque[tuple[str, Snapshot]] = deque()
        self.checkpoint: Message | None = None
        self.mark_due = self.ended = False

    def counters(self) -> dict[str, Any]:
        return {"sent": [self.sent], "busy_s": 0.0, "staleness": list(self.staleness), "missed": self.missed}

    def submit(self, key: str, time_s: float) -> None:
        extra = {"batches": self.steps} if key.startswith("checkpoint") else {}
        self.submitted.append((key, Snapshot(self.steps, time_s, self.counters(), {}, extra)))

    def submit_due(self, time_s: float) -> None:
        if self.mark_due:
            self.submit(f"step:{self.steps}", time_s)
        self.mark_due = False

    def step(self, time_s: float, cost: int, lockstep: bool) -> None:
        """Do as `WorkerEngine` does between two looks at `done`."""
        if self.checkpoint is not None and self.steps >= (self.checkpoint["steps"] or 0):
            self.submit_due(time_s)
            self.submit(self.checkpoint["key"], time_s)
            self.checkpoint = None
        self.submit_due(time_s)
        self.sent, self.missed, self.steps = self.sent + 10 * cost, self.missed + cost // 3, self.steps + 1
        self.staleness = [self.staleness[0] + cost, self.staleness[1] + 1, max(self.staleness[2], cost)]
        self.mark_due = lockstep and self.steps % EVERY_STEPS == 0


class RecordedRun(RuleBasedStateMachine):
    """A run without processes: its schedule, its members, and everything that may happen to them in any order."""

    algo = "gossip"

    def __init__(self) -> None:
        super().__init__()
        self.experiment = prepared(*OPTIONS, f"algo={self.algo}", f"eval.every_time_s={EVERY_TIME_S}")
        self.lockstep = self.experiment.algo.lockstep
        self.time_s = 0.0
        self.record: list[tuple[str, Counters]] = []
        self.asked: list[str] = []  # marks and checkpoints since the beginning or the resumption, in their order
        self.kept = 0  # marks that were there at the resumption
        self.over = False
        self.training = True
        first = initial_snapshots(self.experiment, build_problem(self.experiment))
        self.record.append((first.key, first.counters(self.experiment)))
        self.state = first.checkpoint(self.experiment, self.progress())
        self.lines = 1
        self.begin()

    def progress(self) -> dict[str, Any]:
        last = self.record[-1][1]
        return {"last_values": {"time_s": last.time_s, "samples": last.samples}}

    def begin(self) -> None:
        """Begin, or go on, at the last checkpoint."""
        self.time_s, self.record, self.asked, self.kept = (
            self.state["time_s"],
            self.record[: self.lines],
            [],
            self.lines,
        )
        self.members = Membership(self.experiment, 60.0, lambda line: None)
        self.schedule = SnapshotSchedule(self.experiment, self.members, self.send, None)
        self.members.restore(self.state)
        self.schedule.restore(self.state)
        self.processes: list[Process | None] = [None] * NODES
        for node in range(NODES):
            self.join(node)
            self.members[node].ready = True
        self.made = [member.steps for member in self.members.workers]

    def join(self, node: int) -> None:
        member = self.members[node]
        client = Client(None, "", 0.0, owner=node)  # pyright: ignore[reportArgumentType]  # nothing is sent here
        member.join(client, ("", 0))
        self.processes[node] = Process(client, member.steps, member.counters)

    def send(self, clients: Iterable[Client | None], message: Message) -> None:
        self.asked.append(message["key"])
        for client in clients:
            process = None if client is None else self.processes[client.owner]
            if process is not None and process.client is client:
                process.asked.append(message)

    def collect(self) -> None:
        for pending in self.schedule.take_complete(self.time_s):
            self.schedule.release(pending)
            if pending.is_checkpoint:
                self.save(pending)
            elif pending.key == LAST:
                self.over = True
            if not pending.is_checkpoint and not self.schedule.is_repeated(pending):
                self.record.append((pending.key, pending.counters(self.experiment)))

    def save(self, pending: PendingSnapshots) -> None:
        """What a checkpoint counts is what was asked for before it, and no step that nobody made."""
        self.state, self.lines = pending.checkpoint(self.experiment, self.progress()), len(self.record)
        for node, stored in enumerate(self.state["workers"]):
            assert stored["steps"] <= self.made[node]
        before = self.asked[: self.asked.index(pending.key)]
        since = [key for key, _ in self.record[self.kept :]]
        if self.lockstep:  # a mark by time may go before a checkpoint that was asked for earlier, of a later step
            before = [key for key in self.asked if key in since]
        else:
            self.assert_recorded(before)
        by_samples, by_time = self.state["next"]
        for key in self.asked:
            kind, _, number = key.partition(":")
            limit = by_time if kind == "time" else by_samples * self.experiment.mark_samples
            assert kind == "checkpoint" or (int(number) < limit) == (key in before), (key, self.state["next"], since)
        last, totals = self.record[-1][1], pending.totals(self.experiment).counters
        assert totals.time_s >= last.time_s
        assert totals.samples >= last.samples
        assert sum(totals.bytes_sent) >= sum(last.bytes_sent)
        assert totals.samples == sum(stored["steps"] for stored in self.state["workers"])

    # What may happen

    @rule(node=NODE, cost=SOME)
    def step(self, node: int, cost: int) -> None:
        process = self.processes[node]
        slowest = min((other.steps for other in self.processes if other is not None), default=0)
        if process is None or process.ended or (self.lockstep and process.steps > slowest):
            return
        process.step(self.time_s, cost, self.lockstep)
        self.made[node] = max(self.made[node], process.steps)

    @rule(node=NODE, with_counters=st.booleans())
    def report(self, node: int, with_counters: bool) -> None:
        process = self.processes[node]
        if process is not None and self.members[node].ready:
            self.members.update(self.members[node], process.steps, process.counters() if with_counters else None)

    @rule(node=NODE)
    def listen(self, node: int) -> None:
        process = self.processes[node]
        if process is None or not process.asked:
            return
        message = process.asked.popleft()
        if message["kind"] == "mark":
            process.ended = process.ended or message["last"]
            process.submit(message["key"], self.time_s)
        elif process.ended or (message["steps"] is not None and process.steps >= message["steps"]):
            self.members.update(self.members[node], process.steps)
            self.schedule.retry_checkpoint(message["key"])
            self.collect()
        else:
            process.checkpoint = message

    @rule(node=NODE)
    def deliver(self, node: int) -> None:
        process, member = self.processes[node], self.members[node]
        if process is not None and process.submitted:
            key, snapshot = process.submitted.popleft()
            self.members.update(member, snapshot.steps, snapshot.counters)
            self.schedule.add(node, key, snapshot, training=self.training)
            self.collect()

    @rule(passed_s=st.floats(0.01, 0.4), stopping=st.booleans())
    def tick(self, passed_s: float, stopping: bool) -> None:
        self.time_s += passed_s
        if self.members.submitting:
            self.schedule.request_due(self.time_s, self.time_s, stopping)
            self.collect()

    @precondition(lambda self: not self.lockstep)
    @rule(node=NODE)
    def fall_silent(self, node: int) -> None:
        if self.members.submitting - {node}:
            self.lose(self.members[node])

    @precondition(lambda self: not self.lockstep)
    @rule(node=NODE, delivered=SOME)
    def die(self, node: int, delivered: int) -> None:
        """Some of what was submitted still arrives."""
        member, process = self.members[node], self.processes[node]
        if process is None or not self.members.submitting - {node}:
            return
        member.client, member.lost = None, True
        for _ in range(delivered):
            self.deliver(node)
        self.processes[node] = None
        self.lose(member)

    def lose(self, member: Member) -> None:
        member.lost = True
        self.schedule.give_up(member)
        self.collect()

    @rule()
    def resume(self) -> None:
        self.begin()

    # What must hold

    @invariant()
    def nothing_goes_back(self) -> None:
        for (_, one), (_, following) in pairwise(self.record):
            for value in ("time_s", "samples", "staleness_max"):
                assert getattr(one, value) <= getattr(following, value), value
            assert sum(one.bytes_sent) <= sum(following.bytes_sent)
        keys = [key for key, _ in self.record if not key.startswith("samples")]
        assert len(keys) == len(set(keys))

    def teardown(self) -> None:
        """However it has gone so far, the run can come to its end, and then no mark is missing."""
        self.schedule.request_last(self.time_s)
        self.training = False
        for _ in range(4):
            for node in range(NODES):
                process = self.processes[node]
                while process is not None and process.asked:
                    self.listen(node)
                while process is not None and process.submitted:
                    self.deliver(node)
        assert self.over
        self.nothing_goes_back()
        if not self.lockstep:
            self.assert_recorded(self.asked)

    def assert_recorded(self, asked: list[str]) -> None:
        """All marks that were asked for are there, in this order, but for those that nobody was left to submit."""
        wanted = [key for key in asked if not key.startswith("checkpoint")]
        found = [key for key, _ in self.record[self.kept :]]
        assert found == [key for key in wanted if key in found]
        assert len(found) == len(wanted) - self.schedule.dropped_marks


class LockstepRun(RecordedRun):
    algo = "sync"


TestFreeRunning = RecordedRun.TestCase
TestLockstep = LockstepRun.TestCase
TestFreeRunning.settings = TestLockstep.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


def test_a_mark_by_time_that_workers_submitted_at_different_steps_takes_nothing_back() -> None:
    run = LockstepRun()
    run.tick(passed_s=0.375, stopping=False)
    run.listen(2)  # at step 0; the others are asked for the same mark later
    for cost in (1, 1, 0):
        for node in range(NODES):
            run.step(node, cost)
    run.deliver(0)
    run.teardown()
    assert [key for key, _ in run.record] == ["checkpoint:0", "step:2", "time:1", "last"]
