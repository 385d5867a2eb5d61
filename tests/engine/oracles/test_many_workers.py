"""Many workers with momentum and small batches, where EASGD and gossip lose their pace: that is what they are.

A network and its gradient in plain NumPy: nothing in common with the package but the data and the first vector.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pytest

from dsgd.algorithms.easgd import EASGD
from dsgd.algorithms.gossip import Gossip
from dsgd.engines.sim.simulation import Simulation
from dsgd.experiment import Evaluation
from dsgd.problem.problem import Problem
from dsgd.worker import Algorithm
from tests.engine.oracles.test_gossip import uniform_peers
from tests.support import reference
from tests.support.cases import prepared
from tests.support.reference import Array, Setting
from tests.support.simulated import assert_close, cluster_of, workers

INPUTS, HIDDEN, CLASSES = 64, 128, 8


@dataclass(frozen=True, eq=False)
class SmallTask(Setting):
    """Images of 8 x 8 pixels in batches of 4, with one hidden layer of 128, Nesterov momentum 0.9."""

    momentum: float = 0.9
    nesterov: bool = True

    @cached_property
    def simulation(self) -> Simulation:
        return self.simulated(EASGD())

    def simulated(self, algo: Algorithm) -> Simulation:
        options = ("data=shapes", "data.resolution=8", "model=mlp", f"model.hidden=[{HIDDEN}]", "batch_size=4")
        options += (f"optimizer.lr={self.lr}", "optimizer.momentum=0.9", "optimizer.nesterov=true", "precision=fp64")
        experiment = prepared(*options, f"nodes={self.nodes}", f"budget.steps={self.steps}", f"seed={self.seed}")
        marks = Evaluation(every_samples=10**9, train_samples=8)
        return Simulation(replace(experiment, algo=algo, cluster=cluster_of(self), eval=marks))

    @property
    def problem(self) -> Problem:
        return self.simulation.problem

    def xs(self) -> Array:
        return np.tile(self.c(), (self.nodes, 1))

    def c(self) -> Array:
        return self.problem.start.numpy().copy()

    def gradient(self, rank: int, step: int, x: Array) -> Array:
        """Of the mean cross-entropy over the worker's batch, by hand."""
        inputs, labels = (column.numpy() for column in self.problem.data.batch(rank, step))
        images, rows = inputs.reshape(len(labels), INPUTS), np.arange(len(labels))
        sizes = np.cumsum([HIDDEN * INPUTS, HIDDEN, CLASSES * HIDDEN])
        W1, b1, W2, b2 = np.split(x, sizes)
        W1, W2 = W1.reshape(HIDDEN, INPUTS), W2.reshape(CLASSES, HIDDEN)
        hidden = np.maximum(images @ W1.T + b1, 0)
        outputs = hidden @ W2.T + b2
        g = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        g /= g.sum(axis=1, keepdims=True)
        g[rows, labels] -= 1
        g /= len(labels)
        below = (g @ W2) * (hidden > 0)
        return np.concatenate([(below.T @ images).ravel(), below.sum(axis=0), (g.T @ hidden).ravel(), g.sum(axis=0)])


def ended(simulation: Simulation) -> Simulation:
    for _ in simulation.run():
        pass
    assert simulation.status == "completed"
    return simulation


def test_sixteen_workers_on_weak_springs_agree_with_a_numpy_loop():
    """tau = 10, alpha = 0.9 / 16, at twice the best rate there is: what the centre comes to is what the paper says."""
    s = SmallTask(nodes=16, steps=45, lr=0.04)
    simulation = ended(s.simulated(EASGD()))
    xs, centres = reference.easgd_in_lockstep(s, 10, lambda lr: 0.9 / 16, in_turn=True)
    found = simulation.machine.centre()
    assert found is not None
    assert np.abs(centres[-1] - centres[0]).max() > 0.02
    assert_close(workers(simulation), xs[-1], 1e-9)
    assert_close(found.numpy(), centres[-1], 1e-9)


@pytest.mark.parametrize("mode", ["push", "pull"])
def test_many_gossiping_workers_agree_with_a_numpy_loop(mode: str):
    """At a rate that a lone worker cannot take; several pushed vectors come before one step, or none does."""
    times = tuple(1 + 0.1 * np.random.default_rng(1).random(24))
    s = SmallTask(nodes=24, steps=25, lr=0.16, gradient_s=times, latency_s=0.0123)
    simulation = ended(s.simulated(Gossip(mode=mode)))
    loop = {"pull": reference.gossip_pull, "push": reference.gossip_push}[mode]
    xs = loop(s, 1, uniform_peers(s))
    assert np.abs(xs - s.c()).max() > 0.02
    assert_close(workers(simulation), xs, 1e-9)
