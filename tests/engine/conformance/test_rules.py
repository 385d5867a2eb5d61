"""What every algorithm must do, whatever it is: a new one in conf/algo/ is tested by being there."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dsgd.engines.sim.machine import Machine
from dsgd.engines.sim.node import Node
from dsgd.engines.sim.simulation import Simulation
from dsgd.experiment import Budget, Evaluation, Experiment
from dsgd.gradients.pending import PendingGradient
from dsgd.optim.optimizer import SGD, Matrix, State
from dsgd.optim.schedule import Schedule
from tests.support.cases import ALGORITHMS, CASES, PLAIN, alone, described, prepared
from tests.support.long import long_but

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
    f"nodes={NODES}",
    "batch_size=16",
    "engine.gradients=none",
    "cluster.jitter=0.2",
    "cluster.slow_nodes={2: 2.5}",
)

each_case = pytest.mark.parametrize("case", long_but(PLAIN, CASES), ids=described)
each_algorithm = pytest.mark.parametrize("algo", ALGORITHMS)

Marks = list[dict[str, Any]]


def quadratic(case: tuple[str, ...], *overrides: str) -> Experiment:
    return prepared(*QUADRATIC, f"algo={case[0]}", *case[1:], *overrides)


def run(experiment: Experiment) -> tuple[Marks, Simulation]:
    simulation = Simulation(experiment)
    return list(simulation.run()), simulation


def steps(simulation: Simulation) -> list[int]:
    return [node.worker.steps for node in simulation.machine.nodes]


@each_case
def test_the_same_experiment_twice_is_the_same_run(case: tuple[str, ...]) -> None:
    """Marks, summary and vectors, bit for bit; another seed makes another run."""
    marks, one = run(quadratic(case))
    again, other = run(quadratic(case))
    assert marks == again
    assert one.summary() == other.summary()
    for mine, theirs in zip(one.machine.nodes, other.machine.nodes, strict=True):
        assert torch.equal(mine.worker.x, theirs.worker.x)
    assert run(quadratic(case, "seed=1"))[0] != marks


@each_case
def test_marks_begin_at_the_start_end_at_the_end_and_only_go_forward(case: tuple[str, ...]) -> None:
    experiment = quadratic(case, "eval.every_time_s=0.03", "eval.every_steps=2", "cluster.slow_nodes={1: 4.0}")
    marks, simulation = run(experiment)
    moments = [(mark["time_s"], mark["samples"]) for mark in marks]
    assert moments[0] == (0.0, 0)
    assert moments[-1] == (simulation.time_s, simulation.machine.samples)
    assert (found := simulation.summary())["worker_steps"] == steps(simulation)
    assert found["steps"] == max(found["worker_steps"])
    assert all(earlier < later for earlier, later in pairwise(moments))
    for field in ("time_s", "samples", "bytes_sent", "bytes_received", "staleness_max"):
        values = [mark[field] for mark in marks]
        assert values == sorted(values), field
    for mark in marks:
        assert mark["clock"] == "virtual"
        assert mark["epoch"] == mark["samples"] / experiment.epoch_samples
        assert 0 <= mark["idle_fraction_mean"] <= mark["idle_fraction_max"] <= 1
        assert 0 <= mark["staleness_mean"] <= mark["staleness_max"]
        assert mark["consensus_distance"] <= mark["discrepancy"] / math.sqrt(2) + 1e-12
        assert mark["discrepancy"] <= math.sqrt(2 * NODES) * mark["consensus_distance"] + 1e-12


@each_case
def test_a_mark_sees_every_vector_as_it_is_at_its_time(case: tuple[str, ...]) -> None:
    """What happened by then is in it, all events of its very moment included, and nothing later. Losses and distances
    are those of the vectors at that time."""
    experiment = quadratic(case, "eval.every_time_s=0.021", "cluster.slow_nodes={1: 4.0}")
    simulation = Simulation(experiment)
    machine = simulation.machine
    h = experiment.data.curvature()  # pyright: ignore[reportAttributeAccessIssue]
    common, own = experiment.data.targets(NODES, experiment.seed)  # pyright: ignore[reportAttributeAccessIssue]
    marks = 0
    for mark in simulation.run():
        marks += 1
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
    assert marks > 20


@each_case
@pytest.mark.parametrize("interval", [1, 6, 13])
def test_marks_of_samples_come_at_the_first_moment_that_has_them(case: tuple[str, ...], interval: int) -> None:
    """One mark when a multiple of the interval is reached, after all events of that moment. Reconstructed here from
    when each sample was counted."""
    experiment = dataclasses.replace(quadratic(case), eval=Evaluation(every_samples=interval), gradients="none")
    simulation = Simulation(experiment)
    machine = simulation.machine
    moments: dict[float, int] = {}

    def look() -> bool:
        moments[machine.loop.now] = machine.samples
        return False

    marks = list(simulation.run(look))
    moments[simulation.time_s] = machine.samples
    expected, reached = [(0.0, 0)], 0
    for time_s, samples in moments.items():
        if samples // interval > reached // interval:
            expected.append((time_s, samples))
        reached = samples
    if expected[-1] != (simulation.time_s, machine.samples):
        expected.append((simulation.time_s, machine.samples))
    assert [(mark["time_s"], mark["samples"]) for mark in marks] == expected


@each_algorithm
def test_equal_nodes_are_seen_together(algo: str) -> None:
    """On an ideal cluster all workers step at the same moments: a mark never comes between two of them."""
    experiment = prepared("experiment=quadratic", f"nodes={NODES}", "cluster=ideal", "budget.steps=9", f"algo={algo}")
    marks, _ = run(dataclasses.replace(experiment, eval=Evaluation(every_samples=1)))
    assert [mark["samples"] for mark in marks] == [NODES * step for step in range(10)]


@each_case
def test_the_point_of_a_gradient_stays_as_it_is_until_the_gradient_is_there(
    case: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine may take the gradient at any time in between, and does not copy the point."""
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
    run(quadratic(case, "cluster.slow_nodes={1: 4.0}"))
    assert len(points) >= NODES * 5


