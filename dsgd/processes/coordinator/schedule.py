"""When marks and checkpoints are due, and what has been handed in for them so far."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from dsgd.experiment import Experiment
from dsgd.processes.control.frames import Message
from dsgd.processes.coordinator.membership import Member, Membership
from dsgd.processes.coordinator.snapshots import Gathering, Snapshot

WAITING_LIMIT = 1 << 30  # bytes of snapshots that wait for their evaluation
LAST = "last"  # the key of the mark at the end


class Collecting:
    """Used by the thread that listens to the members, but for `let_go`.

    tell: sends a message to a member. every_s: seconds between checkpoints; None: none but on demand. left_out: marks
    for which there was no room. next_marks: by samples and by time. all_made: every worker has made all its steps, and
    the marks at them have come or are on their way. saved: when the last checkpoint was complete, by time.monotonic().
    """

    def __init__(
        self,
        experiment: Experiment,
        members: Membership,
        tell: Callable[[Member, Message], None],
        every_s: float | None,
    ) -> None:
        self.left_out = 0
        self.all_made = False
        self._experiment = experiment
        self._members = members
        self._tell = tell
        self._every_s = every_s
        self.saved = time.monotonic()
        self.next_marks: tuple[int, int] = (1, 1)
        self._marks: list[Gathering] = []  # in the order in which they are to be evaluated
        self._checkpoint: Gathering | None = None
        self._checkpoints, self._margin = 0, 1
        self._waiting_bytes = 0
        self._counting = threading.Lock()

    # What is due

    def ask(self, now: float, time_s: float, stopping: bool) -> None:
        """Ask for the marks and the checkpoint that are due. time_s: of the training clock. stopping: a checkpoint is
        due at once."""
        experiment, samples = self._experiment, self._members.samples
        by_samples, by_time = self.next_marks
        if not experiment.algo.lockstep and samples >= by_samples * experiment.mark_samples:
            self.next_marks = int(samples // experiment.mark_samples) + 1, by_time
            self._ask(Gathering(f"samples:{samples}", self._live(), time_s, samples))
        every_s = experiment.eval.every_time_s
        if every_s is not None and time_s >= by_time * every_s:
            self._ask(Gathering(f"time:{by_time}", self._live(), by_time * every_s))
            self.next_marks = self.next_marks[0], int(time_s / every_s) + 1
        if self._checkpoint is None and (stopping or (self._every_s is not None and now - self.saved >= self._every_s)):
            self._ask_for_checkpoint()

    def ask_for_the_last(self, time_s: float) -> None:
        """The mark at the end of the run, after which nobody trains."""
        self._ask(Gathering(LAST, self._live(), time_s))

    def _live(self) -> set[int]:
        """Who can hand in a snapshot: a worker that has come back listens only when it is ready."""
        return {member.node for member in self._members.members if member.ready and not member.lost}

    def _ask(self, gathering: Gathering) -> None:
        last = gathering.key == LAST
        if self._waiting_bytes > WAITING_LIMIT and not last:
            self.left_out += 1
            return
        self._marks.append(gathering)
        workers = self._members.workers
        gathering.gone = {worker.node: worker.steps for worker in workers if worker.node not in gathering.missing}
        for node in gathering.missing:
            self._tell(self._members[node], {"kind": "mark", "key": gathering.key, "last": last})

    def _ask_for_checkpoint(self) -> None:
        """Workers in lock-step hand in the same step: one that nobody has reached when the message comes."""
        self._checkpoints += 1
        steps, cycle = None, self._experiment.algo.cycle
        if self._experiment.algo.lockstep:
            furthest = max(member.steps for member in self._members.workers)
            steps = (furthest // cycle + self._margin) * cycle
        key = f"checkpoint:{self._checkpoints}"
        self._checkpoint = Gathering(key, self._live(), marks_before=self.next_marks)
        for node in self._checkpoint.missing:
            if node < self._experiment.nodes:
                self._tell(self._members[node], {"kind": "checkpoint", "key": key, "steps": steps})
            else:
                self._tell(self._members[node], {"kind": "checkpoint", "key": key})

    # What comes

    def add(self, node: int, key: str, snapshot: Snapshot, training: bool) -> bool:
        """A snapshot has come; returns whether anybody was waiting for it."""
        gathering = self._wanted(key, snapshot, training)
        if gathering is None:
            return False
        with self._counting:
            self._waiting_bytes += snapshot.size
        gathering.add(node, snapshot)
        if key == LAST:
            self._drop_marks_without(node)
        return True

    def _wanted(self, key: str, snapshot: Snapshot, training: bool) -> Gathering | None:
        if self._checkpoint is not None and self._checkpoint.key == key:
            return self._checkpoint
        for gathering in self._marks:
            if gathering.key == key:
                return gathering
        if key.startswith("step:") and (training or self.all_made):
            if self._waiting_bytes > WAITING_LIMIT:
                self.left_out += not any(member.ended for member in self._members.workers)
                return None
            mark = Gathering(key, self._live(), samples=snapshot.steps * self._experiment.unit)
            asked_for_the_last = bool(self._marks) and self._marks[-1].key == LAST
            self._marks.insert(len(self._marks) - asked_for_the_last, mark)
            return mark
        return None

    def _drop_marks_without(self, node: int) -> None:
        """Time has run out: this worker will not make the steps at which others have handed in marks."""
        for gathering in [mark for mark in self._marks if mark.key.startswith("step:") and node in mark.missing]:
            self._marks.remove(gathering)
            self.let_go(gathering)

    def missed(self, key: str) -> None:
        """A worker is past the step of a checkpoint: another one, further ahead."""
        if self._checkpoint is not None and self._checkpoint.key == key:
            self._checkpoint = None
            self._margin *= 2

    def give_up(self, member: Member) -> None:
        """Nothing more will come of a member."""
        for gathering in [*self._marks, *([self._checkpoint] if self._checkpoint else [])]:
            gathering.give_up(member.node, member.steps)

    def complete(self, now: float) -> Iterator[Gathering]:
        """Take out what is complete, marks in their order."""
        while self._marks and self._marks[0].complete:
            yield self._marks.pop(0)
        checkpoint = self._checkpoint
        if checkpoint is not None and checkpoint.complete:
            self._checkpoint, self._margin, self.saved = None, 1, now
            yield checkpoint

    def let_go(self, gathering: Gathering) -> None:
        """Its vectors need no room any more."""
        with self._counting:
            self._waiting_bytes -= sum(snapshot.size for snapshot in gathering.snapshots.values())
