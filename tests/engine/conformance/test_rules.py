"""What every algorithm must do, whatever it is: a new one in conf/algo/ is tested by being there."""

from __future__ import annotations

import dataclasses
import math
from itertools import cycle, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dsgd.engines.sim.machine import Machine
from dsgd.engines.sim.node import Node
from dsgd.engines.sim.simulation import Simulation
from dsgd.experiment import Budget, Evaluation, Experiment
from dsgd.gradients.evaluators import PendingGradient
from tests.support.cases import ALGORITHMS, CASES, PLAIN, WAITING, alone, described, prepared

NODES = 4
QUADRATIC = (
    "experiment=quadratic",
    f"nodes={NODES}",
    "optimizer.lr=0.05",
    "budget.steps=20",
    "cluster.message_bytes=1e6",
    "cluster.jitter=0.3",
)
DIGITS = (
    f"nodes={NODES}", "batch_size=16", "engine.gradients=none", "cluster.jitter=0.2", "cluster.slow_nodes={2: 2.5}",
)  # fmt: skip
MEASURED = {
    "train_loss", "test_loss", "test_loss_deviation", "consensus_distance", "pairwise_distance_median",
    "discrepancy",
}  # fmt: skip

each_plain = pytest.mark.parametrize("case", PLAIN, ids=described)
each_algorithm = pytest.mark.parametrize("algo", ALGORITHMS)

Marks = list[dict[str, Any]]


def quadratic(case: tuple[str, ...], *overrides: str) -> Experiment:
    return prepared(*QUADRATIC, f"algo={case[0]}", *case[1:], *overrides)


def run(experiment: Experiment) -> tuple[Marks, Simulation]:
    simulation = Simulation(experiment)
    return list(simulation.run()), simulation


def steps(simulation: Simulation) -> list[int]:
    return [node.worker.steps for node in simulation.machine.nodes]


def assert_same_vectors(one: Simulation, other: Simulation) -> None:
    for mine, theirs in zip(one.machine.nodes, other.machine.nodes, strict=True):
        assert torch.equal(mine.worker.x, theirs.worker.x)


@each_plain
def test_the_same_experiment_is_the_same_run_whatever_is_evaluated(case: tuple[str, ...]) -> None:
    """Bit for bit: evaluating takes no virtual time and changes no vector. Another seed makes another run."""
    often = Evaluation(every_samples=3, every_time_s=0.02)
    marks, one = run(dataclasses.replace(quadratic(case), eval=often))
    again, other = run(one.experiment)
    assert marks == again
    assert one.summary() == other.summary()
    assert_same_vectors(one, other)
    few, with_few = run(dataclasses.replace(one.experiment, eval=Evaluation()))
    assert few == [marks[0], marks[-1]]
    assert_same_vectors(one, with_few)
    assert run(quadratic(case, "seed=1"))[0][-1] != marks[-1]


@pytest.mark.parametrize("case", CASES, ids=described)
def test_without_gradients_a_run_takes_the_same_times(case: tuple[str, ...]) -> None:
    marks, one = run(quadratic(case))
    timing, without = run(dataclasses.replace(one.experiment, gradients="none"))
    assert timing == [mark | dict.fromkeys(MEASURED) for mark in marks]
    assert steps(one) == steps(without)
    assert one.summary() | dict.fromkeys(MEASURED) | {"collapsed": False} == without.summary()


