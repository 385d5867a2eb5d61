"""The same `Setting` run by the package: its simulator, its algorithms, its automatic gradients in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dsgd.cluster import Cluster
from dsgd.engines.sim.simulation import Simulation
from dsgd.experiment import Budget, Evaluation, Experiment, Target
from dsgd.models import Vector
from dsgd.optim.optimizer import SGD
from dsgd.optim.schedule import Schedule
from dsgd.topology import Ring
from dsgd.worker import Algorithm
from tests.support.reference import Array, Setting

torch.set_num_threads(1)


@dataclass(frozen=True)
class Path:
    """What a run went through. xs: [marks, nodes, dim]. centre: [marks, dim], None without servers."""

    marks: list[dict[str, Any]]
    xs: Array
    centre: Array | None
    simulation: Simulation

    @property
    def mean(self) -> Array:
        """Of the workers' vectors, [marks, dim]."""
        return self.xs.mean(axis=1)

    @property
    def c(self) -> Array:
        """The centre at every mark, [marks, dim]."""
        assert self.centre is not None
        return self.centre


def cluster_of(s: Setting) -> Cluster:
    return Cluster(1.0, math.inf, s.latency_s, slow_nodes=dict(enumerate(s.times())))


def experiment_of(
    s: Setting, algo: Algorithm, cluster: Cluster | None = None, mark_samples: int | None = None
) -> Experiment:
    """cluster: None is the setting's own. mark_samples: None marks every step of all workers."""
    return Experiment(
        nodes=s.nodes,
        batch_size=1,
        seed=s.seed,
        precision="fp64",
        algo=algo,
        model=Vector(),
        data=s.data,
        optimizer=SGD(s.lr, s.momentum, s.nesterov, s.weight_decay),
        schedule=Schedule() if s.halve_at is None else Schedule("step", milestones=[s.halve_at], gamma=0.5),
        cluster=cluster or cluster_of(s),
        topology=Ring().build(s.nodes, s.seed),
        budget=Budget(steps=s.steps),
        eval=Evaluation(every_samples=mark_samples or s.nodes, diverged_factor=math.inf),
        target=Target(),
    )


def run(
    s: Setting,
    algo: Algorithm,
    cluster: Cluster | None = None,
    mark_samples: int | None = None,
    observe: Callable[[Simulation], None] = lambda simulation: None,
) -> Path:
    """Run to the end of the budget. observe: called between any two events."""
    simulation = Simulation(experiment_of(s, algo, cluster, mark_samples))
    machine = simulation.machine
    for node, x in zip(machine.nodes, s.xs(), strict=True):
        node.worker.x.copy_(torch.from_numpy(x))
        node.published = (node.worker.x.clone(), 0)
    if machine.shards:
        for shard, part in zip(machine.shards, torch.from_numpy(s.c()).tensor_split(len(machine.shards)), strict=True):
            shard.server.x.copy_(part)
    elif algo.output is not None:
        for node in machine.nodes:
            node.worker.keep("centre").copy_(torch.from_numpy(s.c()))

    def between_events() -> bool:
        observe(simulation)
        return False

    marks, xs, centres = [], [], []
    for mark in simulation.run(between_events):
        marks.append(mark)
        xs.append(workers(simulation))
        centres.append(centre(simulation))
    assert simulation.status == "completed"
    return Path(marks, np.array(xs), None if centres[0] is None else np.array(centres), simulation)


def workers(simulation: Simulation) -> Array:
    """All workers' vectors as they are now, [nodes, dim]."""
    return np.array([node.worker.x.numpy().copy() for node in simulation.machine.nodes])


def centre(simulation: Simulation) -> Array | None:
    """The output model of methods that have a centre as it is now, [dim]."""
    now = simulation.machine.centre()
    return None if now is None else now.numpy().copy()


def assert_close(actual: Array, expected: Array, relative: float = 1e-12) -> None:
    """No element is further off than `relative` times the largest."""
    assert actual.shape == expected.shape
    scale = np.abs(expected).max()
    deviation = np.abs(actual - expected).max()
    assert deviation <= relative * scale, f"{deviation / scale:.2e} relative"
