"""Request the snapshots of marks and checkpoints when they are due, and collect them until they are complete."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from dsgd.engines.dist.control import Client, Message
from dsgd.engines.dist.coordinator.membership import Member, Membership
from dsgd.engines.dist.coordinator.snapshots import CHECKPOINT, LAST, NOTHING, STEP, PendingSnapshots, Snapshot
from dsgd.engines.rules.marks import marks_due
from dsgd.experiment import Experiment

WAITING_LIMIT = 1 << 30  # bytes of snapshots that wait for their evaluation


class SnapshotSchedule:
    """Requests snapshots from the members and collects them. For the listening thread only, apart from `release`.

    Marks and checkpoints are evaluated in one order: a checkpoint counts the marks before it, and a run that resumes
    from it repeats the later ones. The order is the order of requests; in lock-step the order of steps.

    send: sends to clients. every_s: seconds between checkpoints; None: only on request. dropped_marks: number of marks
    without memory or without workers. next_marks: numbers of the next mark by samples and of the next by time.
    steps_under_way: training is over, but marks of earlier steps are in flight. checkpoint_time: time of the last
    complete checkpoint, by time.monotonic()."""

    def __init__(
        self,
        experiment: Experiment,
        members: Membership,
        send: Callable[[Iterable[Client | None], Message], None],
        every_s: float | None,
    ) -> None:
        self.dropped_marks = 0
        self.steps_under_way = False
        self.checkpoint_time = time.monotonic()
        self.next_marks: tuple[int, int] = (1, 1)
        self._experiment = experiment
        self._members = members
        self._send = send
        self._every_s = every_s
        self._queue: list[PendingSnapshots] = []  # in the order of their evaluation
        self._unplaced: list[PendingSnapshots] = []  # marks by time in lock-step, whose place their steps will show
        self._left_out: set[str] = set()  # keys of lock-step marks for which there was no memory
        self._checkpoints = 0
        self._cycles_ahead = 1  # distance of the next checkpoint from the furthest worker
        self._marked = NOTHING  # the counters of the previous mark
        self._waiting_bytes = 0
        self._waiting_lock = threading.Lock()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Resume from a checkpoint."""
        self.next_marks = tuple(state["next"])
        last = state["progress"]["last_values"]
        if last is not None:
            self._marked = replace(NOTHING, time_s=last["time_s"], samples=last["samples"])

    def request_due(self, now: float, time_s: float, stopping: bool) -> None:
        """Request the marks and the checkpoint that are due. time_s: time on the training clock. stopping: checkpoint
        now."""
        experiment, samples = self._experiment, self._members.samples
        by_samples, by_time = self.next_marks
        due = marks_due(samples, experiment.mark_samples)
        if not experiment.algo.lockstep and due >= by_samples:
            self._request_mark(f"samples:{samples}", time_s, samples)
            self.next_marks = due + 1, by_time
        every_s = experiment.eval.every_time_s
        if every_s is not None and (due := marks_due(time_s, every_s)) >= by_time:
            self._request_mark(f"time:{by_time}", by_time * every_s)
            self.next_marks = self.next_marks[0], due + 1
        periodic = self._every_s is not None and now - self.checkpoint_time >= self._every_s
        if self._checkpoint is None and (stopping or periodic):
            self._request_checkpoint()

    def request_last(self, time_s: float, samples: int | None = None) -> None:
        """Request the mark at the end of the run, after which training is over. An incomplete checkpoint is dropped.
        samples: samples at the end; None: taken from the snapshots."""
        if self._checkpoint is not None and not self._checkpoint.complete:
            self._drop(self._checkpoint)
        self._request_mark(LAST, time_s, samples)

    def add(self, node: int, key: str, snapshot: Snapshot, training: bool) -> bool:
        """Add a snapshot that has arrived; returns whether it is needed."""
        pending = self._find(key, snapshot, training)
        if pending is None or node not in pending.missing:
            return False
        with self._waiting_lock:
            self._waiting_bytes += pending.add(node, snapshot)
        if key == LAST:  # time has run out: this worker will not make the steps of other workers' marks
            for mark in [mark for mark in self._queue if mark.key.startswith(STEP) and node in mark.missing]:
                self._drop(mark)
        return True

    def has_last(self, node: int) -> bool:
        """Return whether a node has handed in its part of the mark at the end."""
        return any(mark.key == LAST and node in mark.snapshots for mark in self._queue)

    def retry_checkpoint(self, key: str) -> None:
        """Drop a checkpoint whose step a worker has passed already; the next one will be further ahead."""
        if self._checkpoint is not None and self._checkpoint.key == key:
            self._drop(self._checkpoint)
            self._cycles_ahead *= 2

    def give_up(self, member: Member) -> None:
        """Stop waiting for the snapshots of a lost member."""
        for pending in [*self._queue, *self._unplaced]:
            pending.give_up(member.node, member.steps, member.counters)

    def take_complete(self, now: float) -> Iterator[PendingSnapshots]:
        """Remove and yield the complete marks and checkpoints that have no incomplete one before them."""
        self._place_complete()
        while self._queue and self._queue[0].complete:
            pending = self._queue.pop(0)
            if not pending.snapshots_of(range(self._experiment.nodes)):
                self.dropped_marks += not pending.is_checkpoint
                continue  # all workers were lost while it waited for them
            pending.floor = self._marked
            if pending.is_checkpoint:
                self._cycles_ahead, self.checkpoint_time = 1, now
                behind = [mark.next_marks for mark in (*self._queue, *self._unplaced) if mark.next_marks is not None]
                by_samples, by_time = zip(self.next_marks, *behind, strict=True)
                pending.next_marks = min(by_samples), min(by_time)
            else:
                self._marked = pending.counters(self._experiment)
            yield pending

    def is_repeated(self, mark: PendingSnapshots) -> bool:
        """Return whether the last mark of a lock-step run that ends before its last step, as one that diverges, shows
        the step of the mark before."""
        experiment = self._experiment
        if mark.key != LAST or not experiment.algo.lockstep or experiment.budget.time_s is not None:
            return False
        return mark.floor.samples == mark.counters(experiment).samples != experiment.total_samples

    def release(self, pending: PendingSnapshots) -> None:
        """Count the memory of these snapshots as free."""
        with self._waiting_lock:
            self._waiting_bytes -= pending.nbytes

    @property
    def _checkpoint(self) -> PendingSnapshots | None:
        return next((pending for pending in self._queue if pending.is_checkpoint), None)

    def _drop(self, pending: PendingSnapshots) -> None:
        self._queue.remove(pending)
        self.release(pending)

    def _request_mark(self, key: str, time_s: float, samples: int | None = None) -> None:
        if self._waiting_bytes > WAITING_LIMIT and key != LAST:
            self.dropped_marks += 1
            return
        mark = self._pending(key, time_s, samples)
        mark.next_marks = None if key == LAST else self.next_marks
        (self._unplaced if self._experiment.algo.lockstep and key != LAST else self._queue).append(mark)
        self._request(mark, {"kind": "mark", "key": key, "last": key == LAST})

    def _request_checkpoint(self) -> None:
        """Request a checkpoint. Lock-step workers submit the same step, which no worker has reached yet."""
        self._checkpoints += 1
        steps, samples, algo = None, None, self._experiment.algo
        if algo.lockstep:
            furthest = max(worker.steps for worker in self._members.workers)
            steps = (furthest // algo.cycle + self._cycles_ahead) * algo.cycle
            samples = steps * self._experiment.unit
        checkpoint = self._pending(f"{CHECKPOINT}{self._checkpoints}", None, samples)
        self._insert(checkpoint)
        self._request(checkpoint, {"kind": "checkpoint", "key": checkpoint.key, "steps": steps})

    def _pending(self, key: str, time_s: float | None = None, samples: int | None = None) -> PendingSnapshots:
        """Return a mark or checkpoint that waits for all members that can submit a snapshot."""
        members, missing = self._members.members, self._members.submitting
        absent = {member.node: (member.steps, member.counters) for member in members if member.node not in missing}
        return PendingSnapshots(key, missing, time_s, samples, absent=absent)

    def _request(self, pending: PendingSnapshots, message: Message) -> None:
        self._send([self._members[node].client for node in pending.missing], message)

    def _find(self, key: str, snapshot: Snapshot, training: bool) -> PendingSnapshots | None:
        """Return the mark or checkpoint of a snapshot. In lock-step, the first snapshot of a step creates its mark."""
        for pending in (*self._queue, *self._unplaced):
            if pending.key == key:
                return pending
        if not key.startswith(STEP) or key in self._left_out or not (training or self.steps_under_way):
            return None
        if any(mark.key == LAST and mark.snapshots for mark in self._queue):
            return None  # a worker's last mark has arrived, behind all of its steps, without this one
        if self._waiting_bytes > WAITING_LIMIT:
            self._left_out.add(key)
            self.dropped_marks += not any(member.ended for member in self._members.workers)
            return None
        mark = self._pending(key, samples=snapshot.steps * self._experiment.unit)
        self._insert(mark)
        return mark

    def _insert(self, pending: PendingSnapshots) -> None:
        """Queue a checkpoint, or the mark of a step in lock-step: a step's mark is before the step's checkpoint."""

        def follows(other: PendingSnapshots) -> bool:
            if other.key == LAST:
                return True
            if pending.samples is None:  # not in lock-step: everything has its place by its request
                return False
            samples = other.counters(self._experiment).samples
            return samples > pending.samples or (other.is_checkpoint and samples == pending.samples)

        places = [index for index, other in enumerate(self._queue) if follows(other)]
        self._queue.insert(min(places, default=len(self._queue)), pending)

    def _place_complete(self) -> None:
        """Queue the complete marks by time of a lock-step run: behind the marks of the steps that they show, and before
        a checkpoint if all members submitted the mark before any submitted the checkpoint."""
        for mark in [mark for mark in self._unplaced if mark.complete]:
            self._unplaced.remove(mark)
            shown = mark.counters(self._experiment).samples
            position = 0
            for index, other in enumerate(self._queue):
                samples = other.counters(self._experiment).samples
                if other.key != LAST and (bool(other.snapshots) if other.is_checkpoint else samples <= shown):
                    position = index + 1
            self._queue.insert(position, mark)
