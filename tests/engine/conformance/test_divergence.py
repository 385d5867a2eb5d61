"""A run ends at the event that shows its divergence: the first loss of a mini-batch that is beyond the limit."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from dsgd.engines.rules.marks import has_collapsed, is_beyond, limit_of_batch, limit_of_mark
from dsgd.engines.sim.machine import Machine
from dsgd.engines.sim.simulated import restore, snapshot
from dsgd.engines.sim.simulation import Simulation
from dsgd.experiment import Evaluation
from dsgd.problem.problem import build_problem
from tests.support.cases import WAITING, prepared

NODES = 4
QUADRATIC = (
    "experiment=quadratic", f"nodes={NODES}", "seed=3", "budget.steps=200", "eval.every_steps=null",
    "eval.every_epochs=null", "cluster.message_bytes=1e6", "cluster.jitter=0.3",
)  # fmt: skip
DIGITS = (
    f"nodes={NODES}", "batch_size=16", "optimizer.lr=1e5", "budget.epochs=2", "eval.every_epochs=null",
    "cluster.jitter=0.3",
)  # fmt: skip
DIVERGES = "optimizer.lr=30"  # slowly: the limit is crossed by finite losses


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def ended(simulation: Simulation) -> tuple[list[dict[str, Any]], tuple[str, float, int, int]]:
    """The marks, and the event at which a run ended: status, time, samples, number of events."""
    marks = list(simulation.run())
    machine = simulation.machine
    return marks, (simulation.status, simulation.time_s, machine.samples, machine.loop.processed)


ADAGRAD = "downpour algo.server_optimizer=adagrad"


@pytest.mark.parametrize("algo", [*WAITING, ADAGRAD])
def test_the_first_loss_beyond_the_limit_ends_the_run(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody makes a step from the gradient, and the mark at the end is of that moment."""
    rate = "optimizer.lr=1e6" if algo == ADAGRAD else DIVERGES  # whose steps do not grow
    experiment = prepared(*QUADRATIC, rate, *f"algo={algo}".split())
    limit = limit_of_batch(experiment, build_problem(experiment))
    losses: list[tuple[float, float]] = []
    finish = Machine._finish_gradient

    def noted(machine: Machine, node: Any, gradient: Any) -> Any:
        g = finish(machine, node, gradient)
        losses.append((machine.loop.now, float(gradient.loss)))
        return g

    monkeypatch.setattr(Machine, "_finish_gradient", noted)
    simulation = Simulation(experiment)
    marks, (status, time_s, samples, _) = ended(simulation)
    assert status == simulation.summary()["status"] == "diverged"
    beyond = [at for at, loss in losses if is_beyond(loss, limit)]
    assert set(beyond) == {time_s}
    assert all(is_beyond(loss, limit) for _, loss in losses[-1:]) or experiment.algo.lockstep
    assert len(marks) == 2
    assert marks[0].keys() == marks[-1].keys()
    assert (marks[-1]["time_s"], marks[-1]["samples"]) == (time_s, samples)
    assert 0 < samples < 200 * NODES
    assert samples < len(losses)
    assert simulation.summary()["time_s"] == time_s


@pytest.mark.parametrize("algo", ["delayfree", "easgd", "gossip", "sync"])
def test_the_event_is_the_same_however_gradients_are_computed(algo: str) -> None:
    """By compiled kernels and one by one; by one thread and by two."""
    torch.set_num_threads(1)
    automatic = prepared(*DIGITS, f"algo={algo}")
    loop = dataclasses.replace(automatic, gradients="loop")
    _, expected = ended(Simulation(loop))
    assert expected[0] == "diverged"
    assert ended(Simulation(automatic))[1] == expected
    torch.set_num_threads(2)
    assert ended(Simulation(loop))[1] == expected
    assert ended(Simulation(automatic))[1] == expected