@each_case
def test_marks_in_between_disturb_nothing(case: tuple[str, ...]) -> None:
    """Evaluating takes no virtual time and changes no vector."""
    many, one = run(dataclasses.replace(quadratic(case), eval=Evaluation(every_samples=1, every_time_s=0.005)))
    few, other = run(dataclasses.replace(quadratic(case), eval=Evaluation()))
    assert len(few) == 2 < len(many)
    assert few == [many[0], many[-1]]
    for mine, theirs in zip(one.machine.nodes, other.machine.nodes, strict=True):
        assert torch.equal(mine.worker.x, theirs.worker.x)


@pytest.mark.parametrize(
    "budget",
    [
        Budget(epochs=0.5),  # 718.5 samples
        Budget(samples=1000),
        Budget(samples=64),
        Budget(steps=7),
        Budget(samples=1000, steps=7),
        Budget(samples=200, steps=7, epochs=3.0),
    ],
)
@each_algorithm
def test_a_budget_of_samples_is_used_up_in_whole_steps_and_never_exceeded(algo: str, budget: Budget) -> None:
    """A whole step is one of all workers in lock-step, otherwise one of a single worker."""
    experiment = dataclasses.replace(
        prepared(*DIGITS, f"algo={algo}"), budget=budget, eval=Evaluation(every_samples=50)
    )
    marks, simulation = run(experiment)
    wanted = min(
        value
        for value in (budget.epochs and budget.epochs * 1437, budget.samples, budget.steps and budget.steps * 64)
        if value
    )
    unit = 64 if experiment.algo.lockstep else 16
    assert simulation.status == "completed"
    assert simulation.machine.samples == wanted // unit * unit == marks[-1]["samples"]
    assert sum(steps(simulation)) * 16 == simulation.machine.samples
    assert all(mark["samples"] <= wanted for mark in marks)