@each_plain
def test_a_mark_sees_every_vector_as_it_is_at_its_time(case: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """What happened by then is in it, all events of its very moment included, and nothing later.

    The point of a gradient stays as it is until the gradient is there: an engine does not copy it."""
    points: dict[PendingGradient, Tensor] = {}
    begin, finish = Machine._begin_gradient, Machine._finish_gradient

    def beginning(machine: Machine, node: Node, at: Tensor) -> tuple[PendingGradient, float]:
        gradient, end = begin(machine, node, at)
        points[gradient] = at.clone()
        return gradient, end

    def finishing(machine: Machine, node: Node, gradient: PendingGradient) -> Tensor | None:
        for pending in machine._pending:
            assert pending.snapshot is not None
            assert torch.equal(pending.snapshot, points[pending])
        return finish(machine, node, gradient)

    monkeypatch.setattr(Machine, "_begin_gradient", beginning)
    monkeypatch.setattr(Machine, "_finish_gradient", finishing)
    experiment = quadratic(case, "eval.every_time_s=0.021", "cluster.slow_nodes={1: 4.0}")
    simulation = Simulation(experiment)
    machine = simulation.machine
    h = experiment.data.curvature()  # pyright: ignore[reportAttributeAccessIssue]
    common, own = experiment.data.targets(NODES, experiment.seed)  # pyright: ignore[reportAttributeAccessIssue]
    marks: Marks = []
    for mark in simulation.run():
        marks.append(mark)
        following = machine.loop.next_time
        assert machine.loop.now <= mark["time_s"]
        if simulation.end_s is None and machine.tasks:
            assert following is not None
            assert following > mark["time_s"]
        assert mark["samples"] == machine.samples == experiment.samples_of(sum(steps(simulation)))
        xs = np.stack([node.worker.x.numpy() for node in machine.nodes])
        centre = machine.centre()
        output = xs.mean(axis=0) if centre is None else centre.numpy()
        assert mark["test_loss"] == pytest.approx(0.5 * (h * (output - common) ** 2).sum(), rel=1e-12)
        expected = np.mean([0.5 * (h * (output - target) ** 2).sum() for target in own])
        assert mark["train_loss"] == pytest.approx(expected, rel=1e-12)
        consensus = math.sqrt(((xs - xs.mean(axis=0)) ** 2).sum(axis=1).mean())
        assert mark["consensus_distance"] == pytest.approx(consensus, rel=1e-9, abs=1e-14)
        discrepancy = max(np.linalg.norm(a - b) for a in xs for b in xs)
        assert mark["discrepancy"] == pytest.approx(discrepancy, rel=1e-9, abs=1e-14)
        median = np.median([np.linalg.norm(a - b) for i, a in enumerate(xs) for b in xs[:i]])
        assert mark["pairwise_distance_median"] == pytest.approx(median, rel=1e-9, abs=1e-14)
        assert (mark["clock"], mark["epoch"]) == ("virtual", mark["samples"] / experiment.epoch_samples)
        assert 0 <= mark["idle_fraction_mean"] <= mark["idle_fraction_max"] <= 1
        assert 0 <= mark["staleness_mean"] <= mark["staleness_max"]
    assert len(marks) > 20
    assert len(points) >= NODES * 5
    moments = [(mark["time_s"], mark["samples"]) for mark in marks]
    assert (moments[0], moments[-1]) == ((0.0, 0), (simulation.time_s, machine.samples))
    assert all(earlier < later for earlier, later in pairwise(moments))
    for field in ("samples", "bytes_sent", "bytes_received", "staleness_max"):
        values = [mark[field] for mark in marks]
        assert values == sorted(values), field
    summary = simulation.summary()
    assert summary["worker_steps"] == steps(simulation)
    assert summary["steps"] == max(summary["worker_steps"])


@pytest.mark.parametrize(("algo", "interval"), [*zip(WAITING, cycle((6, 1, 13)))])
def test_marks_of_samples_come_at_the_first_moment_that_has_them(algo: str, interval: int) -> None:
    """One mark when a multiple of the interval is reached, after all events of that moment."""
    experiment = dataclasses.replace(quadratic((algo,)), eval=Evaluation(every_samples=interval), gradients="none")
    simulation = Simulation(experiment)
    machine = simulation.machine
    moments: dict[float, int] = {}

    def look() -> bool:
        moments[machine.loop.now] = machine.samples
        return False

    marks = list(simulation.run(interrupt=look))
    moments[machine.loop.now] = machine.samples
    expected, reached = [(0.0, 0)], 0
    for time_s, samples in sorted(moments.items()):
        if samples // interval > reached // interval:
            expected.append((time_s, samples))
        reached = samples
    if expected[-1] != (simulation.time_s, machine.samples):
        expected.append((simulation.time_s, machine.samples))
    assert [(mark["time_s"], mark["samples"]) for mark in marks] == expected


@each_algorithm
def test_equal_nodes_step_together_and_a_slow_one_holds_up_lock_step_alone(algo: str) -> None:
    """On an ideal cluster. A mark never comes between two equal workers, and what happens at the last moment of a
    budget of time still counts: five steps of a quarter of a second in 1.25 s. Beside a node that takes four times as
    long all make the same steps in lock-step, and free workers do its share."""
    base = prepared("experiment=quadratic", f"nodes={NODES}", "cluster=ideal", "budget.steps=39", f"algo={algo}")
    cluster = dataclasses.replace(base.cluster, gradient_s=0.25)
    marks, simulation = run(
        dataclasses.replace(base, cluster=cluster, budget=Budget(time_s=1.25), eval=Evaluation(every_samples=1))
    )
    assert [mark["samples"] for mark in marks] == [NODES * step for step in range(6)]
    assert simulation.time_s == 1.25
    assert steps(simulation) == [5] * NODES
    cluster = dataclasses.replace(base.cluster, slow_nodes={2: 4.0})
    _, simulation = run(dataclasses.replace(base, cluster=cluster, gradients="none"))
    assert simulation.status == "completed"
    lockstep = base.algo.lockstep
    assert steps(simulation) == ([39] * NODES if lockstep else [48, 48, 12, 48])  # 48 of 10 ms, 12 of 40 ms
    assert simulation.time_s == pytest.approx(39 * 0.04 if lockstep else 0.48, rel=1e-12)


BUDGETS = (
    Budget(epochs=0.5),  # 718.5 samples
    Budget(samples=1000),
    Budget(samples=64),
    Budget(steps=7),
    Budget(samples=1000, steps=7),
    Budget(samples=200, steps=7, epochs=3.0),
)


@pytest.mark.parametrize(("index", "algo"), [*enumerate(ALGORITHMS)], ids=ALGORITHMS)
def test_a_budget_is_used_up_in_whole_steps_and_never_exceeded(algo: str, index: int) -> None:
    """A whole step is one of all workers in lock-step, otherwise one of a single worker. Each algorithm has two of the
    six budgets of samples. One of time ends at its moment, unless that of samples comes first: nothing of the run is
    later, and what would have ended later does not count."""
    for budget in (BUDGETS[index % 6], BUDGETS[(index + 3) % 6]):
        changes: dict[str, Any] = {"budget": budget, "eval": Evaluation(every_samples=50)}
        marks, simulation = run(dataclasses.replace(prepared(*DIGITS, f"algo={algo}"), **changes))
        wanted = min(
            value
            for value in (budget.epochs and budget.epochs * 1437, budget.samples, budget.steps and budget.steps * 64)
            if value
        )
        unit = 64 if simulation.experiment.algo.lockstep else 16
        assert simulation.status == "completed"
        assert simulation.machine.samples == wanted // unit * unit == marks[-1]["samples"]
        assert sum(steps(simulation)) * 16 == simulation.machine.samples
        assert all(mark["samples"] <= wanted for mark in marks)
    base = dataclasses.replace(prepared(*DIGITS, f"algo={algo}"), eval=Evaluation(every_samples=16))
    by_samples, whole = run(dataclasses.replace(base, budget=Budget(samples=640)))
    both = dataclasses.replace(base, budget=Budget(samples=640, time_s=whole.time_s * 1.01))
    assert run(both)[1].time_s == whole.time_s
    end_s = whole.time_s * 0.5
    marks, sooner = run(dataclasses.replace(base, budget=Budget(samples=640, time_s=end_s)))
    assert sooner.status == "completed"
    assert sooner.time_s == marks[-1]["time_s"] == end_s
    assert all(mark["time_s"] <= end_s for mark in marks)
    by_then = [mark["samples"] for mark in by_samples if mark["time_s"] <= end_s]
    assert 0 < marks[-1]["samples"] == by_then[-1] < whole.machine.samples


@pytest.mark.parametrize("case", PLAIN + CASES[len(PLAIN) :: 3], ids=described)
def test_a_bad_network_costs_lock_step_time_alone_and_loses_nothing_conserved(case: tuple[str, ...]) -> None:
    """Methods in lock-step have the parameters of a run on the plain network, bit for bit."""
    watched = quadratic(case, "eval.conservation=true")
    cluster = dataclasses.replace(
        watched.cluster,
        jitter=1.5,
        jitter_distribution="lognormal",
        slow_nodes={1: 4.0, 3: 0.2},
        node_bandwidth={0: 1e7},
        server_bandwidth=1e7,
        latency_s=0.02,
        stalls=[{"node": 1, "start_s": 0.2, "duration_s": 10.0}, {"every_s": 0.3, "duration_s": 0.2}],
        loss=0.2,
        retransmit_s=0.03,
        collective="ring",
        collective_messages=True,
    )
    marks, simulation = run(dataclasses.replace(watched, cluster=cluster))
    assert simulation.status == "completed"
    assert simulation.machine.samples == watched.samples_of(20 * NODES)
    drift = marks[-1]["mean_drift"]
    assert (drift is None) == (watched.algo.conserves is None)
    assert drift is None or drift <= 1e-13
    if watched.algo.lockstep and not watched.algo.backups:  # elsewhere the network decides who comes first
        _, plain = run(quadratic(case))
        assert_same_vectors(simulation, plain)
        assert simulation.summary()["messages_resent"] > 0 or simulation.machine.network.messages < 10
        assert simulation.time_s > 2 * plain.time_s


@each_plain
def test_one_worker_trains_alone(case: tuple[str, ...]) -> None:
    """Nobody to talk to but a server; the loss falls."""
    experiment = prepared("experiment=quadratic", "nodes=1", "data.noise=0", f"algo={case[0]}", *alone(case)[1:])
    marks, simulation = run(experiment)
    assert simulation.status == "completed"
    assert simulation.machine.samples == 100
    assert marks[-1]["train_loss"] < 0.5 * marks[0]["train_loss"]
    assert marks[-1]["consensus_distance"] == marks[-1]["discrepancy"] == 0
    if not experiment.algo.servers:
        assert marks[-1]["bytes_sent"] == 0
        assert experiment.cluster.gradient_s is not None
        assert simulation.time_s == pytest.approx(100 * experiment.cluster.gradient_s, rel=1e-12)


SGD_ALONE = ("adpsgd", "delayfree", "dpsgd", "gossip", "localsgd", "relay", "sgp", "sync")


@pytest.mark.parametrize("case", [case for case in CASES if case[0] in SGD_ALONE], ids=described)
def test_one_worker_is_sgd_bit_for_bit(case: tuple[str, ...]) -> None:
    """There is nobody to average with."""
    local = ("nodes=1", "budget.steps=12", "optimizer.momentum=0.9", "optimizer.weight_decay=0.05", "precision=fp64")
    found, expected = (
        run(prepared("experiment=quadratic", *local, f"algo={of[0]}", *alone(of)[1:]))[1] for of in (case, ("sync",))
    )
    assert_same_vectors(found, expected)


@pytest.mark.parametrize("algo", WAITING)
@pytest.mark.parametrize(
    "ends",
    ["budget.steps=9", "budget.time_s=0.3", "eval.every_time_s=0.021", "optimizer.lr=1e9"],
    ids=lambda key: key.partition("=")[0],
)
def test_marks_do_not_depend_on_how_often_the_run_is_interrupted(algo: str, ends: str) -> None:
    """Nor does the end: by steps, by time, by divergence."""
    experiment = quadratic((algo,), "cluster.jitter=0.3", "eval.every_samples=13", "eval.diverged_factor=100", ends)
    often, seldom = (Simulation(experiment) for _ in range(2))
    assert list(often.run(every=1)) == list(seldom.run(every=100_000))
    assert often.summary() == seldom.summary()
    assert often.machine.loop.processed == seldom.machine.loop.processed
