"""Training in one rank of a process group; rank 0 also evaluates marks and stores checkpoints.

Every rank computes the gradients of its worker. The others wait while rank 0 evaluates, and the clock is stopped.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dsgd.engines.rules.marks import Counters, Mark, Progress, is_beyond, limit_of_batch, summary_of
from dsgd.engines.rules.step_rules import StepRules
from dsgd.engines.rules.trace import TraceRow
from dsgd.engines.torch.group_channel import (
    CheckpointOrders,
    CommunicationFailed,
    GroupChannel,
    Order,
    check_one_checkpoint,
)
from dsgd.engines.torch.lockstep import LockstepWorker
from dsgd.host.gpu_facts import gpu_facts, peak_bytes
from dsgd.optim.optimizer import State, state_vectors
from dsgd.problem.evaluation import evaluated_workers, measure, measure_workers
from dsgd.problem.precision import compiling, prepare
from dsgd.problem.problem import build_problem
from dsgd.record.checkpoint_file import check_state, read_state
from dsgd.record.stored_state import load_stored
from dsgd.runner.life import TrainingState, checked_digest
from dsgd.runner.plan import Plan
from dsgd.streams import stream
from dsgd.worker import Engine, MeanGradient, Worker

MARK_LIMIT = timedelta(days=1)  # evaluating may take longer than any message
STATUSES = ("running", "completed", "diverged")  # by the number that rank 0 sends
COUNTED = ("time_s", "sent", "received", "busy_s", "staleness_sum", "staleness_count", "staleness_max", "diverged")


class GroupTraining:
    """The worker of this process, and in rank 0 the whole run. Implements `dsgd.runner.life.Training`, and for the
    worker `dsgd.engines.torch.lockstep.LocalSteps`.

    status: status of the run, the same on all ranks after every mark."""

    engine = "torch"
    clock = "wall"

    def __init__(self, plan: Plan, device: torch.device) -> None:
        self.experiment = experiment = plan.config.experiment
        # Groups come first: ranks that meet wait for each other, and do not notice a rank that died before the meeting.
        self.channel, self.marks = GroupChannel(), _channel(MARK_LIMIT)
        of_orders = _channel(timedelta(seconds=plan.config.engine.timeout_s))
        prepare(experiment.precision, device)
        self.problem = build_problem(experiment)
        self.digest = checked_digest(self.problem, checkpoint := plan.checkpoint)
        state = None if checkpoint is None else read_state(checkpoint.path)
        if checkpoint is not None:
            check_state(state, "torch", experiment.nodes, checkpoint.path)
        self.limit = limit_of_batch(experiment, self.problem)
        self.problem.live_on(device)
        self.devices, self.header, self.circumstances = [str(device)], dict[str, Any](), dict[str, Any]()
        check_one_checkpoint(self.marks, None if checkpoint is None else checkpoint.header, device)
        self.rules, self.optimizer_state = StepRules(experiment, self.problem.matrices), None
        self.buffers = self.problem.start_buffers.clone()
        for vector in (self.problem.start, self.buffers):  # bit for bit the same, on any machines
            if vector.numel():
                self.channel.from_rank(0, vector, "the broadcast of the initial model")
        if experiment.compile:  # before signals only ask for the end of a step
            with compiling(type(self.problem.module).__name__):
                self.problem.gradient(self.problem.start, self.buffers.clone(), 0, 0)
        self.lockstep = LockstepWorker(experiment.algo, self._worker_of, self.channel, self)
        self.lockstep.between = self._take_due
        self.progress, self.status, self.error = Progress(), "running", ""
        self._begun = time.monotonic()
        self._busy_s = 0.0
        self._batches = 0
        self._diverged = self._due = self._wants_stop = False
        self._stored: tuple[Order, bytes] | None = None  # the state for the checkpoint that is due
        self._taken: list[tuple[Counters, list[Tensor], list[Tensor], Tensor | None]] = []
        nothing = [0.0] * self.channel.nodes
        self._last = Counters(0.0, self.clock, 0, nothing, nothing, nothing, 0.0, 0)  # of the latest mark or checkpoint
        self._is_resumed = state is not None
        if state is not None:
            self._restore(state)
        steps, every_s = self.lockstep.worker.steps, plan.config.engine.checkpoint_every_s
        self._orders = CheckpointOrders(of_orders, device, every_s, steps, self._is_resumed)

    # Local steps

    def _worker_of(self, engine: Engine) -> Worker:
        rank, nodes = self.channel.rank, self.channel.nodes
        rng = stream("algorithm", self.experiment.seed, rank)
        return Worker(rank, nodes, self.problem.start.clone(), rng, engine, self.problem.layout)

    def done(self, worker: Worker) -> bool:
        if self.rules.done(worker, 0):
            return True  # `train` may still have to average, which a restarted `train` would not do
        if worker.steps % self.experiment.algo.cycle == 0:
            order = self._orders.at_end_of_cycle(worker.steps, self._wants_stop)
            if order is not Order.CONTINUE:
                self._stored = order, self._state_of_worker()
        return False

    def learning_rate(self, worker: Worker) -> float:
        return self.rules.learning_rate(worker, 0)

    def step(self, worker: Worker, g: Tensor) -> None:
        self.optimizer_state: State | None = self.rules.step(worker, g, self.optimizer_state, 0)
        self._due = self.rules.is_at_mark(worker)

    def remembered(self) -> Sequence[Tensor]:
        return state_vectors(self.optimizer_state)

    def forget(self) -> None:
        self.optimizer_state = None

    # The run

    @property
    def state(self) -> TrainingState:
        samples = self.lockstep.worker.steps * self.experiment.unit
        return TrainingState(self.status, self.error, time.monotonic() - self._begun, samples)

    def run(self, interrupted: Callable[[], bool], save: Callable[[Mapping[str, Any]], None]) -> Iterator[Mark]:
        """Yield every mark and save every checkpoint, in rank 0; the others only take part."""
        try:
            yield from self._run(interrupted, save)
        except CommunicationFailed as error:
            self.status, self.error = "failed", str(error)

    def _run(self, interrupted: Callable[[], bool], save: Callable[[Mapping[str, Any]], None]) -> Iterator[Mark]:
        problem, lockstep = self.problem, self.lockstep
        if not self._is_resumed:
            self._take()
            yield from self._evaluated()
        lockstep.begin()
        while lockstep.asked is not None and self.status == "running":
            begun, batch = time.monotonic(), self._batches
            self._wants_stop = interrupted()
            g, loss = problem.gradient_and_loss(lockstep.worker.x, self.buffers, self.channel.rank, batch)
            self._diverged = self._diverged or is_beyond(float(loss), self.limit)
            self._busy_s += time.monotonic() - begun
            if isinstance(lockstep.asked, MeanGradient):
                self.channel.mean(g, f"mean_gradient at step {batch}")
            self._batches += 1
            lockstep.answer(g)
            yield from self._evaluated()
            if self._stored is not None and self.status == "running":
                self._store(*self._stored, save)
                self._stored = None
        if self.status == "running":
            self._take()
            yield from self._evaluated(is_last=True)
        lockstep.finish()

    def _take_due(self) -> None:
        if self._due:  # at the same place of the algorithm in all workers
            self._due = False
            self._take()

    def _take(self) -> None:
        """Gather the counters and models of a mark in rank 0."""
        worker, channel = self.lockstep.worker, self.marks
        kept = self.experiment.algo.output
        centre = None if kept is None else worker.kept.get(kept, worker.x)
        numbers = torch.tensor([*self._counted().values()], dtype=torch.float64, device=worker.x.device)
        gathered = channel.gathered(numbers, "the counters of a mark")
        xs, buffers = (channel.gathered_in_first(part, "the models of a mark") for part in (worker.x, self.buffers))
        if centre is not None:
            centre = channel.from_rank(channel.nodes - 1, centre.clone(), "the output model of a mark")
        self._count([dict(zip(COUNTED, each.tolist(), strict=True)) for each in gathered])
        self._taken.append((self._last, xs, buffers, centre))

    def _counted(self) -> dict[str, float]:
        """Return the numbers of this rank that marks and checkpoints have."""
        time_s, channel = time.monotonic() - self._begun, self.channel
        sent, received, staleness = channel.bytes_sent, channel.bytes_received, self.lockstep.staleness
        numbers = (time_s, sent, received, self._busy_s, *staleness, self._diverged)
        return dict(zip(COUNTED, numbers, strict=True))

    def _count(self, ranks: Sequence[Mapping[str, float]]) -> None:
        """Combine the numbers of all ranks."""
        of_all = {name: [rank[name] for rank in ranks] for name in COUNTED}
        time_s = max(of_all["time_s"])
        self._diverged = any(of_all["diverged"])
        self._last = Counters(
            time_s=time_s,
            clock="wall",
            samples=self.lockstep.worker.steps * self.experiment.unit,
            bytes_sent=of_all["sent"],
            bytes_received=of_all["received"],
            idle=[max(0.0, 1 - busy_s / time_s) for busy_s in of_all["busy_s"]],
            staleness_mean=sum(of_all["staleness_sum"]) / max(sum(of_all["staleness_count"]), 1),
            staleness_max=int(max(of_all["staleness_max"])),
        )

    # Checkpoints

    def _state_of_worker(self) -> bytes:
        """Return the state from which this worker resumes, in the format of torch.save."""
        worker, optimizer = self.lockstep.worker, self.optimizer_state or State({})
        vectors = {f"kept.{name}": vector for name, vector in worker.kept.items()} | optimizer.vectors
        vectors |= {"x": worker.x, "buffers": self.buffers}
        state = {
            "steps": worker.steps,
            "batches": self._batches,
            "optimizer_steps": optimizer.steps,
            "rng": worker.rng.bit_generator.state,
            "counters": self._counted(),
            "vectors": {name: vector.to("cpu", copy=True) for name, vector in vectors.items()},
        }
        torch.save(state, content := io.BytesIO())
        return content.getvalue()

    def _store(self, order: Order, content: bytes, save: Callable[[Mapping[str, Any]], None]) -> None:
        """Save a checkpoint in rank 0, from the states of all ranks. The clock is stopped."""
        begun, device = time.monotonic(), self.problem.device
        contents = self.marks.bytes_in_first(content, device, "the states of a checkpoint")
        states = [load_stored(each) for each in contents]  # sent by other ranks
        if order is Order.STORE_AND_STOP:
            self.status = "interrupted"
        if states:
            self._count([state["counters"] for state in states])
            progress = asdict(self.progress)
            save({"time_s": self._last.time_s, "progress": progress, "workers": states})
        self.marks.from_rank(0, torch.zeros(1, device=device), "the end of a checkpoint")
        self._begun += time.monotonic() - begun

    def _restore(self, state: Mapping[str, Any]) -> None:
        """Take over the state of this rank's worker, and the progress of the run, from a checkpoint."""
        worker, stored = self.lockstep.worker, state["workers"][self.channel.rank]
        vectors, counted = stored["vectors"], stored["counters"]
        worker.steps, self._batches = stored["steps"], stored["batches"]
        worker.rng.bit_generator.state = stored["rng"]
        worker.x.copy_(vectors["x"])
        self.buffers.copy_(vectors["buffers"])
        optimizer = {
            name: vectors[name].to(worker.x) for name in self.experiment.optimizer.remembers if name in vectors
        }
        self.optimizer_state = State(optimizer, stored["optimizer_steps"]) if optimizer else None
        for name in vectors:
            if name.startswith("kept."):
                worker.keep(name.removeprefix("kept."), vectors[name].to(worker.x))
        self.channel.bytes_sent, self.channel.bytes_received = int(counted["sent"]), int(counted["received"])
        self.lockstep.staleness = [int(counted[name]) for name in COUNTED if name.startswith("staleness")]
        self._busy_s, self._begun = counted["busy_s"], time.monotonic() - state["time_s"]
        self.progress = Progress(**state["progress"])
        self._count([each["counters"] for each in state["workers"]])

    def _evaluated(self, is_last: bool = False) -> Iterator[Mark]:
        """Evaluate the gathered models in rank 0, and broadcast the status of the run. The clock is stopped."""
        taken, self._taken = self._taken, []
        for models in taken:
            begun = time.monotonic()
            values = self._measured(*models, is_last) if self.channel.rank == 0 else None
            status = torch.tensor([STATUSES.index(self.status)], device=self.problem.device)
            self.marks.from_rank(0, status, "the verdict of a mark")
            self.status = STATUSES[int(status)]
            self._begun += time.monotonic() - begun
            if values is not None:
                yield values

    def _measured(
        self, counters: Counters, xs: list[Tensor], buffers: list[Tensor], centre: Tensor | None, is_last: bool
    ) -> Mark:
        experiment, problem = self.experiment, self.problem
        values = counters.fields(experiment) | measure(problem, experiment.eval, xs, buffers, centre)
        self.progress.marks += 1
        status = self.progress.judge(experiment, values)
        if status is None and (self._diverged or is_last):
            status = "diverged" if self._diverged else "completed"
        self.status = status or "running"
        chosen = evaluated_workers(experiment.eval, len(xs), self.progress.marks == 1 or status is not None)
        return values | measure_workers(problem, [xs[i] for i in chosen], [buffers[i] for i in chosen])

    def summary(self) -> Mark:
        steps = [self.lockstep.worker.steps] * self.channel.nodes
        classes, d = self.problem.data.classes, self.problem.dimension
        bytes_of_x = float(self.lockstep.worker.x.nbytes)
        backend = str(dist.get_backend())
        summary = summary_of(
            self.experiment, self.progress, self.status, self._last, steps, [], classes, d, bytes_of_x, backend
        )
        return summary | gpu_facts([self.problem.device]) | peak_bytes([self.problem.device])

    def trace_rows(self) -> list[TraceRow]:
        return []

    def close(self, outcome: str) -> None:
        """Do nothing: the others see it when the connections are closed."""


def _channel(limit: timedelta) -> GroupChannel:
    """Return a channel of all ranks with another time limit."""
    group = dist.new_group(timeout=limit)
    assert isinstance(group, dist.ProcessGroup)  # a number stands for processes outside the group
    return GroupChannel(group)