@each_algorithm
def test_a_budget_of_time_ends_at_its_moment(algo: str) -> None:
    """Nothing of the run is later, and what would have ended later does not count."""
    experiment = dataclasses.replace(
        prepared(*DIGITS, f"algo={algo}"), budget=Budget(time_s=0.1234), eval=Evaluation(every_samples=16)
    )
    marks, simulation = run(experiment)
    assert simulation.status == "completed"
    assert simulation.time_s == marks[-1]["time_s"] == 0.1234
    assert all(mark["time_s"] <= 0.1234 for mark in marks)
    longer = dataclasses.replace(experiment, budget=Budget(time_s=0.5))
    by_then = [mark["samples"] for mark in run(longer)[0] if mark["time_s"] <= 0.1234]
    assert marks[-1]["samples"] == by_then[-1] > 0


@each_algorithm
def test_what_happens_at_the_last_moment_still_counts(algo: str) -> None:
    """Steps of a quarter of a second on an ideal cluster, for 1.25 seconds: five of every worker."""
    experiment = prepared("experiment=quadratic", f"nodes={NODES}", "cluster=ideal", "budget.steps=9", f"algo={algo}")
    cluster = dataclasses.replace(experiment.cluster, gradient_s=0.25)
    _, simulation = run(dataclasses.replace(experiment, cluster=cluster, budget=Budget(time_s=1.25)))
    assert simulation.time_s == 1.25
    assert steps(simulation) == [5] * NODES


@each_algorithm
def test_whichever_of_time_and_samples_comes_first_ends_the_run(algo: str) -> None:
    base = prepared(*DIGITS, f"algo={algo}")
    by_samples = run(dataclasses.replace(base, budget=Budget(samples=640)))[1]
    both = dataclasses.replace(base, budget=Budget(samples=640, time_s=by_samples.time_s * 1.01))
    assert run(both)[1].time_s == by_samples.time_s
    sooner = run(dataclasses.replace(base, budget=Budget(samples=640, time_s=by_samples.time_s * 0.5)))[1]
    assert sooner.time_s == by_samples.time_s * 0.5
    assert sooner.machine.samples < by_samples.machine.samples


@each_algorithm
def test_a_straggler_holds_up_lock_step_and_only_itself_otherwise(algo: str) -> None:
    """A node that takes four times as long: in lock-step all make the same steps; free workers do its share."""
    experiment = prepared(
        "experiment=quadratic",
        "engine.gradients=none",
        f"nodes={NODES}",
        "cluster=ideal",
        "budget.steps=39",
        f"algo={algo}",
    )
    cluster = dataclasses.replace(experiment.cluster, slow_nodes={2: 4.0})
    _, simulation = run(dataclasses.replace(experiment, cluster=cluster))
    assert simulation.status == "completed"
    done = steps(simulation)
    assert sum(done) == 39 * NODES
    if experiment.algo.lockstep:
        assert done == [39] * NODES
        assert simulation.time_s == pytest.approx(39 * 0.04, rel=1e-12)
    else:
        assert done == [48, 48, 12, 48]  # 48 steps of 10 ms, 12 of 40 ms
        assert simulation.time_s == pytest.approx(0.48, rel=1e-12)


@each_case
def test_a_run_with_every_kind_of_trouble_ends(case: tuple[str, ...]) -> None:
    """Slow nodes, heavy jitter, pauses, slow ports, a server slower than all, and one worker that stops for long."""
    cluster = dataclasses.replace(
        quadratic(case).cluster,
        jitter=1.5,
        jitter_distribution="lognormal",
        slow_nodes={1: 4.0, 3: 0.2},
        node_bandwidth={0: 1e7},
        server_bandwidth=1e7,
        latency_s=0.02,
        stalls=[{"node": 1, "start_s": 0.2, "duration_s": 10.0}, {"every_s": 0.3, "duration_s": 0.2}],
    )
    experiment = dataclasses.replace(quadratic(case), cluster=cluster)
    _, simulation = run(experiment)
    assert simulation.status == "completed"
    assert simulation.machine.samples == experiment.samples_of(20 * NODES)


