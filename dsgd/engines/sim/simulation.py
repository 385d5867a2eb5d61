"""One simulated run: budget, evaluation marks, target, divergence, interruption."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from dsgd.cluster import CENTRAL
from dsgd.engines.rules.marks import Counters, Mark, Progress, least_due, marks_due, summary_of
from dsgd.engines.rules.trace import TraceRow
from dsgd.engines.sim.conservation import ConservingMachine
from dsgd.engines.sim.machine import Machine
from dsgd.engines.sim.network import LossyNetwork
from dsgd.experiment import Experiment
from dsgd.gradients.choice import choose_evaluator
from dsgd.gradients.compiled import CompiledEvaluator
from dsgd.gradients.evaluators import NullEvaluator
from dsgd.problem.evaluation import (
    FIELDS,
    FOLD_FIELDS,
    check_folds,
    evaluate_folds,
    evaluated_workers,
    measure,
    measure_workers,
    output_model,
)
from dsgd.problem.problem import Problem, build_problem

EVENTS = 256  # without gradients, between two looks at the signals: less than a hundredth of a second


class Simulation:
    """Run an experiment in virtual time. status: running, then completed | diverged | interrupted.

    problem: the experiment's problem, if it is already built. cores: cores for gradients, see `choose_evaluator`."""

    def __init__(self, experiment: Experiment, problem: Problem | None = None, cores: int | None = None) -> None:
        self.experiment = experiment
        self.problem = problem or build_problem(experiment)
        if experiment.eval.test_folds:
            check_folds(self.problem)
        self._folds: Mark = dict.fromkeys(FOLD_FIELDS) if experiment.eval.test_folds else {}
        self.chosen = choose_evaluator(experiment, self.problem, cores)
        kind = ConservingMachine if experiment.eval.conservation else Machine
        self.machine = kind(experiment, self.problem, self.chosen.evaluator)
        self.progress = Progress()
        self.status = "running"
        self.end_s: float | None = None
        self._until_s = math.inf  # no mark by time, and no end, is due before
        self._launched = False
        self._replaying = False

    @property
    def time_s(self) -> float:
        """Return the virtual time so far; after the end, the time of the whole run."""
        return self.machine.loop.now if self.end_s is None else self.end_s

    @property
    def left(self) -> float:
        """Return which share of the budget is left."""
        total, limit_s = self.experiment.total_samples, self.experiment.budget.time_s
        used = [self.machine.samples / total] if total else []
        used += [self.machine.loop.now / limit_s] if limit_s else []
        return 1 - max(used)

    def has_all_steps(self, total: int | None) -> bool:
        """Return whether a worker in lock-step has made its last step. total: samples of the budget; None: no limit."""
        if total is None or not self.experiment.algo.lockstep:
            return False
        return max(node.worker.steps for node in self.machine.nodes) * self.experiment.unit >= total

    def run(self, interrupt: Callable[[], bool] = lambda: False, every: int = 1) -> Iterator[Mark]:
        """Run to the end, yielding the measured fields of every mark.

        interrupt: called at the latest after every so many events; True stops the run there, ready for a checkpoint.
        Can be called again after that."""
        self.status = "running"
        machine, loop = self.machine, self.machine.loop
        if not self._launched:
            yield from self._mark(0.0)
            machine.launch()
            self._launched = True
        self._watch()
        while self.status == "running":
            if loop.next_time != loop.now or machine.over:  # between two moments, where marks may be due
                if (due := self._due()) is not None:
                    self._watch()
                    yield from self._mark(due)
                    continue
                if self.end_s is not None:
                    yield from self._mark(self.time_s)
                    if self.status == "running":
                        self.status = "diverged" if machine.diverged else "completed"
                    return
            if interrupt():
                self.status = "interrupted"
            else:  # if a mark is due by samples, to the end of this moment
                until_s = loop.now if machine.samples >= machine.mark_at else self._until_s
                loop.process(until_s, every)

    def replay(self, events: int) -> None:
        """Repeat the first events of an interrupted run, without gradients and evaluations."""
        evaluator, self.machine.evaluator = self.machine.evaluator, NullEvaluator()
        self._replaying = True
        for _ in self.run(interrupt=lambda: self.machine.loop.processed >= events):
            pass
        self._replaying = False
        self.machine.evaluator = evaluator

    def _watch(self) -> None:
        """Note the samples and the time at which the next mark, or the end, is due."""
        experiment, progress = self.experiment, self.progress
        every_s, limit_s = experiment.eval.every_time_s, experiment.budget.time_s
        self.machine.mark_at = least_due(progress.next_samples, experiment.mark_samples)
        mark_s = math.inf if every_s is None else progress.next_time * every_s
        self._until_s = mark_s if limit_s is None else min(mark_s, limit_s)

    def _due(self) -> float | None:
        """Return the time of a mark that is due before the next event, or None, and note the end of the run. A mark of
        samples comes after all events of its time."""
        machine, every_s, limit_s = self.machine, self.experiment.eval.every_time_s, self.experiment.budget.time_s
        now, following = machine.loop.now, machine.loop.next_time
        if self.end_s is None:
            if machine.over:
                self.end_s = now
            elif limit_s is not None and (following is None or following > limit_s):
                self.end_s = limit_s
            elif following is None:
                stuck = [task.owner.worker.rank for task in machine.tasks if not task.finished]
                raise RuntimeError(f"workers {stuck} wait for something that never happens, at {now:g} s")
        over = self.end_s is not None
        due = marks_due(machine.samples, self.experiment.mark_samples)
        if due >= self.progress.next_samples and (over or following is None or following > now):
            self.progress.next_samples = due + 1
            return now
        if every_s is not None and following is not None and not over:
            mark_s = self.progress.next_time * every_s
            if mark_s < following:
                self.progress.next_time += 1
                return mark_s
        return None

    def _mark(self, time_s: float) -> Iterator[Mark]:
        """Yield the mark at a time, unless the last one had the same time and samples."""
        machine, experiment, progress = self.machine, self.experiment, self.progress
        if progress.last_mark == (time_s, machine.samples):
            return
        progress.marks += 1
        progress.last_mark = (time_s, machine.samples)
        if self._replaying:
            return
        measured: dict[str, float | None] = dict.fromkeys(FIELDS)
        if experiment.gradients != "none":
            xs = [node.worker.x for node in machine.present]
            buffers = [node.buffers for node in machine.present]
            measured = measure(self.problem, experiment.eval, xs, buffers, machine.centre())
        values = self.counters(time_s).fields(experiment) | measured | self._drift()
        status = progress.judge(experiment, values)
        if status is not None:
            self.status, self.end_s = status, time_s
        last = time_s == self.end_s  # only now is it known whether this mark is the last
        if experiment.gradients != "none":
            ranks = evaluated_workers(experiment.eval, len(machine.nodes), everybody=progress.marks == 1 or last)
            chosen = [machine.nodes[rank] for rank in ranks]
            xs, buffers = [node.worker.x for node in chosen], [node.buffers for node in chosen]
            evaluator = self.chosen.evaluator
            accuracies_of = evaluator.accuracies if isinstance(evaluator, CompiledEvaluator) else None
            values |= measure_workers(self.problem, xs, buffers, accuracies_of)
        if last and self._folds:
            self._folds = self._measure_folds()
        yield values

    def _drift(self) -> Mark:
        return {"mean_drift": self.machine.drift} if isinstance(self.machine, ConservingMachine) else {}

    def _measure_folds(self) -> Mark:
        if self.experiment.gradients == "none":
            return self._folds
        nodes, rule = self.machine.nodes, self.experiment.eval
        xs, buffers = [node.worker.x for node in nodes], [node.buffers for node in nodes]
        return evaluate_folds(self.problem, *output_model(self.problem, rule, xs, buffers, self.machine.centre()))

    def counters(self, time_s: float) -> Counters:
        machine, network = self.machine, self.machine.network
        return Counters(
            time_s=time_s,
            clock="virtual",
            samples=machine.samples,
            bytes_sent=network.bytes_sent(time_s),
            bytes_received=network.bytes_received(time_s),
            idle=[node.idle_fraction(time_s) for node in machine.nodes],
            staleness_mean=machine.staleness_sum / max(machine.staleness_count, 1),
            staleness_max=machine.staleness_max,
        )

    def summary(self) -> Mark:
        """Return the summary of the run so far."""
        machine, counters = self.machine, self.counters(self.time_s)
        has_centre = machine.all_reduces.taken == "star" or self.experiment.cluster.collective == "store"
        centre = [len(counters.bytes_sent) - 1] if has_centre else []
        fields = summary_of(
            self.experiment,
            self.progress,
            self.status,
            counters,
            worker_steps=[node.worker.steps for node in machine.nodes],
            server_nodes=[*machine.server_ports, *centre],
            classes=self.problem.data.classes,
            dimension=self.problem.dimension,
            message_bytes=machine.message_bytes,
            collective=machine.all_reduces.taken,
        )
        return fields | self._folds | self._drift() | self._between_islands() | self._losses() | self._downtime()

    def _between_islands(self) -> Mark:
        """Return the bytes that have left their island or region, if there are several."""
        routes = self.machine.network.routes
        if routes is None or routes.regions == 1:
            return {}
        return {"bytes_between_islands": round(sum(routes.bytes_out(self.time_s)))}

    def _losses(self) -> Mark:
        """Return the numbers of lost and repeated messages, if messages can be lost."""
        network = self.machine.network
        if not isinstance(network, LossyNetwork):
            return {}
        return {"messages_lost": network.lost, "messages_resent": network.resent}

    def _downtime(self) -> Mark:
        """Return the cost of failures, if nodes can fail."""
        downtime, algo = self.machine.downtime, self.experiment.algo
        together = algo.lockstep and not (algo.backups or algo.elastic)
        if downtime is None:
            return {}
        fields = downtime.summary(self.time_s, len(self.machine.nodes), together)
        return fields if self.machine.servers.failures is None else fields | {"lost_updates": downtime.lost_updates}

    def trace_rows(self) -> list[TraceRow]:
        """Return the timelines of all ports, if the experiment asks for a trace."""
        machine = self.machine
        p, k = len(machine.nodes), len(machine.shards)
        names = [*(f"worker {i}" for i in range(p)), *(f"server {s}" for s in range(k))]
        names += ["centre"] * (self.experiment.cluster.collective in CENTRAL)
        rows = [TraceRow(name, [], []) for name in names]
        for node, begin, end in machine.compute_spans or []:
            rows[node].computing.append((begin, end))
        for node, begin, end in machine.network.spans or []:
            rows[node].communicating.append((begin, end))
        return rows
