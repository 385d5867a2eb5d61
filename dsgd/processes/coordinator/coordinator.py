"""The one process that sees the whole run: who takes part, how far all are, what a mark finds, how it ends.

It is not on the way of any gradient or message. One thread listens to workers and servers (`_watch`); the thread that
calls `run` evaluates what they hand in, or has it evaluated in parts (`sharded.py`), with the lowest priority, so that
evaluation delays itself and not training.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from queue import Empty, SimpleQueue
from typing import Any, ClassVar

from torch import Tensor
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from dsgd.engine.marks import Counters, Mark, Progress, summarised
from dsgd.engine.trace import Row
from dsgd.problem.evaluation import measure
from dsgd.processes.control.frames import Message
from dsgd.processes.control.hub import Client, Hub
from dsgd.processes.coordinator.evaluator import give_way
from dsgd.processes.coordinator.membership import Member, Membership
from dsgd.processes.coordinator.schedule import LAST, Collecting
from dsgd.processes.coordinator.sharded import Evaluator, Evaluators, is_sharded, measure_in_parts
from dsgd.processes.coordinator.snapshots import Gathering, Snapshot, beginning, combined
from dsgd.processes.job import HELLO_S, Job
from dsgd.processes.launch.rendezvous import listen

POLL_S, TELL_S, BEAT_S, VERDICT_S, CLOSING_S = 0.02, 0.02, 1.0, 1.5, 5.0
COMPILING_S = 900.0  # for the first pass through a model by torch.compile


class Coordinator:
    """status: running, then completed | diverged | interrupted | failed; error: one line, for failed.

    log: gets one line on whatever the user should know of at once. checkpoint_every_s: None: only on an interrupt."""

    def __init__(self, job: Job, hub: Hub, log: Callable[[str], None], checkpoint_every_s: float | None) -> None:
        self.job = job
        self.experiment = job.experiment
        self.status, self.error = "running", ""
        self.culprit: str | None = None  # whose log may tell more
        self.progress = Progress()
        self.trace: list[Row] = []
        self._log = log
        self._hub = hub
        self._members = Membership(self.experiment, job.limits, log)
        self._collecting = Collecting(self.experiment, self._members, self._tell, checkpoint_every_s)
        self._items: SimpleQueue[Gathering | None] = SimpleQueue()  # None: that was all
        self._asked_to_stop = threading.Event()
        self._verdict: str | None = None  # of the evaluation: the run ends with this status
        self._phase = "joining"
        self._since = self._told = self._beaten = time.monotonic()
        self._begun = 0.0
        self._end_s: float | None = None
        self._end_counters: Counters | None = None
        self._suspicion: tuple[float, str, int | None] | None = None
        self._store: TCPStore | None = None
        self._start_s = 0.0
        self._agents: list[Client] = []  # parents of processes elsewhere
        self._evaluators: Evaluators | None = None
        if is_sharded(self.experiment, job.problem):
            self._evaluators = Evaluators(self._send, job.limits.timeout_s, time.monotonic() + HELLO_S, log)
        self._interrupt_asked: Callable[[], bool] = lambda: False
        self._closing = threading.Event()
        self._outcome = "failed"
        self._watching = threading.Thread(target=self._watch_safely, name="coordinator", daemon=True)
        if job.state is not None:
            self.progress = Progress(**{**job.state["progress"], "last_mark": None})
            self._collecting.next_marks = tuple(job.state["next"])
            self._start_s = job.state["time_s"]
            for member, stored in zip(self._members.workers, job.state["workers"], strict=True):
                member.steps = job.state["steps"] if stored is None else stored["steps"]

    # For the thread that evaluates and records

    def run(self, interrupt: Callable[[], bool], save: Callable[[Mapping[str, Any]], None]) -> Iterator[Mark]:
        """Yield the measured fields of every mark, until the run is over. `interrupt` is asked now and then; True ends
        the run with a checkpoint. save: stores the state of a checkpoint. `close` must follow."""
        self._interrupt_asked = interrupt
        self._watching.start()
        give_way()
        if self.job.state is None:
            first = beginning(self.experiment, self.job.problem)
            yield self._evaluate(first)
            save(first.checkpoint(self.experiment, asdict(self.progress)))  # there always is one to go on from
        while True:
            self._look()
            try:
                item = self._items.get(timeout=0.1)
            except Empty:
                continue
            if item is None:
                if self.status == "completed" and self._verdict is not None:  # found when all had ended
                    self.status = self._verdict
                return
            self._collecting.let_go(item)
            if item.is_checkpoint:
                save(item.checkpoint(self.experiment, asdict(self.progress)))
            elif self._verdict is None:
                yield self._evaluate(item)

    def close(self, outcome: str) -> None:
        """Let everybody go, now that the record is written. outcome: how the run has ended."""
        self._outcome = outcome
        self._closing.set()
        if self._watching.is_alive():
            self._watching.join(CLOSING_S)

    def _look(self) -> None:
        if self._interrupt_asked():  # however many marks are waiting
            self._asked_to_stop.set()

    def _measure(
        self, mark: str, xs: Sequence[Tensor], buffers: Sequence[Tensor], centre: Tensor | None
    ) -> dict[str, float | None]:
        experiment, problem = self.experiment, self.job.problem
        if self._evaluators is None:
            return measure(problem, experiment.eval, xs, buffers, centre)
        return measure_in_parts(self._evaluators, experiment, problem, mark, xs, buffers, centre, self._look)

    def _evaluate(self, gathering: Gathering) -> Mark:
        values = gathering.evaluated(self.experiment, self._measure)
        self.progress.marks += 1
        status = self.progress.judge(self.experiment, values)
        if status is not None and self._verdict is None:
            self._end_s, self._end_counters = values["time_s"], gathering.counters(self.experiment)
            self._verdict = status
        return values

    @property
    def samples(self) -> int:
        """That all workers together have processed, as far as is known here."""
        return self._members.samples

    @property
    def time_s(self) -> float:
        """Of the training clock; at the end, that of the whole run."""
        if self._end_s is not None:
            return self._end_s
        return time.monotonic() - self._begun if self._phase in ("training", "ending") else self._start_s

    def summary(self) -> Mark:
        """The run as a whole, so far."""
        problem, members = self.job.problem, self._members
        known = {member.node: member.counters for member in members.members}
        counters = self._end_counters or combined(self.experiment, self.time_s, self.samples, known)
        lockstep = self.experiment.algo.lockstep and self.experiment.nodes > 1
        return summarised(
            self.experiment,
            self.progress,
            self.status,
            counters,
            steps=max(member.steps for member in members.workers),
            dimension=problem.dimension,
            message_bytes=problem.dimension * problem.start.element_size(),
            collective="ring" if lockstep else "none",
        ) | {
            "workers_lost": sum(member.lost for member in members.workers),
            "messages_lost": sum(member.counters.get("missed", 0) for member in members.workers),
            "marks_left_out": self._collecting.left_out,
        }

    # The thread that listens

    def _watch_safely(self) -> None:
        try:
            self._watch()
        except BaseException as error:  # the run must end, and say why
            self._end("failed", f"the coordinator failed: {type(error).__name__}: {error}")
            raise
        finally:
            self._items.put(None)
            try:
                self._stay()
            finally:
                if self._evaluators is not None:
                    self._evaluators.leave()
                self._hub.close()

    def _watch(self) -> None:
        while self._phase != "over":
            for event in self._hub.poll(POLL_S):
                self._take_in(*event)
            self._tick(time.monotonic())
        self._tell_all({"kind": "exit", "status": self.status})

    def _stay(self) -> None:
        """Nobody trains any more, but marks are still evaluated; and whoever starts processes may end all of them with
        the first. Until the record is written."""
        while not self._closing.is_set():
            for event in self._hub.poll(POLL_S):
                self._take_in(*event)
            self._beat_others(time.monotonic())
        self._tell_others({"kind": "exit", "status": self._outcome})

    def _take_in(self, client: Client, message: Message | None, vectors: object) -> None:
        """When the run is over, and that may be in the midst of what has come together, members have no more to say."""
        if message is None:
            self._gone(client)
        elif self._phase != "over" or message["kind"] == "evaluated" or message.get("role") in ("agent", "evaluator"):
            self._handle[message["kind"]](self, client, message, vectors)

    def _beat_others(self, now: float) -> bool:
        """To whom no member is; returns whether it is time that members hear something, too."""
        if self._evaluators is not None:
            self._evaluators.tick(now)
        due = now - self._beaten > BEAT_S
        if due:
            self._beaten = now
            self._tell_others({"kind": "beat"})
        return due

    def _tick(self, now: float) -> None:
        if self._beat_others(now):
            self._tell_all({"kind": "beat"}, droppable=True)
        if self._phase == "over":
            return
        if self._closing.is_set():  # the record cannot be written
            self._end(self._outcome)
        elif self._verdict is not None:
            self._end(self._verdict)
        elif self._suspicion is not None and now > self._suspicion[0]:
            self._fail(*self._members.explain(self._suspicion[1], self._suspicion[2]))
        elif self._phase in ("joining", "preparing"):
            self._begin(now)
        else:
            for member in self._members.silent(now):
                self._lose(member, f"has been silent for {self.job.limits.timeout_s:g} s")
            if self._phase == "training":
                self._train(now)

    def _begin(self, now: float) -> None:
        """Let everybody start together."""
        members = self._members
        if self._asked_to_stop.is_set():
            self._end("interrupted")
        elif self._phase == "joining" and all(member.joined for member in members.members):
            self._phase, self._since = "preparing", now
            if self.experiment.algo.lockstep and self.experiment.nodes > 1:
                self._store = _store(self.job.coordinator[0])
            for member in members.members:
                self._tell(member, self._book(member))
        elif self._phase == "preparing" and all(member.ready for member in members.members):
            self._phase = "training"
            self._begun = time.monotonic() - self._start_s
            self._collecting.saved = now
            for member in members.members:
                member.heard = now
                self._tell(member, self._go(member))
        elif now - self._since > max(HELLO_S, self.job.limits.timeout_s, COMPILING_S * self.experiment.compile):
            late = [member.name for member in members.members if not (member.joined and member.ready)]
            self._fail(f"{', '.join(late)} did not come within {now - self._since:.0f} s")

    def _book(self, member: Member) -> Message:
        addresses = [other.address for other in self._members.members]
        port = None if self._store is None else self._store.port
        return {"kind": "book", "addresses": addresses, "store": port, "steps": member.steps}

    def _go(self, member: Member) -> Message:
        return {"kind": "go", "time_s": self.time_s, "samples": self.samples, "yours": member.steps}

    def _train(self, now: float) -> None:
        """Marks, budget, checkpoints: whatever is due."""
        experiment, time_s = self.experiment, now - self._begun
        lockstep, total, limit_s = experiment.algo.lockstep, experiment.total_samples, experiment.budget.time_s
        if limit_s is not None and time_s >= limit_s:
            self._ask_for_the_last(limit_s)
            return
        if not lockstep and total is not None and self.samples >= total:
            self._ask_for_the_last(time_s)
            return
        if lockstep and all(member.ended for member in self._members.workers):
            self._collecting.all_made = True
            self._ask_for_the_last(max(member.ended_s for member in self._members.workers))
            return
        self._collecting.ask(now, time_s, self._asked_to_stop.is_set())
        if not lockstep and now - self._told > TELL_S:
            self._told = now
            for member in self._members.live_workers:
                message = {"kind": "total", "samples": self.samples, "yours": member.steps}
                self._tell(member, message, droppable=True)

    def _ask_for_the_last(self, time_s: float) -> None:
        self._phase, self._end_s = "ending", time_s
        self._collecting.ask_for_the_last(time_s)

    # What members say

    def _hello(self, client: Client, message: Message, vectors: object) -> None:
        if message["role"] == "bulk":
            client.owner = self._members[message["node"]]
            return
        if message["role"] == "agent":
            self._agents.append(client)
            return
        if message["role"] == "evaluator":
            if self._evaluators is not None:
                client.owner = self._evaluators.join(client, message["name"])
            return
        member = self._members[message["node"]]
        client.owner = member
        if self._phase == "ending" and member.line is not None:  # it takes the place of one that has just died
            self._hub.send(client, {"kind": "exit", "status": "completed"})
            return
        rejoins = self._phase == "training" and not self.experiment.algo.lockstep
        if member.line is not None and not rejoins:
            self._fail(f"{member.name} has come twice")
            return
        member.join(client, (message["host"], message["port"]))
        if rejoins:
            self._log(f"{member.name} is back, as a new process")
            for other in self._members.members:
                if other is not member:
                    moved = {"kind": "moved", "node": member.node, "host": message["host"], "port": message["port"]}
                    self._tell(other, moved)
            self._tell(member, self._book(member))

    def _ready(self, client: Client, message: Message, vectors: object) -> None:
        client.owner.ready = True
        if self._phase == "training":
            self._tell(client.owner, self._go(client.owner))

    def _steps(self, client: Client, message: Message, vectors: object) -> None:
        self._members.moved(client.owner, message["steps"])

    def _beat(self, client: Client, message: Message, vectors: object) -> None:
        self._members.moved(client.owner, message["steps"])
        client.owner.counters = message["counters"]

    def _ended(self, client: Client, message: Message, vectors: object) -> None:
        client.owner.ended, client.owner.ended_s = True, message["time_s"]

    def _missed(self, client: Client, message: Message, vectors: object) -> None:
        self._collecting.missed(message["key"])

    def _failed(self, client: Client, message: Message, vectors: object) -> None:
        """Somebody cannot go on. Who is to blame shows within a moment: a dead process's connections end, and what the
        others see of it first may be anything."""
        member: Member = client.owner
        if not message["known"]:
            self._fail(f"{member.name}: {message['error']}", member.name)
        elif self._suspicion is None:
            self._suspicion = (time.monotonic() + VERDICT_S, f"{member.name}: {message['error']}", message["blame"])

    def _interrupt(self, client: Client, message: Message, vectors: object) -> None:
        self._asked_to_stop.set()

    def _evaluated(self, client: Client, message: Message, vectors: object) -> None:
        if self._evaluators is not None:
            self._evaluators.answer(client.owner, message)

    def _alive(self, client: Client, message: Message, vectors: object) -> None:
        """An evaluator; that it has been heard is known."""

    def _snapshot(self, client: Client, message: Message, vectors: dict[str, Any]) -> None:
        member: Member = client.owner
        snapshot = Snapshot(message["steps"], message["time_s"], message["counters"], vectors, message["extra"])
        member.counters = message["counters"] or member.counters
        spans = [vectors.pop(name).view(-1, 2) for name in ("computing", "communicating") if name in vectors]
        wanted = self._collecting.add(member.node, message["key"], snapshot, self._phase == "training")
        if wanted and spans and message["key"] == LAST:  # one that has ended by itself adds them to earlier marks, too
            self.trace.append(Row(member.name, *([tuple(span) for span in kind.tolist()] for kind in spans)))
        self._emit()

    def _emit(self) -> None:
        """Pass on what is complete."""
        for gathering in self._collecting.complete(time.monotonic()):
            if gathering.snapshots and (gathering.is_checkpoint or not self._is_known(gathering)):
                self._items.put(gathering)
            if gathering.key == LAST:
                self._end_counters = gathering.counters(self.experiment) if gathering.snapshots else None
                self._end("completed")
            elif gathering.is_checkpoint and self._asked_to_stop.is_set():
                self._end("interrupted")

    def _is_known(self, gathering: Gathering) -> bool:
        """Has the last mark been taken already, by number of samples at the last step?"""
        counters = gathering.counters(self.experiment)
        before, self.progress.last_mark = self.progress.last_mark, (counters.time_s, counters.samples)
        lockstep = self.experiment.algo.lockstep and self.experiment.budget.time_s is None
        return gathering.key == LAST and lockstep and before is not None and before[1] == counters.samples

    # Who is no longer there, and how it ends

    def _gone(self, client: Client) -> None:
        owner = client.owner
        if isinstance(owner, Member) and client is owner.line:
            self._lose(owner, "has died")
        elif isinstance(owner, Evaluator) and self._evaluators is not None:
            self._evaluators.gone(owner)

    def _lose(self, member: Member, how: str) -> None:
        """Go on without a member, or end the run."""
        if self._phase == "over":
            return
        self._members.lose(member)
        where = f"{member.name} {how}" + (f" after {member.steps} steps" if self._phase == "training" else "")
        alone = member.is_server or self.experiment.algo.lockstep or not self._members.live_workers
        if self._phase in ("joining", "preparing") or (alone and not member.ended):
            name = type(self.experiment.algo).__name__.lower()
            line = where if self._phase in ("joining", "preparing") else f"{where}; {name} cannot go on without it"
            self._fail(line, member.name)
            return
        self._log(f"{where}; the others go on")
        self._collecting.give_up(member)
        self._emit()

    def _fail(self, error: str, culprit: str | None = None) -> None:
        self.culprit = self.culprit or culprit
        self._end("failed", error)

    def _end(self, status: str, error: str = "") -> None:
        if self._phase == "over":
            return
        if self._end_s is None:
            self._end_s = self.time_s
        self.status, self.error, self._phase = status, error, "over"

    def _tell(self, member: Member, message: Message, droppable: bool = False) -> None:
        if member.line is not None:
            self._hub.send(member.line, message, droppable=droppable)

    def _tell_all(self, message: Message, droppable: bool = False) -> None:
        for member in self._members.members:
            self._tell(member, message, droppable)

    def _tell_others(self, message: Message) -> None:
        """Agents and evaluators."""
        for agent in self._agents:
            self._send(agent, message)
        if self._evaluators is not None:
            self._evaluators.tell(message)

    def _send(self, client: Client, message: Message, vectors: Mapping[str, Tensor] | None = None) -> None:
        self._hub.send(client, message, vectors, droppable=message["kind"] == "beat")

    _handle: ClassVar[dict[str, Callable[..., None]]] = {
        "hello": _hello,
        "ready": _ready,
        "steps": _steps,
        "beat": _beat,
        "ended": _ended,
        "missed": _missed,
        "failed": _failed,
        "interrupt": _interrupt,
        "snapshot": _snapshot,
        "evaluated": _evaluated,
        "alive": _alive,
    }


def _store(host: str) -> TCPStore:
    """Where the process groups meet. Left to itself it would listen on every interface of this machine."""
    listener = listen(host)
    port: int = listener.getsockname()[1]
    return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