@each_case
def test_without_gradients_time_and_bytes_are_the_same(case: tuple[str, ...]) -> None:
    """engine.gradients=none leaves out the evaluation and nothing else."""
    marks, simulation = run(quadratic(case))
    timing, without = run(dataclasses.replace(quadratic(case), gradients="none"))
    measured = {
        "train_loss",
        "test_loss",
        "test_loss_deviation",
        "consensus_distance",
        "pairwise_distance_median",
        "discrepancy",
    }
    assert [{k: v for k, v in mark.items() if k not in measured} for mark in marks] == [
        {k: v for k, v in mark.items() if k not in measured} for mark in timing
    ]
    assert all(mark[field] is None for mark in timing for field in measured)
    assert steps(simulation) == steps(without)
    found = measured | {"collapsed"}
    assert {k: v for k, v in simulation.summary().items() if k not in found} == {
        k: v for k, v in without.summary().items() if k not in found
    }


@each_case
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


@dataclasses.dataclass(frozen=True)
class Watched(SGD):
    """Writes down the rate of every step."""

    rates: list[float] = dataclasses.field(default_factory=list)

    def step(
        self, x: Tensor, g: Tensor, state: State | None, lr: float, matrices: Sequence[Matrix] = ()
    ) -> State | None:
        self.rates.append(lr)
        return super().step(x, g, state, lr, matrices)


@each_algorithm
@pytest.mark.parametrize("kind", ["constant", "step", "cosine"])
def test_the_rate_follows_the_schedule_by_the_samples_of_all_workers(algo: str, kind: str) -> None:
    """Warm-up over 5 epochs from lr to its 4-fold, then constant, falling at epoch 12, or a cosine to epoch 20."""
    schedule = Schedule(kind=kind, warmup_epochs=5, linear_scaling=True, milestones=[12] if kind == "step" else [])
    watched = Watched(lr=0.01)
    experiment = dataclasses.replace(quadratic((algo,)), schedule=schedule, optimizer=watched)
    marks, _ = run(experiment)

    def rate(samples: int) -> float:
        epoch = samples / NODES
        if epoch < 5:
            return 0.01 + 0.03 * epoch / 5
        after = {
            "constant": 1.0,
            "step": 1.0 if epoch < 12 else 0.1,
            "cosine": 0.5 * (1 + math.cos(math.pi * (epoch - 5) / 15)),
        }
        return 0.04 * after[kind]

    for mark in marks:
        assert mark["lr"] == pytest.approx(rate(mark["samples"]), rel=1e-12, abs=1e-15)
    if experiment.algo.lockstep:  # every worker its step k with the rate of k steps of all
        counted = [step * NODES for step in range(20) for _ in range(NODES)]
    else:
        counted = list(range(20 * NODES))
    expected = sorted(rate(samples) for samples in counted)
    assert sorted(watched.rates) == pytest.approx(expected, rel=1e-12, abs=1e-15)


