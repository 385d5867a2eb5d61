"""The process that records a run: it evaluates marks and saves checkpoints, off the path of gradients and messages.

A separate thread listens to workers and servers (`monitor.py`). The thread that calls `Coordinator.run` evaluates
the snapshots that they submit, with the lowest priority, so that evaluation delays itself and not training. It uses
the first GPU of this machine's workers, or the CPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from queue import Empty
from typing import Any, TypeVar

import torch

from dsgd.engines.dist.control import Hub
from dsgd.engines.dist.coordinator.monitor import RunMonitor
from dsgd.engines.dist.coordinator.snapshots import LAST, PendingSnapshots, initial_snapshots
from dsgd.engines.dist.job import ProcessJob
from dsgd.engines.rules.marks import Mark, Progress, summary_of
from dsgd.engines.rules.trace import TraceRow
from dsgd.host.resources import lower_thread_priority
from dsgd.problem.evaluation import evaluated_workers, measure, measure_workers
from dsgd.problem.precision import prepare
from dsgd.runner.life import TrainingState

INTERRUPT_POLL_S = 0.1  # how often the thread that waits for marks checks for an interrupt
COST_S, COST_SHARE = 10.0, 0.25  # evaluations that took longer, and a larger share of the time, have a line

T = TypeVar("T")


class Coordinator:
    """Runs in the coordinator's process, which manages the run. Implements `dsgd.runner.life.Training`.

    log: prints lines that the user should see at once. checkpoint_every_s: None: only on an interrupt."""

    engine = "dist"
    clock = "wall"

    def __init__(self, job: ProcessJob, hub: Hub, log: Callable[[str], None], checkpoint_every_s: float | None) -> None:
        self.job = job
        self.experiment = job.experiment
        self.progress = Progress() if job.state is None else Progress(**job.state["progress"])
        self.monitor = RunMonitor(job, hub, log, checkpoint_every_s)
        self.header: dict[str, Any] = {}
        self.circumstances: dict[str, Any] = {}
        self.digest = job.digest
        self.devices = sorted({name for names in job.devices.values() for name in names})  # of this machine
        self._log = log
        self._device = torch.device(job.devices[min(job.devices)][0])
        self._evaluation_s: list[float] = []  # wall time of each evaluation

    @property
    def state(self) -> TrainingState:
        phase = self.monitor.phase
        return TrainingState(phase.status, phase.error, phase.time_s, self.monitor.members.samples)

    def run(self, interrupted: Callable[[], bool], save: Callable[[Mapping[str, Any]], None]) -> Iterator[Mark]:
        """Yield the measured fields of every mark until the run is over. `close` must follow.

        interrupted: called now and then; True ends the run with a checkpoint. save: stores a checkpoint's contents."""
        monitor = self.monitor
        monitor.begin()
        lower_thread_priority()
        begin = time.monotonic()
        if self.job.state is None:
            first = initial_snapshots(self.experiment, self.job.problem)
            yield self._evaluate(first, is_first=True)
            self._save(first, save)  # a run can be resumed from the beginning on
        while True:
            if interrupted():  # also while marks are waiting
                monitor.stop_requested.set()
            try:
                item = monitor.complete.get(timeout=INTERRUPT_POLL_S)
            except Empty:
                continue
            if item is None:
                monitor.phase.settle()
                if line := cost_line(self._evaluation_s, time.monotonic() - begin):
                    self._log(line)
                return
            monitor.schedule.release(item)
            if item.is_checkpoint:
                self._save(item, save)
            elif monitor.phase.verdict is None:
                yield self._evaluate(item)

    def summary(self) -> Mark:
        """Return the summary of the run so far."""
        problem, totals = self.job.problem, self.monitor.totals()
        p, k = self.experiment.nodes, self.experiment.algo.servers
        lockstep = self.experiment.algo.lockstep and p > 1
        collective = "torch" if self.job.collectives == "torch" else "ring"
        return (
            self.monitor.members.gpus()
            | summary_of(
                self.experiment,
                self.progress,
                self.monitor.phase.status,
                totals.counters,
                worker_steps=totals.worker_steps,
                server_nodes=range(p, p + k),
                classes=problem.data.classes,
                dimension=problem.dimension,
                message_bytes=problem.dimension * problem.start.element_size(),
                collective=collective if lockstep else "none",
            )
            | {
                "workers_lost": len(self.monitor.members.lost_workers),
                "messages_lost": totals.missed,
                "marks_left_out": self.monitor.schedule.dropped_marks,
            }
        )

    def close(self, outcome: str) -> None:
        """Let all processes go, now that the record is written. outcome: the status in the record."""
        self.monitor.close(outcome)

    def trace_rows(self) -> list[TraceRow]:
        return self.monitor.trace

    def _save(self, checkpoint: PendingSnapshots, save: Callable[[Mapping[str, Any]], None]) -> None:
        save(checkpoint.checkpoint(self.experiment, asdict(self.progress), self.monitor.members.lost_workers))

    def _evaluate(self, mark: PendingSnapshots, is_first: bool = False) -> Mark:
        experiment, problem, begin = self.experiment, self.job.problem, time.monotonic()
        xs, buffers, centre = mark.models(experiment)
        of_output = self._measured(lambda: measure(problem, experiment.eval, xs, buffers, centre))
        values = mark.counters(experiment).fields(experiment) | of_output
        self.progress.marks += 1
        status = self.progress.judge(experiment, values)
        if status is not None and self.monitor.phase.verdict is None:
            self.monitor.phase.conclude(status, mark.totals(experiment))
        # only now is it known whether this mark is the last
        everybody = is_first or status is not None or mark.key == LAST
        chosen = evaluated_workers(experiment.eval, len(xs), everybody)
        theirs = [xs[i] for i in chosen], [buffers[i] for i in chosen]
        values |= self._measured(lambda: measure_workers(problem, *theirs))
        self._evaluation_s.append(time.monotonic() - begin)
        return values

    def _measured(self, measure: Callable[[], T]) -> T:
        """Return measurements, from the CPU if the GPU fails: workers may fill its memory, or use it exclusively."""
        problem = self.job.problem
        try:
            if problem.device != self._device:
                prepare(self.experiment.precision, self._device)
                problem.to(self._device)
            return measure()
        except RuntimeError as error:
            if self._device.type == "cpu":
                raise
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            self._log(f"{self._device} cannot evaluate: {reason}; the CPU evaluates from now on")
            self._device = torch.device("cpu")
            problem.to(self._device)
            return measure()


def cost_line(evaluation_s: Sequence[float], run_s: float) -> str | None:
    """Return a line on the cost of evaluations; None if they cost little. evaluation_s: wall time of each. run_s: wall
    time from the first evaluation to the end of the last."""
    total_s = sum(evaluation_s)
    if total_s < COST_S or total_s < COST_SHARE * run_s:
        return None
    share = f"{total_s:.0f} s of {run_s:.0f} s"
    return f"{len(evaluation_s)} evaluations in the coordinator took {share}; eval.every_* sets how often it evaluates"
