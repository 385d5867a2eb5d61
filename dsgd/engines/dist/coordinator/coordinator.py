"""The process that records a run: it evaluates marks and saves checkpoints, off the path of gradients and messages.

A thread of its own listens to workers and servers (`monitor.py`). The thread that calls `Coordinator.run` evaluates
the snapshots that they submit, or has them evaluated in parts (`sharded.py`), with the lowest priority, so that
evaluation delays itself and not training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from queue import Empty
from typing import Any

from torch import Tensor

from dsgd.engines.dist.control import Hub
from dsgd.engines.dist.coordinator.monitor import RunMonitor
from dsgd.engines.dist.coordinator.sharded import (
    INTERRUPT_POLL_S,
    is_sharded,
    measure_in_parts,
    measure_workers_in_parts,
)
from dsgd.engines.dist.coordinator.snapshots import LAST, PendingSnapshots, initial_snapshots
from dsgd.engines.dist.job import ProcessJob
from dsgd.engines.rules.marks import Mark, Progress, summary_of
from dsgd.host.resources import lower_thread_priority
from dsgd.problem.evaluation import evaluated_workers, measure, measure_workers


class Coordinator:
    """Runs in the coordinator's process.

    log: gets lines that the user should see at once. checkpoint_every_s: None: only on an interrupt.
    """

    def __init__(self, job: ProcessJob, hub: Hub, log: Callable[[str], None], checkpoint_every_s: float | None) -> None:
        self.job = job
        self.experiment = job.experiment
        self.progress = Progress() if job.state is None else Progress(**job.state["progress"])
        self.monitor = RunMonitor(job, hub, log, checkpoint_every_s)
        self._is_sharded = is_sharded(job)
        self._interrupted: Callable[[], bool] = lambda: False

    def listen(self) -> None:
        """Listen to the other processes, which must not wait until the disk has taken the record's first files. `run`
        or `close` must follow."""
        self.monitor.listen()

    def run(self, interrupted: Callable[[], bool], save: Callable[[Mapping[str, Any]], None]) -> Iterator[Mark]:
        """Yield the measured fields of every mark until the run is over. `close` must follow.

        interrupted: called now and then; True ends the run with a checkpoint. save: stores a checkpoint's contents."""
        monitor, self._interrupted = self.monitor, interrupted
        monitor.begin()
        lower_thread_priority()
        if self.job.state is None:
            first = initial_snapshots(self.experiment, self.job.problem)
            yield self._evaluate(first, is_first=True)
            self._save(first, save)  # a run can be resumed from the beginning on
        while True:
            self._check_interrupt()
            try:
                item = monitor.complete.get(timeout=INTERRUPT_POLL_S)
            except Empty:
                continue
            if item is None:
                monitor.phase.settle()
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
                self.monitor.status,
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

    def _save(self, checkpoint: PendingSnapshots, save: Callable[[Mapping[str, Any]], None]) -> None:
        save(checkpoint.checkpoint(self.experiment, asdict(self.progress), self.monitor.members.lost_workers))

    def _check_interrupt(self) -> None:
        if self._interrupted():  # also while marks are waiting
            self.monitor.stop_requested.set()

    def _evaluate(self, mark: PendingSnapshots, is_first: bool = False) -> Mark:
        experiment = self.experiment
        xs, buffers, centre = mark.models(experiment)
        values = mark.counters(experiment).fields(experiment) | self._measure(mark.key, xs, buffers, centre)
        self.progress.marks += 1
        status = self.progress.judge(experiment, values)
        if status is not None and self.monitor.phase.verdict is None:
            self.monitor.phase.conclude(status, mark.totals(experiment))
        # only now is it known whether this mark is the last
        everybody = is_first or status is not None or mark.key == LAST
        chosen = evaluated_workers(experiment.eval, len(xs), everybody)
        values |= self._measure_workers(mark.key, [xs[i] for i in chosen], [buffers[i] for i in chosen])
        return values

    def _measure(
        self, key: str, xs: Sequence[Tensor], buffers: Sequence[Tensor], centre: Tensor | None
    ) -> dict[str, float | None]:
        experiment, problem = self.experiment, self.job.problem
        if not self._is_sharded:
            return measure(problem, experiment.eval, xs, buffers, centre)
        pool = self.monitor.evaluators
        return measure_in_parts(pool, experiment, problem, key, xs, buffers, centre, self._check_interrupt)

    def _measure_workers(self, key: str, xs: Sequence[Tensor], buffers: Sequence[Tensor]) -> dict[str, float | None]:
        problem, pool = self.job.problem, self.monitor.evaluators
        if not self._is_sharded:
            return measure_workers(problem, xs, buffers)
        return measure_workers_in_parts(pool, self.experiment, problem, key, xs, buffers, self._check_interrupt)
