"""A timing-only run in this process, without a record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsgd.engines.sim.simulation import Simulation
from dsgd.runner.configuration import configure
from dsgd.runner.values import ConfigError


def timed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the summary of a run without gradients, of its configuration as plain values. Raises ConfigError."""
    experiment = configure(values).experiment
    if experiment.gradients != "none":
        raise ConfigError(f"engine.gradients must be none for a run of time alone, got {experiment.gradients}")
    simulation = Simulation(experiment)
    for _ in simulation.run():
        pass
    return dict(simulation.summary())
