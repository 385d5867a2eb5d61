"""Request the snapshots of marks and checkpoints when they are due, and collect them until they are complete."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dsgd.engine.marks import Counters, Mark
from dsgd.experiment import Experiment
from dsgd.problem.problem import Problem
from dsgd.processes.control import Client, Message
from dsgd.processes.coordinator.membership import Member, Membership
from dsgd.streams import stream

# evaluates a mark from its key, every worker's vector [d] and buffers [nb], and the centre [d], if there is one
Measure = Callable[[str, Sequence[Tensor], Sequence[Tensor], Tensor | None], Mark]
WAITING_LIMIT = 1 << 30  # bytes of snapshots that wait for their evaluation
LAST = "last"  # the key of the mark at the end


@dataclass(frozen=True)
class Snapshot:
    """State of one node. steps: local steps made. time_s: of the training clock. vectors: x, buffers, ..."""

    steps: int
    time_s: float
    counters: dict[str, Any]
    vectors: dict[str, Tensor]
    extra: dict[str, Any]

    @property
    def nbytes(self) -> int:
        return sum(vector.nbytes for vector in self.vectors.values())


@dataclass
class PendingSnapshots:
    """Snapshots for one mark or checkpoint. key: by which the nodes name it. missing: nodes whose snapshot has not
    arrived. time_s, samples: of the mark; None: taken from the snapshots. lost_steps: of workers without a snapshot.
    next_marks: the next mark by samples and by time, when a checkpoint was requested."""

    key: str
    missing: set[int]
    time_s: float | None = None
    samples: int | None = None
    snapshots: dict[int, Snapshot] = field(default_factory=dict)
    lost_steps: dict[int, int] = field(default_factory=dict)
    next_marks: tuple[int, int] = (1, 1)

    @property
    def is_checkpoint(self) -> bool:
        return self.key.startswith("checkpoint")

    @property
    def complete(self) -> bool:
        return not self.missing

    @property
    def nbytes(self) -> int:
        return sum(snapshot.nbytes for snapshot in self.snapshots.values())

    def add(self, node: int, snapshot: Snapshot) -> None:
        self.missing.discard(node)
        self.snapshots[node] = snapshot

    def give_up(self, node: int, steps: int) -> None:
        """Stop waiting for a node; the steps that it made count all the same."""
        if node in self.missing:
            self.missing.discard(node)
            self.lost_steps[node] = steps

    def of(self, nodes: Iterable[int]) -> list[Snapshot]:
        """Return the snapshots of these nodes, in their order; nodes without one are left out."""
        return [self.snapshots[node] for node in nodes if node in self.snapshots]

    def counters(self, experiment: Experiment) -> Counters:
        workers = self.of(range(experiment.nodes))
        time_s = max(s.time_s for s in workers) if self.time_s is None else self.time_s
        lost = [steps for node, steps in self.lost_steps.items() if node < experiment.nodes]
        steps = sum(s.steps for s in workers) + sum(lost)
        samples = steps * experiment.batch_size if self.samples is None else self.samples
        return combine_counters(experiment, time_s, samples, {node: s.counters for node, s in self.snapshots.items()})

    def measured(self, experiment: Experiment, measure: Measure) -> Mark:
        """Evaluate the fields of this mark."""
        p, k = experiment.nodes, experiment.algo.servers
        workers, servers = self.of(range(p)), self.of(range(p, p + k))
        centre = torch.cat([snapshot.vectors["x"] for snapshot in servers]) if servers else None
        xs = [snapshot.vectors["x"] for snapshot in workers]
        buffers = [snapshot.vectors["buffers"] for snapshot in workers]
        return self.counters(experiment).fields(experiment) | measure(self.key, xs, buffers, centre)

    def checkpoint(self, experiment: Experiment, progress: dict[str, Any]) -> dict[str, Any]:
        """Return the contents of a checkpoint, as plain values and vectors. A lost worker is None: it will start from
        the others' parameters."""
        p, k = experiment.nodes, experiment.algo.servers
        found = self.of(range(p))
        stored = {
            node: {"steps": s.steps, "counters": s.counters, "vectors": s.vectors, **s.extra}
            for node, s in self.snapshots.items()
        }
        return {
            "time_s": max(snapshot.time_s for snapshot in found),
            "steps": max(snapshot.steps for snapshot in found),
            "progress": progress,
            "next": list(self.next_marks),
            "workers": [stored.get(node) for node in range(p)],
            "servers": [stored[node] for node in range(p, p + k) if node in stored],
        }


