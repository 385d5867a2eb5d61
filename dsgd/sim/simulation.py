"""One simulated run from start to end: budget, evaluation marks, target, divergence, interruption."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from dsgd.experiment import Experiment
from dsgd.gradients import build_evaluator
from dsgd.gradients.evaluation import FIELDS, measure
from dsgd.gradients.nothing import Nothing
from dsgd.gradients.problem import Problem
from dsgd.sim.machine import Machine

DTYPES = {"fp32": torch.float32, "fp64": torch.float64}

Mark = dict[str, Any]


def build_problem(experiment: Experiment) -> Problem:
    """Load the data and initialise the model. Raises ValueError for data that cannot be read."""
    dtype = DTYPES[experiment.precision]
    # without gradients only the shape of the data matters: do not ask for a share for each of thousands of nodes
    nodes, batch_size = (1, 1) if experiment.gradients == "none" else (experiment.nodes, experiment.batch_size)
    data = experiment.data.load(nodes, batch_size, experiment.seed, dtype)
    # modules initialise themselves from torch's global stream: seed it, and leave it as it was
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(experiment.seed)
        module = experiment.model.build(data.input_shape, data.classes)
    optimizer = experiment.optimizer
    return Problem(module, data, dtype, optimizer.weight_decay, optimizer.decay_norm_and_bias)


@dataclass
class Progress:
    """What a run has found out so far that no replay of its timing could tell. Part of a checkpoint."""

    marks: int = 0
    last_mark: tuple[float, int] | None = None  # (time_s, samples)
    next_samples: int = 1  # how many intervals of samples the next mark is at
    next_time: int = 1
    first_loss: float | None = None
    time_to_target_s: float | None = None
    last_values: Mark | None = None


class Simulation:
    """status: running, then completed | diverged | interrupted."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self.problem = build_problem(experiment)
        self.machine = Machine(experiment, self.problem, build_evaluator(experiment.gradients, self.problem))
        self.progress = Progress()
        self.status = "running"
        self.end_s: float | None = None
        self._launched = False
        self._replaying = False

    @property
    def time_s(self) -> float:
        """Seconds of virtual time so far; at the end, that of the whole run."""
        return self.machine.loop.now if self.end_s is None else self.end_s

    def run(self, interrupt: Callable[[], bool] = lambda: False) -> Iterator[Mark]:
        """Run to the end, yielding the measured fields of every mark. `interrupt` is asked between any two events; True
        stops the run there, ready for a checkpoint. Can be called again after that."""
        self.status = "running"
        if not self._launched:
            if self._is_new(0.0):
                yield from self._mark(0.0)
            self.machine.launch()
            self._launched = True
        machine, loop = self.machine, self.machine.loop
        while self.status == "running":
            # in the midst of a moment nothing is due
            amid = loop.next_time == loop.now and not machine.over
            due = None if amid else self._due()
            if due is not None:
                yield from self._mark(due)
            elif not amid and self._finished():
                if self._is_new(self.time_s):
                    yield from self._mark(self.time_s)
                if self.status == "running":
                    self.status = "completed"
            elif interrupt():
                self.status = "interrupted"
            else:
                loop.process_one()

    def replay(self, events: int) -> None:
        """Repeat the first events of an interrupted run without gradients and evaluations, for its control flow
        only."""
        evaluator, self.machine.evaluator = self.machine.evaluator, Nothing()
        self._replaying = True
        for _ in self.run(interrupt=lambda: self.machine.loop.processed >= events):
            pass
        self._replaying = False
        self.machine.evaluator = evaluator

    def _due(self) -> float | None:
        """The virtual time of a mark that is due before the next event, None if none is. A mark of samples sees a
        moment as all events of that moment have left it."""
        machine, every_s = self.machine, self.experiment.eval.every_time_s
        now, following = machine.loop.now, machine.loop.next_time
        interval = self.experiment.mark_samples
        over = self._finished()
        if machine.samples >= self.progress.next_samples * interval and (over or following is None or following > now):
            self.progress.next_samples = int(machine.samples // interval) + 1
            return now if self._is_new(now) else self._due()
        if every_s is not None and following is not None and not over:
            mark_s = self.progress.next_time * every_s
            if mark_s < following:
                self.progress.next_time += 1
                return mark_s if self._is_new(mark_s) else self._due()
        return None

    def _is_new(self, time_s: float) -> bool:
        return self.progress.last_mark != (time_s, self.machine.samples)

    def _finished(self) -> bool:
        machine, limit_s = self.machine, self.experiment.budget.time_s
        if self.end_s is not None:
            return True
        following = machine.loop.next_time
        if machine.over:
            self.end_s = machine.loop.now
        elif limit_s is not None and (following is None or following > limit_s):
            self.end_s = limit_s
        elif following is None:
            stuck = [task.owner.worker.rank for task in machine.tasks if not task.finished]
            raise RuntimeError(f"workers {stuck} wait for something that never happens, at {machine.loop.now:g} s")
        return self.end_s is not None

    def _mark(self, time_s: float) -> Iterator[Mark]:
        self.progress.marks += 1
        self.progress.last_mark = (time_s, self.machine.samples)
        if not self._replaying:
            values = self._measure(time_s)
            self._judge(values)
            self.progress.last_values = values
            yield values

    def _measure(self, time_s: float) -> Mark:
        machine, experiment = self.machine, self.experiment
        measured: dict[str, float | None] = dict.fromkeys(FIELDS)
        if experiment.gradients != "none":
            xs = [node.worker.x for node in machine.nodes]
            buffers = [node.buffers for node in machine.nodes]
            measured = measure(self.problem, experiment.eval, xs, buffers, machine.centre())
        return self.counters(time_s) | measured

    def counters(self, time_s: float) -> Mark:
        """The fields of a mark that need no evaluation."""
        machine, experiment = self.machine, self.experiment
        idle = [node.idle_fraction(time_s) for node in machine.nodes]
        return {
            "time_s": time_s,
            "clock": "virtual",
            "samples": machine.samples,
            "epoch": machine.samples / experiment.epoch_samples,
            "lr": experiment.learning_rate(machine.samples),
            "staleness_mean": machine.staleness_sum / max(machine.staleness_count, 1),
            "staleness_max": machine.staleness_max,
            "bytes_sent": round(sum(machine.network.bytes_sent)),
            "idle_fraction_mean": sum(idle) / len(idle),
            "idle_fraction_max": max(idle),
        }

    def _judge(self, values: Mark) -> None:
        """Has the run diverged, or reached its target?"""
        loss, progress, target = values["train_loss"], self.progress, self.experiment.target
        if loss is not None:
            first = progress.first_loss = loss if progress.first_loss is None else progress.first_loss
            limit = self.experiment.eval.diverged_factor * max(first, 1.0)
            if not math.isfinite(loss) or loss > limit:
                self.status = "diverged"
                self.end_s = values["time_s"]
        accuracy = values["test_accuracy"]
        reached = target.accuracy is not None and accuracy is not None and accuracy >= target.accuracy
        if reached and progress.time_to_target_s is None:
            progress.time_to_target_s = values["time_s"]
            if target.stop:
                self.status = "completed"
                self.end_s = values["time_s"]

    def summary(self) -> Mark:
        """The run as a whole: the last measured values, the counters as they are now."""
        machine = self.machine
        values = (self.progress.last_values or dict.fromkeys(FIELDS)) | self.counters(self.time_s)
        sent = machine.network.bytes_sent
        return {
            "status": self.status,
            "clock": "virtual",
            "time_s": self.time_s,
            "samples": machine.samples,
            "epochs": values["epoch"],
            "steps": max(node.worker.steps for node in machine.nodes),
            **{field: values[field] for field in FIELDS},
            "time_to_target_s": self.progress.time_to_target_s,
            "bytes_sent_total": round(sum(sent)),
            "bytes_sent_max_node": round(max(sent)),
            **{key: values[key] for key in values if key.startswith(("idle_fraction", "staleness"))},
            "dimension": self.problem.dimension,
            "message_bytes": machine.message_bytes,
            "spectral_gap": self.experiment.topology.spectral_gap,
            "collective": machine.all_reduce[1],
        }