@pytest.mark.parametrize("algo", ["adpsgd", "downpour", "dpsgd", "sync"])
def test_a_run_that_goes_on_from_any_checkpoint_diverges_at_the_same_event(algo: str) -> None:
    """Also from one between the evaluation of a gradient and its event."""
    experiment = prepared(*QUADRATIC, DIVERGES, f"algo={algo}")
    marks, expected = ended(Simulation(experiment))
    for event in range(0, expected[-1], max(1, expected[-1] // 6)):
        stopped = Simulation(experiment)
        before = list(stopped.run(interrupt=lambda stopped=stopped, at=event: stopped.machine.loop.processed >= at))
        state = snapshot(stopped)
        resumed = Simulation(experiment)
        restore(resumed, state)
        after, found = ended(resumed)
        assert found == expected
        assert repr([*before, *after]) == repr(marks)  # nan is not equal to itself


def test_a_loss_that_is_no_number_ends_a_run_whatever_the_limit() -> None:
    """Also where eval.diverged_factor is infinite."""
    experiment = prepared(*QUADRATIC, "optimizer.lr=1e30", "algo=sync")
    experiment = dataclasses.replace(experiment, eval=Evaluation(diverged_factor=math.inf))
    _, (status, _, samples, _) = ended(Simulation(experiment))
    assert status == "diverged"
    assert samples < 100


def test_what_happens_behind_the_end_of_the_budget_is_no_divergence() -> None:
    """Workers explode while the centre is still where it was: only their own losses show it."""
    options = (*QUADRATIC, "optimizer.lr=1e9", "algo=easgd", "algo.tau=10")
    _, (status, time_s, *_) = ended(Simulation(prepared(*options)))
    assert status == "diverged"
    for limit_s, expected in ((math.nextafter(time_s, 0), "completed"), (time_s, "diverged")):
        _, (status, end_s, *_) = ended(Simulation(prepared(*options, f"budget.time_s={limit_s}")))
        assert (status, end_s) == (expected, limit_s)


def test_outliers_in_small_batches_do_not_end_a_run() -> None:
    """With a factor that some mini-batch's loss alone exceeds, many times: a mark would have to be beyond it."""
    options = ("nodes=2", "batch_size=1", "algo=gossip", "budget.epochs=0.2", "eval.every_epochs=null")
    experiment = prepared(*options, "optimizer.lr=0.3", "eval.diverged_factor=1.5")
    losses: list[float] = []
    simulation = Simulation(experiment)
    evaluate = simulation.machine.evaluator.evaluate

    def noted(pending: Any) -> None:
        evaluate(pending)
        losses.extend(float(item.loss) for item in pending)

    simulation.machine.evaluator.evaluate = noted
    marks, (status, *_) = ended(simulation)
    assert sum(is_beyond(loss, limit_of_mark(experiment, marks[0]["train_loss"])) for loss in losses) > 5
    assert status == "completed"


@pytest.mark.parametrize(("rate", "outcome"), [(0.1, (False, "completed")), (30, (True, "completed"))])
def test_a_run_that_ends_worse_than_it_began_is_marked_as_collapsed(rate: float, outcome: tuple[bool, str]) -> None:
    """Finite to the end, at chance: its status is that of every run that has used up its budget."""
    options = (f"nodes={NODES}", "batch_size=16", "algo=sync", "budget.epochs=0.5", f"optimizer.lr={rate}")
    marks, _ = ended(simulation := Simulation(prepared(*options)))
    summary = simulation.summary()
    assert (summary["collapsed"], summary["status"]) == outcome
    assert (marks[-1]["train_loss"] > marks[0]["train_loss"]) == summary["collapsed"]


def test_collapsed_is_a_higher_loss_than_at_the_start_and_an_accuracy_of_chance() -> None:
    assert has_collapsed(2.3, 342.0, 0.1, 10)
    assert has_collapsed(2.3, 2.31, 0.15, 10)
    assert not has_collapsed(2.3, 342.0, 0.16, 10)  # it has learned something
    assert not has_collapsed(2.3, 2.3, 0.1, 10)  # nothing has happened
    assert not has_collapsed(2.3, 1.0, 0.1, 10)
    assert not has_collapsed(0.01, 0.9, None, None)  # noise about an optimum near the start
    assert has_collapsed(0.01, 1.1, None, None)
    assert not has_collapsed(2.3, None, None, None)  # not measured
    assert not has_collapsed(None, 5.0, None, None)