def initial_snapshots(experiment: Experiment, problem: Problem) -> PendingSnapshots:
    """Return what all nodes would submit before the first step."""
    p, k = experiment.nodes, experiment.algo.servers
    pending = PendingSnapshots("checkpoint:0", set(), 0.0, 0)
    for node in range(p):
        rng = stream("algorithm", experiment.seed, node).bit_generator.state
        vectors = {"x": problem.start, "buffers": problem.start_buffers}
        pending.add(node, Snapshot(0, 0.0, {}, vectors, {"batches": 0, "rng": rng}))
    for shard, part in enumerate(problem.start.tensor_split(k) if k else ()):
        pending.add(p + shard, Snapshot(0, 0.0, {}, {"x": part}, {}))
    return pending


def combine_counters(
    experiment: Experiment, time_s: float, samples: int, counters: Mapping[int, Mapping[str, Any]]
) -> Counters:
    """Combine the counters of workers and servers, by node, into those of the run."""
    workers = [counters[node] for node in range(experiment.nodes) if counters.get(node)]
    staleness = [own["staleness"] for own in workers if "staleness" in own]
    total, count = (sum(own[i] for own in staleness) for i in range(2))
    idle = [max(0.0, 1 - own["busy_s"] / time_s) for own in workers if time_s > 0] or [0.0]
    sent = [own.get("bytes_sent", 0) for own in counters.values()] or [0]
    largest = max((own[2] for own in staleness), default=0)
    return Counters(time_s, "wall", samples, sent, idle, total / max(count, 1), largest)


