"""What communication must conserve is checked while a simulation runs, and what breaks it shows."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from dsgd.algorithms.adpsgd import ADPSGD
from dsgd.algorithms.downpour import Downpour, ParameterServer
from dsgd.algorithms.dpsgd import DPSGD
from dsgd.algorithms.easgd import EASGD, Centre
from dsgd.engines.sim.machine import Machine
from dsgd.engines.sim.simulated import restore, snapshot
from dsgd.engines.sim.simulation import Simulation
from dsgd.experiment import Experiment
from dsgd.topology import Ring, Topology
from dsgd.worker import Algorithm, Worker
from tests.support.cases import WAITING, prepared

NODES = 4
UNEVEN = ("cluster.slow_nodes={1: 3.0}", "cluster.jitter=0.3", "cluster.latency_s=0.013", "cluster.bandwidth=1e5")
RACE = ("experiment=quadratic", f"nodes={NODES}", "budget.steps=60", "eval.every_steps=7", *UNEVEN)
ROUNDING = 1e-13  # of 60 steps in double precision


def conserving(*overrides: str, **fields: Any) -> Experiment:
    return dataclasses.replace(prepared(*RACE, "eval.conservation=true", *overrides), **fields)


def drifts(experiment: Experiment) -> list[float | None]:
    """`mean_drift` at every mark and in the summary."""
    simulation = Simulation(experiment)
    found = [mark["mean_drift"] for mark in simulation.run()]
    return [*found, simulation.summary()["mean_drift"]]


@pytest.mark.parametrize("algo", [*WAITING, "compressed", "diloco", "sparta"])
def test_what_an_algorithm_conserves_drifts_by_rounding_alone(algo: str) -> None:
    """However slow the network, with messages under way at every mark. Watching changes nothing else."""
    watched = conserving(f"algo={algo}", "budget.steps=30")
    off = Simulation(dataclasses.replace(watched, eval=dataclasses.replace(watched.eval, conservation=False)))
    assert type(off.machine) is Machine
    on = Simulation(watched)
    marks = list(on.run())
    assert [{name: value for name, value in mark.items() if name != "mean_drift"} for mark in marks] == [*off.run()]
    assert "mean_drift" not in off.summary()
    first, *found = [mark["mean_drift"] for mark in marks] + [on.summary()["mean_drift"]]
    assert first is None
    if algo in ("gossip", "diloco"):
        assert found == [None] * len(found)
    else:
        assert len(found) > 4
        assert all(drift is not None and drift <= ROUNDING for drift in found[1:])
        assert (found[-1] == 0) == (algo in ("sync", "compressed"))


class Greedy(Centre):
    """Takes a hundredth more than the worker gives."""

    def exchange(self, x_i: Tensor, alpha: float) -> Tensor:
        e = super().exchange(x_i, alpha)
        self.x.add_(e, alpha=0.01)
        return e


class GreedyEASGD(EASGD):
    def server(self, x: Tensor) -> Centre:
        return Greedy(x)


class TwiceServer(ParameterServer):
    """Applies every third push twice."""

    pushes = 0

    def push(self, acc: Tensor, lr: float) -> None:
        self.pushes += 1
        super().push(acc, lr * (1 + (self.pushes % 3 == 0)))


class TwiceDownpour(Downpour):
    def server(self, x: Tensor) -> TwiceServer:
        return TwiceServer(x, self)


class Anybody(ADPSGD):
    """All workers begin averages, with anybody: answers come while their own averages are under way."""

    def passive(self, worker: Worker) -> Sequence[int]:
        return [rank for rank in range(worker.nodes) if rank != worker.rank]


class Halved(Anybody):
    """Takes the mean of the answer and of what it has sent, whatever it has become meanwhile."""

    async def train(self, worker: Worker) -> None:
        async def average(peer: int) -> None:
            v = worker.x.clone()
            y = await worker.ask(peer, v)
            assert y is not None
            worker.x.copy_((v + y) / 2)

        while not worker.done:
            averaging = worker.start(average(int(worker.rng.choice(self.passive(worker)))))
            worker.step(await worker.gradient())
            await averaging


class Mixed(DPSGD):
    """Puts the first coordinate where the second one belongs: every number is right, in the wrong place."""

    async def step(self, worker: Worker) -> None:
        await super().step(worker)
        worker.x[:2] = worker.x[:2].flip(0).clone()


def leaking(factor: float) -> Topology:
    """A ring whose weights add up to another number than 1."""
    third = factor / 3
    rows = tuple(dict.fromkeys(sorted({(i - 1) % NODES, i, (i + 1) % NODES}), third) for i in range(NODES))
    return Topology("leaking", NODES, (rows,))


RING = Ring().build(NODES, 0)
BROKEN: list[Algorithm] = [
    Halved(RING),
    GreedyEASGD(tau=3, servers=2),
    TwiceDownpour(n_push=2, n_fetch=2, servers=2),
    DPSGD(leaking(0.999)),
    Mixed(leaking(1.0)),
]


@pytest.mark.parametrize("algo", BROKEN, ids=lambda algo: type(algo).__name__)
def test_what_breaks_a_law_shows(algo: Algorithm) -> None:
    *_, last = drifts(conserving(algo=algo))
    assert last is not None
    assert last > 1e-4


def test_the_drift_is_relative_to_the_vectors_in_the_sum() -> None:
    """Without steps, weights of sum s leave s^k of everything after k steps: it has changed by 1 - s^k, over s^k."""
    simulation = Simulation(conserving("optimizer.lr=0", algo=DPSGD(leaking(0.9))))
    for node in simulation.machine.nodes:
        node.worker.x.fill_(2.0)
    found = {mark["samples"] // NODES: mark["mean_drift"] for mark in simulation.run()}
    assert found.pop(0) is None
    # what is measured is as large as the steps that all have made, the vectors are those of now: some are a step ahead
    assert found[60] == pytest.approx((1 - 0.9**60) / 0.9**60, rel=1e-9)


@pytest.mark.parametrize("algo", ["delayfree", "downpour"])
def test_a_run_that_goes_on_from_a_checkpoint_has_the_same_drift(algo: str) -> None:
    """Single precision, where it is not 0."""
    experiment = conserving(f"algo={algo}", "precision=fp32")
    without = Simulation(experiment)
    whole = list(without.run())
    stopped = Simulation(experiment)
    before = list(stopped.run(lambda: stopped.machine.loop.processed >= 0.6 * without.machine.loop.processed))
    assert stopped.status == "interrupted"
    file = io.BytesIO()
    torch.save(snapshot(stopped), file)
    file.seek(0)
    resumed = Simulation(experiment)
    restore(resumed, torch.load(file))
    assert [*before, *resumed.run()] == whole
