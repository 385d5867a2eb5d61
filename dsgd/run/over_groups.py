"""A run over process groups of torch.distributed, in the processes that torchrun or srun has started: `engine=torch`.

Every process computes the gradients of its worker. That of rank 0 evaluates the marks too, while the others wait for
what it decides, and keeps the record.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dsgd.data import DataLost
from dsgd.engine.divergence import is_beyond, limit_of_batch
from dsgd.engine.marks import Counters, Mark, Progress, summary_of
from dsgd.engine.rules import StepRules
from dsgd.engine.trace import TraceRow
from dsgd.host.gpu_facts import gpu_facts, peak_bytes
from dsgd.host.signals import remembered as signals_remembered
from dsgd.host.stop import STOP_SIGNALS
from dsgd.optimizer import State, remembered
from dsgd.problem.evaluation import evaluated_workers, measure, measure_workers
from dsgd.problem.model_failed import ModelFailed
from dsgd.problem.precision import prepare
from dsgd.problem.problem import build_problem
from dsgd.process_groups.channel import CommunicationFailed, GroupChannel
from dsgd.process_groups.lockstep import LockstepWorker
from dsgd.run.alike import checked_digest
from dsgd.run.life import TrainingState, live
from dsgd.run.meeting import Joined
from dsgd.run.plan import Plan
from dsgd.run.values import ConfigError, prefixed
from dsgd.safe_text import for_terminal
from dsgd.streams import stream
from dsgd.worker import MeanGradient, Worker

MARK_LIMIT = timedelta(days=1)  # evaluating may take longer than any message
STATUSES = ("running", "completed", "diverged")  # by the number that rank 0 sends


def run_over_groups(plan: Plan, folder: Path, joined: Joined, device: str, ended: Callable[[], None]) -> str:
    """Run a plan on this process's worker; rank 0 keeps the record in `folder`. Returns the status. Raises ConfigError.

    device: of this worker. ended: called when the run is over, before signals do again what they did."""
    torch.set_num_threads(plan.config.engine.threads or 1)
    gc.freeze()
    try:
        with prefixed(None), _process_group(plan, joined, torch.device(device)):
            try:
                training = GroupTraining(plan, torch.device(device))
            except (CommunicationFailed, DataLost) as failure:
                raise ConfigError(str(failure)) from failure
            if joined.rank == 0:
                with signals_remembered(STOP_SIGNALS) as stops:
                    return live(plan, folder, training, stops)
            try:
                for _ in training.run(lambda: False, lambda _: None):
                    pass
            except (DataLost, ModelFailed) as failure:
                training.status, training.error = "failed", str(failure)
            if training.error:  # rank 0 prints its own at the end of its record
                print(for_terminal(training.error), file=sys.stderr, flush=True)
            return training.status
    finally:
        ended()


@contextmanager
def _process_group(plan: Plan, joined: Joined, device: torch.device) -> Iterator[None]:
    """Connect the processes, at the address on which they have agreed."""
    if joined.listener is not None:
        joined.listener.close()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=f"tcp://{joined.meeting.host}:{joined.meeting.port}",
        rank=joined.rank,
        world_size=plan.config.experiment.nodes,
        timeout=timedelta(seconds=plan.config.engine.timeout_s),
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


class GroupTraining:
    """The worker of this process, and in rank 0 the run as a whole. Implements `dsgd.run.life.Training`, and for the
    worker `dsgd.process_groups.lockstep.LocalSteps`.

    status: as in TrainingState, the same on all ranks after every mark."""

    engine = "torch"
    clock = "wall"

    def __init__(self, plan: Plan, device: torch.device) -> None:
        self.experiment = experiment = plan.config.experiment
        prepare(experiment.precision, device)
        self.problem = build_problem(experiment)
        self.digest = checked_digest(self.problem, None)
        self.limit = limit_of_batch(experiment, self.problem)
        self.problem.live_on(device)
        self.devices, self.header, self.circumstances = [str(device)], dict[str, Any](), dict[str, Any]()
        of_marks = dist.new_group(timeout=MARK_LIMIT)
        assert isinstance(of_marks, dist.ProcessGroup)  # of all ranks
        self.channel, self.marks = GroupChannel(), GroupChannel(of_marks)
        self.rules, self.optimizer_state = StepRules(experiment, self.problem.matrices), None
        self.buffers = self.problem.start_buffers.clone()
        for vector in (self.problem.start, self.buffers):  # bit for bit the same, on whatever machines
            if vector.numel():
                self.channel.from_rank(0, vector, "the broadcast of the initial model")
        rng = stream("algorithm", experiment.seed, self.channel.rank)
        x = self.problem.start.clone()
        self.lockstep = LockstepWorker(experiment.algo, x, rng, self.problem.layout, self.channel, self)
        self.lockstep.between = self._take_due
        self.progress, self.status, self.error = Progress(), "running", ""
        self._begun = time.monotonic()
        self._busy_s = 0.0
        self._diverged = False
        self._due = False
        self._taken: list[tuple[Counters, list[Tensor], list[Tensor], Tensor | None]] = []
        nothing = [0.0] * self.channel.nodes
        self._last = Counters(0.0, self.clock, 0, nothing, nothing, nothing, 0.0, 0)  # of the latest mark

    # Local steps

    def done(self, worker: Worker) -> bool:
        return self.rules.done(worker, 0)

    def learning_rate(self, worker: Worker) -> float:
        return self.rules.learning_rate(worker, 0)

    def step(self, worker: Worker, g: Tensor) -> None:
        experiment = self.experiment
        self.optimizer_state: State | None = self.rules.step(worker, g, self.optimizer_state, 0)
        before, now = (worker.steps - 1) * experiment.unit, worker.steps * experiment.unit
        crosses = now // experiment.mark_samples > before // experiment.mark_samples
        # what follows the last step, an average maybe, belongs to the output: the mark at the end shows it
        self._due = crosses and not self.rules.done(worker, 0)

    def remembered(self) -> Sequence[Tensor]:
        return remembered(self.optimizer_state)

    def forget(self) -> None:
        self.optimizer_state = None

    # The run

    @property
    def state(self) -> TrainingState:
        samples = self.lockstep.worker.steps * self.experiment.unit
        return TrainingState(self.status, self.error, time.monotonic() - self._begun, samples, self.progress.marks)

    def run(self, interrupted: Callable[[], bool], save: Callable[[Mapping[str, Any]], None]) -> Iterator[Mark]:
        """Yield every mark, in rank 0; the others only take part. There are no checkpoints to save."""
        try:
            yield from self._run(interrupted)
        except CommunicationFailed as error:
            self.status, self.error = "failed", str(error)

    def _run(self, interrupted: Callable[[], bool]) -> Iterator[Mark]:
        problem, lockstep = self.problem, self.lockstep
        self._take()
        yield from self._evaluated()
        lockstep.begin()
        batch = 0
        while lockstep.asked is not None and self.status == "running":
            begun = time.monotonic()
            g, loss = problem.gradient_and_loss(lockstep.worker.x, self.buffers, self.channel.rank, batch)
            self._diverged = self._diverged or is_beyond(float(loss), self.limit)
            self._busy_s += time.monotonic() - begun
            if isinstance(lockstep.asked, MeanGradient):
                self.channel.mean(g, f"mean_gradient at step {batch}")
            lockstep.answer(g)
            batch += 1
            if interrupted():
                self.status = "interrupted"  # the other ranks end when this one's connections are closed
                return
            yield from self._evaluated()
        if self.status == "running":
            self._take()
            yield from self._evaluated(is_last=True)

    def _take_due(self) -> None:
        if self._due:  # at the same place of the algorithm in all workers
            self._due = False
            self._take()

    def _take(self) -> None:
        """Gather what a mark is made of in rank 0."""
        worker, channel = self.lockstep.worker, self.marks
        time_s = time.monotonic() - self._begun
        kept = self.experiment.algo.output
        centre = None if kept is None else worker.kept.get(kept, worker.x)
        sent, staleness = self.channel.bytes_sent, self.lockstep.staleness
        numbers = torch.tensor(
            [time_s, sent, self.channel.bytes_received, self._busy_s, *staleness, self._diverged], dtype=torch.float64
        )
        gathered = channel.gathered(numbers.to(worker.x.device), "the counters of a mark")
        xs, buffers = (channel.gathered_in_first(part, "the models of a mark") for part in (worker.x, self.buffers))
        if centre is not None:
            centre = channel.from_rank(channel.nodes - 1, centre.clone(), "the output model of a mark")
        time_s, sent, received, busy, total, count, largest, diverged = torch.stack(gathered).T.tolist()
        self._diverged = any(diverged)
        self._last = Counters(
            time_s=max(time_s),
            clock="wall",
            samples=worker.steps * self.experiment.unit,
            bytes_sent=sent,
            bytes_received=received,
            idle=[max(0.0, 1 - busy_s / max(time_s)) for busy_s in busy],
            staleness_mean=sum(total) / max(sum(count), 1),
            staleness_max=int(max(largest)),
        )
        self._taken.append((self._last, xs, buffers, centre))

    def _evaluated(self, is_last: bool = False) -> Iterator[Mark]:
        """Evaluate what was taken, in rank 0, and tell all ranks whether the run goes on. The clock stands still."""
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
