"""Runs for their virtual time alone: no gradients, and a cluster that is given in numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any

from dsgd.cluster import Cluster
from dsgd.engines.sim.simulation import Simulation
from dsgd.experiment import Budget, Evaluation, Experiment
from dsgd.topology import Ring, Topology
from dsgd.worker import Algorithm
from tests.support.simulate import experiment


@cache
def base() -> Experiment:
    return experiment("experiment=quadratic", "engine.gradients=none")


def timed(
    algo: Algorithm,
    cluster: Cluster,
    nodes: int,
    steps: int | None = None,
    topology: Topology | None = None,
    interrupt: Callable[[Simulation], bool] = lambda simulation: False,
    **fields: Any,
) -> Simulation:
    """The finished simulation of so many steps per worker; marks only at the start and the end."""
    run = dataclasses.replace(
        base(),
        **{
            "algo": algo,
            "cluster": cluster,
            "nodes": nodes,
            "topology": topology or Ring().build(nodes, 0),
            "budget": Budget(steps=steps),
            "eval": Evaluation(),
            **fields,
        },
    )
    simulation = Simulation(run)
    for _ in simulation.run(interrupt=lambda: interrupt(simulation)):
        pass
    return simulation


def step_times(algo: Algorithm, cluster: Cluster, nodes: int, steps: int, **options: Any) -> list[list[float]]:
    """When every worker has made its steps: [worker][step]."""
    times: list[list[float]] = [[] for _ in range(nodes)]

    def look(simulation: Simulation) -> bool:
        for worker_times, node in zip(times, simulation.machine.nodes, strict=True):
            if len(worker_times) < node.worker.steps:
                worker_times.append(simulation.machine.loop.now)
        return False

    look(timed(algo, cluster, nodes, steps, interrupt=look, **options))
    return times