class SnapshotSchedule:
    """Requests snapshots from the members and collects them. For the listening thread only, apart from `release`.

    send: to clients. every_s: seconds between checkpoints; None: only on request. dropped_marks: marks for which there
    was no memory. next_marks: numbers of the next mark by samples and of the next by time. all_steps_made: every worker
    has ended, and its remaining marks are on their way. checkpoint_time: of the last complete one, by time.monotonic().
    """

    def __init__(
        self,
        experiment: Experiment,
        members: Membership,
        send: Callable[[Iterable[Client | None], Message], None],
        every_s: float | None,
    ) -> None:
        self.dropped_marks = 0
        self.all_steps_made = False
        self.checkpoint_time = time.monotonic()
        self.next_marks: tuple[int, int] = (1, 1)
        self._experiment = experiment
        self._members = members
        self._send = send
        self._every_s = every_s
        self._marks: list[PendingSnapshots] = []  # in the order of their evaluation
        self._checkpoint: PendingSnapshots | None = None
        self._checkpoints = 0
        self._cycles_ahead = 1  # how far ahead of the furthest worker the next checkpoint is
        self._marked_samples: int | None = None  # at the previous mark
        self._waiting_bytes = 0
        self._waiting_lock = threading.Lock()

    def request_due(self, now: float, time_s: float, stopping: bool) -> None:
        """Request the marks and the checkpoint that are due. time_s: of the training clock. stopping: a checkpoint is
        due at once."""
        experiment, samples = self._experiment, self._members.samples
        by_samples, by_time = self.next_marks
        if not experiment.algo.lockstep and samples >= by_samples * experiment.mark_samples:
            self.next_marks = int(samples // experiment.mark_samples) + 1, by_time
            self._request_mark(PendingSnapshots(f"samples:{samples}", self._live(), time_s, samples))
        every_s = experiment.eval.every_time_s
        if every_s is not None and time_s >= by_time * every_s:
            self._request_mark(PendingSnapshots(f"time:{by_time}", self._live(), by_time * every_s))
            self.next_marks = self.next_marks[0], int(time_s / every_s) + 1
        periodic = self._every_s is not None and now - self.checkpoint_time >= self._every_s
        if self._checkpoint is None and (stopping or periodic):
            self._request_checkpoint()

    def request_last(self, time_s: float) -> None:
        """Request the mark at the end of the run, after which nobody trains."""
        self._request_mark(PendingSnapshots(LAST, self._live(), time_s))

    def add(self, node: int, key: str, snapshot: Snapshot, training: bool) -> bool:
        """Add a snapshot that has arrived; returns whether it is needed."""
        pending = self._find(key, snapshot, training)
        if pending is None:
            return False
        with self._waiting_lock:
            self._waiting_bytes += snapshot.nbytes
        pending.add(node, snapshot)
        if key == LAST:  # time has run out: this worker will not make the steps of other workers' marks
            for mark in [mark for mark in self._marks if mark.key.startswith("step:") and node in mark.missing]:
                self._marks.remove(mark)
                self.release(mark)
        return True

    def retry_checkpoint(self, key: str) -> None:
        """Drop a checkpoint whose step a worker has passed already; the next one will be further ahead."""
        if self._checkpoint is not None and self._checkpoint.key == key:
            self._checkpoint = None
            self._cycles_ahead *= 2

    def give_up(self, member: Member) -> None:
        """Stop waiting for the snapshots of a lost member."""
        for pending in [*self._marks, *([self._checkpoint] if self._checkpoint else [])]:
            pending.give_up(member.node, member.steps)

    def take_complete(self, now: float) -> Iterator[PendingSnapshots]:
        """Remove and yield what is complete, marks in their order."""
        while self._marks and self._marks[0].complete:
            yield self._marks.pop(0)
        checkpoint = self._checkpoint
        if checkpoint is not None and checkpoint.complete:
            self._checkpoint, self._cycles_ahead, self.checkpoint_time = None, 1, now
            yield checkpoint

    def is_repeated(self, mark: PendingSnapshots) -> bool:
        """Return whether the last mark of a lock-step run shows the same step as the mark before. Call it for each."""
        samples = mark.counters(self._experiment).samples
        previous, self._marked_samples = self._marked_samples, samples
        lockstep = self._experiment.algo.lockstep and self._experiment.budget.time_s is None
        return mark.key == LAST and lockstep and previous == samples

    def release(self, pending: PendingSnapshots) -> None:
        """Count the memory of these snapshots as free."""
        with self._waiting_lock:
            self._waiting_bytes -= pending.nbytes

    def _live(self) -> set[int]:
        """Return the nodes that can submit a snapshot: a replaced worker listens only once it is ready."""
        return {member.node for member in self._members.members if member.ready and not member.lost}

    def _send_to(self, nodes: Iterable[int], message: Message) -> None:
        self._send([self._members[node].client for node in nodes], message)

    def _request_mark(self, mark: PendingSnapshots) -> None:
        last = mark.key == LAST
        if self._waiting_bytes > WAITING_LIMIT and not last:
            self.dropped_marks += 1
            return
        self._marks.append(mark)
        workers = self._members.workers
        mark.lost_steps = {worker.node: worker.steps for worker in workers if worker.node not in mark.missing}
        self._send_to(mark.missing, {"kind": "mark", "key": mark.key, "last": last})

    def _request_checkpoint(self) -> None:
        """Request a checkpoint. Lock-step workers submit the same step: one that none has reached yet."""
        self._checkpoints += 1
        steps, cycle = None, self._experiment.algo.cycle
        if self._experiment.algo.lockstep:
            furthest = max(member.steps for member in self._members.workers)
            steps = (furthest // cycle + self._cycles_ahead) * cycle
        self._checkpoint = PendingSnapshots(f"checkpoint:{self._checkpoints}", self._live(), next_marks=self.next_marks)
        self._send_to(self._checkpoint.missing, {"kind": "checkpoint", "key": self._checkpoint.key, "steps": steps})

    def _find(self, key: str, snapshot: Snapshot, training: bool) -> PendingSnapshots | None:
        """Return what a snapshot belongs to. The first one of a step in lock-step creates the step's mark."""
        if self._checkpoint is not None and self._checkpoint.key == key:
            return self._checkpoint
        for mark in self._marks:
            if mark.key == key:
                return mark
        if not key.startswith("step:") or not (training or self.all_steps_made):
            return None
        if self._waiting_bytes > WAITING_LIMIT:
            self.dropped_marks += not any(member.ended for member in self._members.workers)
            return None
        mark = PendingSnapshots(key, self._live(), samples=snapshot.steps * self._experiment.unit)
        last_requested = bool(self._marks) and self._marks[-1].key == LAST
        self._marks.insert(len(self._marks) - last_requested, mark)
        return mark
