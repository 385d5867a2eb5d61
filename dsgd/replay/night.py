"""Time one method for all steps of a job, by the simulator's clock alone: no gradient is computed.

A job of many steps need not be simulated as a whole. Where nothing is random, a run repeats itself after some steps: a
whole number of rounds of the method and of passes over the measured gradient times. Then two more such windows take
equally long, send as many bytes and wait equally long, and so do all later ones. Where gradient times are random, the
run's second half stands for the steps that are not simulated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from dsgd.engines.rules.trace import Span, spans_by_kind
from dsgd.engines.sim.simulation import Simulation
from dsgd.experiment import Budget, Experiment

WINDOW = 60  # fewest steps of a window
MOST_GRADIENTS = 60_000  # of all workers together, that are simulated where no window repeats
FEWEST_ROUNDS = 4  # that are simulated in any case
SAME = 1e-9  # relative difference of windows that repeat

Totals = tuple[float, float, float, float, float]
TimelineRow = tuple[str, dict[str, list[Span]]]  # name of a worker, and its spans by kind


@dataclass(frozen=True)
class Night:
    """The time and the bytes of all steps by one method.

    computing_s, communication_s, waiting_s: seconds of the mean worker, with the sum time_s. Communication is the part
    that no gradient hides. bytes_sent: bytes that all nodes send. bytes_between: bytes that leave an island, None
    without islands. simulated: number of simulated steps. exact: whether the result is as if all were simulated."""

    method: str
    steps: int
    time_s: float
    computing_s: float
    communication_s: float
    bytes_sent: float
    bytes_between: float | None
    simulated: int
    exact: bool

    @property
    def seconds(self) -> dict[str, float]:
        """Return the seconds of the mean worker by kind, named as in a trace."""
        return {"compute": self.computing_s, "communication": self.communication_s, "waiting": self.waiting_s}

    @property
    def waiting_s(self) -> float:
        """Return the seconds in which the mean worker neither computes nor communicates."""
        return max(0.0, self.time_s - self.computing_s - self.communication_s)

    @property
    def step_s(self) -> float:
        """Return the mean time of a step."""
        return self.time_s / self.steps

    @property
    def egress_bytes(self) -> float:
        """Return the bytes that leave an island; without islands the bytes that leave a node."""
        return self.bytes_sent if self.bytes_between is None else self.bytes_between


def replay_night(method: str, experiment: Experiment, steps: int) -> Night:
    """Return the time and the bytes of a method for the samples of some steps of all workers. method: its name."""
    simulated, exact, totals = _all_steps(experiment, steps)
    time_s, computing_s, communication_s, sent, between = totals
    several = experiment.cluster.islands > 1 or experiment.cluster.links is not None
    busy = (time_s, computing_s, communication_s, sent)
    return Night(method, steps, *busy, between if several else None, simulated, exact)


def time_of_night(experiment: Experiment, steps: int) -> float:
    """Return the time alone, which takes less to simulate: a run without a trace of its spans."""
    return _all_steps(experiment, steps, traced=False)[2][0]


def last_rounds(experiment: Experiment, rounds: int = 2) -> tuple[int, list[TimelineRow]]:
    """Return the number of steps in some rounds of a method, and what each worker does in the last ones of a short run,
    from 0 s on. The run ends with the last step of measured gradient times."""
    shown, trace = rounds * _round(experiment), experiment.cluster.replayed
    measured = 1 if trace is None else len(trace.seconds[0])
    simulation = _run(replace(experiment, trace=True), measured * math.ceil((shown + max(WINDOW, shown)) / measured))
    rows = simulation.trace_rows()[: experiment.nodes]
    end_s = simulation.time_s
    begin_s = min(sorted(begin for begin, _ in row.computing)[-shown] for row in rows if len(row.computing) >= shown)
    timeline = [(row.name, spans_by_kind(row, end_s)) for row in rows]
    return shown, [(name, _from(begin_s, spans)) for name, spans in timeline]


def _from(begin_s: float, by_kind: dict[str, list[Span]]) -> dict[str, list[Span]]:
    return {
        kind: [(max(begin, begin_s) - begin_s, end - begin_s) for begin, end in spans if end > begin_s]
        for kind, spans in by_kind.items()
    }


def _all_steps(experiment: Experiment, steps: int, traced: bool = True) -> tuple[int, bool, Totals]:
    """Return the number of steps that were simulated, whether the totals are exact, and the totals of all steps.

    traced: False leaves out the seconds of communication."""
    totals = partial(_totals, replace(experiment, trace=traced))
    window = _window(experiment)
    least = 2 * window + getattr(experiment.algo, "switch", 0)
    repeats = (steps - least) // window - 2  # of the window after the third run
    if repeats > 0 and not _is_random(experiment):
        first = steps - (repeats + 2) * window
        runs = [totals(first + k * window) for k in range(3)]
        before, after = (_minus(runs[k + 1], runs[k]) for k in range(2))
        if all(
            math.isclose(a, b, rel_tol=SAME, abs_tol=SAME * c) for a, b, c in zip(before, after, runs[2], strict=True)
        ):
            return first + 2 * window, True, _plus(runs[2], repeats, after)
    most = max(MOST_GRADIENTS // experiment.nodes, FEWEST_ROUNDS * _round(experiment))
    if steps <= most:
        return steps, True, totals(steps)
    # both runs end in the same step of a round as the whole one
    unit = _round(experiment)
    long = steps - unit * math.ceil((steps - most) / unit)
    half = unit * max(1, long // (2 * unit))
    end = totals(long)
    return long, False, _plus(end, (steps - long) / half, _minus(end, totals(long - half)))


def _window(experiment: Experiment) -> int:
    """Return a number of steps after which a run repeats itself, if it does."""
    trace, levels = experiment.cluster.replayed, max(1, math.ceil(math.log2(experiment.nodes)))
    measured = 1 if trace is None else len(trace.seconds[0])
    unit = math.lcm(_round(experiment), experiment.algo.cycle, measured, levels)
    return unit * math.ceil(WINDOW / unit)


def _round(experiment: Experiment) -> int:
    """Return the steps of a round of the method, 1 for a method without rounds."""
    return getattr(experiment.algo, "tau", 1) or 1


def _is_random(experiment: Experiment) -> bool:
    cluster = experiment.cluster
    lossy = cluster.loss > 0 or (cluster.link_matrix is not None and cluster.link_matrix.lossy)
    return bool(cluster.jitter or cluster.stalls or cluster.failures or cluster.congestion or lossy)


def _run(experiment: Experiment, steps: int) -> Simulation:
    budget = Budget(samples=steps * experiment.nodes * experiment.batch_size)
    simulation = Simulation(replace(experiment, budget=budget))
    for _ in simulation.run():
        pass
    return simulation


def _totals(experiment: Experiment, steps: int) -> Totals:
    """Simulate some steps. Returns the time, the mean worker's seconds of computing and of communication, and the bytes
    that nodes send and that leave islands."""
    simulation = _run(experiment, steps)
    end_s, summary = simulation.time_s, simulation.summary()
    rows = [spans_by_kind(row, end_s) for row in simulation.trace_rows()[: experiment.nodes]]
    communication_s = sum(end - begin for spans in rows for begin, end in spans["communication"]) / len(rows)
    computing_s = end_s * (1 - summary["idle_fraction_mean"])
    sent, between = summary["bytes_sent_total"], summary.get("bytes_between_islands", 0)
    return end_s, computing_s, min(communication_s, end_s - computing_s), sent, between


def _minus(these: Sequence[float], others: Sequence[float]) -> Totals:
    return _plus(these, -1, others)


def _plus(these: Sequence[float], times: float, others: Sequence[float]) -> Totals:
    time_s, computing_s, communication_s, sent, between = (a + times * b for a, b in zip(these, others, strict=True))
    return time_s, computing_s, communication_s, sent, between
