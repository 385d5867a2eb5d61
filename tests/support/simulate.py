"""Runs an experiment in this process, as the command line would configure it, and keeps what it yields."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from dsgd.cli.compose import ConfigTree
from dsgd.engines.sim.simulation import Simulation
from dsgd.experiment import Experiment
from dsgd.runner.configuration import configure

torch.set_num_threads(1)


@dataclass(frozen=True)
class Outcome:
    """simulation: at its end, with every worker's vector in `simulation.machine.nodes[rank].worker.x`."""

    marks: list[dict[str, Any]]
    simulation: Simulation

    @property
    def summary(self) -> dict[str, Any]:
        return self.simulation.summary()

    def values(self, field: str) -> list[Any]:
        """One field at every mark."""
        return [mark[field] for mark in self.marks]

    @property
    def x(self) -> torch.Tensor:
        """All workers' vectors, [p, d]."""
        return torch.stack([node.worker.x for node in self.simulation.machine.nodes])


def experiment(*overrides: str) -> Experiment:
    """The experiment of a command line, with gradients of 10 ms where it would measure them."""
    return configure(with_gradient_s(values_of(*overrides))).experiment


@cache
def tree() -> ConfigTree:
    """Return the configuration files, once for all tests: a choice of files is composed once, which takes 0.1 s."""
    return ConfigTree()


def values_of(*overrides: str) -> dict[str, Any]:
    """Return what `composed` returns, in a tenth of the time."""
    (job,) = tree().grid(overrides, [])
    return job.values


def with_gradient_s(values: dict[str, Any]) -> dict[str, Any]:
    cluster = values["cluster"]
    if cluster["gradient_s"] is None:
        cluster["gradient_s"] = 0.01
    return values


def simulate(*overrides: str, interrupt: Callable[[Simulation], bool] = lambda simulation: False) -> Outcome:
    """Run the experiment of a command line to its end, or until `interrupt`, which is asked between any two events."""
    simulation = Simulation(experiment(*overrides))
    marks = list(simulation.run(lambda: interrupt(simulation)))
    return Outcome(marks, simulation)
