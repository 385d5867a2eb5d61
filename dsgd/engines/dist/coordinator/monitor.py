"""The coordinator's thread that listens to all processes: start, marks and checkpoints, lost members, the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import Any

from torch import Tensor

from dsgd.engines.dist.control import Client, Hub, Message
from dsgd.engines.dist.coordinator.membership import Member, Membership, QuorumDecision, SampleTotals, failure_line
from dsgd.engines.dist.coordinator.run_phase import RunPhase, RunStart, StartFailed
from dsgd.engines.dist.coordinator.shared_vectors import SharedVectors
from dsgd.engines.dist.coordinator.snapshot_schedule import SnapshotSchedule
from dsgd.engines.dist.coordinator.snapshots import LAST, PendingSnapshots, RunTotals, Snapshot
from dsgd.engines.dist.frames import BadFrame
from dsgd.engines.dist.job import ProcessJob
from dsgd.engines.rules.trace import TraceRow

EVENT_POLL_S = 0.01
COORDINATOR_HEARTBEAT_S = 1.0
BLAME_DELAY_S = 1.5  # wait after a complaint, to find its cause
CLOSE_TIMEOUT_S = 5.0


class RunMonitor:
    """Controls the course of a run. Members without an underscore are for the thread that evaluates marks.

    culprit: name of the member whose log may explain a failure. complete: marks and checkpoints with all their
    snapshots; None ends the queue. stop_requested: True if the run should end with a checkpoint."""

    def __init__(self, job: ProcessJob, hub: Hub, log: Callable[[str], None], checkpoint_every_s: float | None) -> None:
        self.phase = RunPhase(job.state["time_s"] if job.state is not None else 0.0)
        self.culprit: str | None = None
        self.trace: list[TraceRow] = []
        self.complete: SimpleQueue[PendingSnapshots | None] = SimpleQueue()
        self.stop_requested = threading.Event()
        self.members = Membership(job.experiment, job.timeout_s, log)
        self.schedule = SnapshotSchedule(job.experiment, self.members, self._send, checkpoint_every_s)
        self._job = job
        self._experiment = job.experiment
        self._hub = hub
        self._log = log
        self._starting = RunStart(job, self.members, self._send)
        self._shared = SharedVectors(job.experiment.nodes)
        self._totals = SampleTotals(self.members, self._send)
        self._quorum = QuorumDecision(job.experiment, lambda message: self._send(self._member_clients, message))
        self._heartbeat_sent = time.monotonic()
        self._complaint: tuple[float, str, int | None] | None = None  # when to decide on it, its text, its suspect
        self._agents: list[Client] = []  # the parents of processes on other machines
        self._begun = threading.Event()
        self._closing = threading.Event()
        self._outcome = "failed"
        self._thread = threading.Thread(target=self._run, name="coordinator", daemon=True)
        if job.state is not None:
            self.schedule.restore(job.state)
            self.members.restore(job.state)

    # For the thread that evaluates

    def listen(self) -> None:
        """Let all processes join and get ready, and send signs of life from now on."""
        self._thread.start()

    def begin(self) -> None:
        """Let training begin once all processes are ready."""
        self._begun.set()

    def totals(self) -> RunTotals:
        """Return the totals of the run: at the mark or checkpoint that ended it, else as far as known."""
        return self.phase.totals or self.members.totals(self.phase.time_s)

    def close(self, outcome: str) -> None:
        """Let all processes go. outcome: the status in the record."""
        self._outcome = outcome
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_TIMEOUT_S)

    # The event loop

    def _run(self) -> None:
        try:
            while not self.phase.is_over:
                self._receive_events()
                self._tick(time.monotonic())
            self._send(self._member_clients, {"kind": "exit", "status": self.phase.status})
        except BaseException as error:  # the run must end, and say why
            self.phase.end("failed", f"the coordinator failed: {type(error).__name__}: {error}")
            raise
        finally:
            self.complete.put(None)
            try:
                self._wait_for_record()
            finally:
                self._hub.close()

    def _wait_for_record(self) -> None:
        """Continue until the record is written, because marks may wait for their evaluation. Only then release parents
        on other machines: a launcher may end all processes together with the first."""
        while not self._closing.is_set():
            self._receive_events()
            self._heartbeat(time.monotonic())
        self._send(self._agents, {"kind": "exit", "status": self._outcome})

    def _tick(self, now: float) -> None:
        self._heartbeat(now)
        if self._closing.is_set():  # the record cannot be written
            self.phase.end(self._outcome)
        if self.phase.is_over or self.phase.end_as_concluded():
            return
        if self._complaint is not None and now > self._complaint[0]:
            self._fail(*self.members.blame(self._complaint[1], self._complaint[2]))
        else:
            for member in self.members.half_gone(now):
                self._drop_other_half(member)
            for member in self.members.silent(now):
                self._lose(member, f"has been silent for {self._job.timeout_s:g} s")
                self._give_up(member)
            if self.phase.name == "starting":
                self._start_training(now)
            elif self.phase.name == "training":
                self._train(now)

    def _heartbeat(self, now: float) -> None:
        if now - self._heartbeat_sent > COORDINATOR_HEARTBEAT_S:
            self._heartbeat_sent = now
            self._send([*self._member_clients, *self._agents], {"kind": "heartbeat"})

    def _start_training(self, now: float) -> None:
        """Start training when all members are ready."""
        if self.stop_requested.is_set():
            self.phase.end("interrupted")
            return
        try:
            is_ready = self._starting.advance(now)
        except StartFailed as error:
            self._fail(str(error), error.culprit)
            return
        if is_ready and self._begun.is_set():
            self.phase.train()
            self.schedule.checkpoint_time = now
            for member in self.members.members:
                member.heard = now
                self._send_go(member)

    def _train(self, now: float) -> None:
        """Request marks and checkpoints that are due, and the last mark when the budget is used up."""
        experiment, time_s, samples = self._experiment, self.phase.time_s, self.members.samples
        if not any(worker.ready and not worker.lost for worker in self.members.workers):
            return  # no worker could submit a snapshot; a replacement may be ready soon
        lockstep, total, limit_s = experiment.algo.lockstep, experiment.total_samples, experiment.budget.time_s
        if limit_s is not None and time_s >= limit_s:
            self._finish_training(limit_s)
        elif not lockstep and total is not None and samples >= total:
            self._finish_training(time_s)
        elif lockstep and all(member.ended for member in self.members.workers):
            self.schedule.steps_under_way = True
            self._finish_training(max(member.ended_s for member in self.members.workers))
        else:
            self.schedule.request_due(now, time_s, self.stop_requested.is_set())
            if not lockstep:
                self._totals.tell(now)

    def _finish_training(self, time_s: float, ends_as: str = "completed", samples: int | None = None) -> None:
        self.phase.finish_training(time_s, ends_as)
        self.schedule.request_last(time_s, samples)

    def _diverge(self, time_s: float, steps: int) -> None:
        """End the run at a mini-batch whose loss is beyond the limit, unless its budget ends it before."""
        limit_s, lockstep = self._experiment.budget.time_s, self._experiment.algo.lockstep
        if self.phase.name == "training" and (limit_s is None or time_s <= limit_s):
            self.schedule.steps_under_way = lockstep
            self._finish_training(time_s, "diverged", steps * self._experiment.unit if lockstep else None)

    # Messages

    @property
    def _member_clients(self) -> list[Client | None]:
        return [member.client for member in self.members.members]

    def _send(self, clients: Iterable[Client | None], message: Message) -> None:
        """Send to clients; None stands for a member that has not joined. Never waits."""
        droppable = message["kind"] in ("heartbeat", "total")  # the next one replaces it
        for client in clients:
            self._hub.send(client, message, droppable=droppable)

    def _send_go(self, member: Member) -> None:
        progress = {"time_s": self.phase.time_s, "samples": self.members.samples}
        self._send([member.client], {"kind": "go", **progress, "own_steps": member.steps})

    def _receive_events(self) -> None:
        for client, message, vectors in self._hub.poll(EVENT_POLL_S):
            try:
                self._receive(client, message, vectors)
            except BadFrame as error:
                self._hub.refuse(client, str(error))

    def _receive(self, client: Client, message: Message | None, vectors: dict[str, Tensor]) -> None:
        """Handle one event. Members are ignored once the run is over, even within one poll."""
        role = message.get("role") if message is not None else None
        if message is None:
            if isinstance(client.owner, Member):
                self._disconnected(client.owner, client)
        elif role == "agent":
            self._starting.came(message)
            self._agents.append(client)
        elif message["kind"] == "interrupt":  # by a parent
            self.stop_requested.set()
        elif message["kind"] == "start":  # likewise
            try:
                self._hub.send(client, {"kind": "start"}, self._starting.vectors_for(message))
            except StartFailed as error:
                self._fail(str(error))
        elif not self.phase.is_over and message["kind"] == "hello":
            self._starting.came(message)
            client.owner = self.members[message["node"]]
            if role == "node":
                if client.owner.joined:
                    self._fail(f"{client.owner.name} has come twice")
                else:
                    client.owner.join(client, (message["host"], message["port"]))
            else:
                client.owner.snapshots = client
        elif not self.phase.is_over and (client.owner is None or client.owner.owns(client)):
            self._receive_from_member(client.owner, message, vectors)

    def _receive_from_member(self, member: Any, message: Message, vectors: dict[str, Tensor]) -> None:
        """Handle a message of a worker or server. member: None if it has failed before it announced its role."""
        match message["kind"]:
            case "gpu":
                member.gpu = message["facts"]
            case "ready":
                member.ready = True
                if self.phase.name == "training":
                    self._send_go(member)
            case "steps" | "heartbeat":
                self.members.update(member, message["steps"], message.get("counters"))
            case "computed":
                self._quorum.computed(message["steps"], member.node)
            case "ended":
                self.members.update(member, message["steps"])
                member.ended, member.ended_s = True, message["time_s"]
            case "diverged":
                self.members.update(member, message["steps"])
                self._diverge(message["time_s"], message["steps"])
            case "missed":
                self.members.update(member, message["steps"])
                self.schedule.retry_checkpoint(message["key"])
                self._pass_on_complete()
            case "offer":
                wanted = self._shared.offer(member.node, message["key"], message["digests"])
                self._send([member.snapshots], {"kind": "wanted", "names": wanted})
            case "snapshot":
                for node, whole, its_vectors in self._shared.receive(member.node, message, vectors):
                    if not self.phase.is_over:
                        self._add_snapshot(self.members[node], whole, its_vectors)
            case "failed" if not message["caused_by_peer"]:
                self._fail(failure_line(member, message), member.name if member is not None else None)
            case "failed" if self._complaint is None:
                # the cause shows within a moment: a dead process's connections end
                self._complaint = time.monotonic() + BLAME_DELAY_S, failure_line(member, message), message["suspect"]

    def _add_snapshot(self, member: Member, message: Message, vectors: dict[str, Tensor]) -> None:
        snapshot = Snapshot(message["steps"], message["time_s"], message["counters"], vectors, message["extra"])
        self.members.update(member, message["steps"], message["counters"])
        spans = [vectors.pop(name).view(-1, 2) for name in ("computing", "communicating") if name in vectors]
        needed = self.schedule.add(member.node, message["key"], snapshot, self.phase.name == "training")
        if needed and spans and message["key"] == LAST:  # a worker that ended by itself also adds them to other marks
            self.trace.append(TraceRow(member.name, *([tuple(span) for span in kind.tolist()] for kind in spans)))
        self._pass_on_complete()

    def _pass_on_complete(self) -> None:
        """Hand complete marks and checkpoints to the thread that evaluates; the last of them ends the run."""
        for pending in self.schedule.take_complete(time.monotonic()):
            if not self.schedule.is_repeated(pending):
                self.complete.put(pending)
            if pending.key == LAST:
                self.phase.end_with(pending.totals(self._experiment))
            elif pending.is_checkpoint and self.stop_requested.is_set():
                self.phase.end_with(pending.totals(self._experiment), "interrupted")
                return

    # Lost members, and the end

    def _disconnected(self, member: Member, client: Client) -> None:
        """Take note that one of a member's connections has ended. Submitted messages are still read."""
        if client is member.client:
            member.client = None
            self._lose(member, "has died")
        elif client is member.snapshots:
            member.snapshots = None
        else:
            return
        if not member.joined:  # an unknown process: the worker may still join
            return
        member.half_gone = time.monotonic() if member.client is not None or member.snapshots is not None else None
        if member.half_gone is None:
            self._give_up(member)

    def _drop_other_half(self, member: Member) -> None:
        """End the connection of a member whose other one has ended: it is useless alone."""
        if member.client is not None:
            self._lose(member, "has lost its connection for snapshots")
        for client in (member.client, member.snapshots):
            self._hub.drop(client)
        member.client = member.snapshots = member.half_gone = None
        self._give_up(member)

    def _give_up(self, member: Member) -> None:
        """Stop waiting for the snapshots that a member was asked for. In lock-step the last mark needs all workers."""
        if self.phase.is_over:
            return
        if self._experiment.algo.lockstep and member.lost and not self.schedule.has_last(member.node):
            return self._fail_without(member, f"{member.name} was lost before its last mark had come")
        self.schedule.give_up(member)
        self._pass_on_complete()

    def _lose(self, member: Member, how: str) -> None:
        """Continue without a member, or end the run."""
        if self.phase.is_over:
            return
        member.lost = True
        when = f" after {member.steps} step{'s' * (member.steps != 1)}" if self.phase.name == "training" else ""
        line = f"{member.name} {how}{when}"
        needed = member.is_server or self._experiment.algo.lockstep or not self.members.live_workers
        if self.phase.name == "starting":
            self._fail(line, member.name)
        elif needed and not member.ended:
            self._fail_without(member, line)
        elif not self._experiment.algo.lockstep:
            self._log(f"{line}; the others go on")

    def _fail_without(self, member: Member, line: str) -> None:
        self._fail(f"{line}; {type(self._experiment.algo).__name__.lower()} cannot go on without it", member.name)

    def _fail(self, error: str, culprit: str | None = None) -> None:
        self.culprit = self.culprit or culprit
        self.phase.end("failed", error)