@each_algorithm
def test_a_reached_loss_is_timed_and_stops_the_run_if_it_should(algo: str) -> None:
    """Where the line from the mark before meets it; a monotonic curve is its own smoothed curve."""
    options = (f"nodes={NODES}", "experiment=quadratic", "budget.steps=30", "eval.every_steps=3", f"algo={algo}")
    options += ("optimizer.lr=0.05", "target.crossing=first")
    marks, _ = run(prepared(*options))
    target = 0.3 * marks[0]["test_loss"] + 0.7 * min(mark["test_loss"] for mark in marks)
    first = next(index for index, mark in enumerate(marks) if mark["test_loss"] <= target)
    (before, loss_before), (at, loss_at) = (
        (mark["time_s"], mark["test_loss"]) for mark in marks[first - 1 : first + 1]
    )

    timed_marks, timed = run(prepared(*options, f"target.loss={target}"))
    assert timed_marks == marks
    summary = timed.summary()
    between_s = before + (loss_before - target) / (loss_before - loss_at) * (at - before)
    assert summary["time_to_target_s"] == summary["first_crossing_s"] == pytest.approx(between_s, rel=1e-12)
    assert summary["target_resolution_s"] == at - before

    stopped_marks, stopped = run(prepared(*options, f"target.loss={target}", "target.stop=true"))
    assert stopped_marks == marks[: first + 1]
    assert stopped.status == "completed"
    summary = stopped.summary()
    assert summary["time_to_target_s"] == summary["stable_crossing_s"] <= summary["time_s"] == at


@each_algorithm
def test_a_reached_target_is_timed_and_stops_the_run_if_it_should(algo: str) -> None:
    """Where most marks of a window have the accuracy; with target.stop the run ends at the last one of the window."""
    options = (f"nodes={NODES}", "batch_size=16", "budget.epochs=1", "eval.every_epochs=0.1", f"algo={algo}")
    options += ("eval.workers=all",)  # what the last mark has, whichever it is
    options += ("algo.tau=2",) if algo == "diloco" else ()  # there is no output before the first round is over
    marks, plain = run(prepared(*options))
    assert plain.summary()["time_to_target_s"] is None
    accuracies = [mark["test_accuracy"] for mark in marks]
    smooth = [sorted(accuracies[max(0, i - 1) : i + 2])[(min(i + 2, len(marks)) - max(0, i - 1) - 1) // 2]
              for i in range(len(marks))]  # fmt: skip
    target = max(smooth[: len(marks) // 2 + 1])
    first = next(index for index, accuracy in enumerate(smooth) if accuracy >= target)
    assert 0 < first < len(marks) - 2
    share = (target - smooth[first - 1]) / (smooth[first] - smooth[first - 1])
    before, at = (mark["time_s"] for mark in marks[first - 1 : first + 1])

    timed_marks, timed = run(prepared(*options, f"target.accuracy={target}"))
    assert timed_marks == marks
    assert timed.summary()["time_to_target_s"] == pytest.approx(before + share * (at - before), rel=1e-12)

    stopped_marks, stopped = run(prepared(*options, f"target.accuracy={target}", "target.stop=true"))
    assert stopped_marks == marks[: first + 2]
    assert stopped.status == "completed"
    summary, last = stopped.summary(), marks[first + 1]
    assert summary["time_to_target_s"] == timed.summary()["time_to_target_s"]
    assert [summary[name] for name in ("time_s", "samples", "test_accuracy")] == [
        last[name] for name in ("time_s", "samples", "test_accuracy")
    ]
    missed = run(prepared(*options, "target.accuracy=1.0", "budget.epochs=0.2", "target.stop=true"))[1]
    assert missed.status == "completed"
    assert missed.summary()["time_to_target_s"] is None
    assert missed.summary()["target_censored_at_s"] == missed.summary()["time_s"]


@each_case
def test_a_rate_that_is_far_too_high_ends_as_diverged(case: tuple[str, ...]) -> None:
    """A result, not a crash: at the mark or the mini-batch that shows it, long before the budget is used up."""
    marks, simulation = run(quadratic(case, "optimizer.lr=1e9", "budget.steps=400", "eval.every_steps=1"))
    assert simulation.status == "diverged"
    assert simulation.machine.samples < 400 * NODES
    limit = 1e6 * marks[0]["train_loss"]
    assert simulation.machine.diverged or not marks[-1]["train_loss"] <= limit
    assert all(mark["train_loss"] <= limit for mark in marks[:-1])
    assert simulation.time_s == marks[-1]["time_s"]
