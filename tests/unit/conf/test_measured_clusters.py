"""Presets of clusters that somebody has: each is as its source has it."""

from __future__ import annotations

import pytest

from dsgd.engines.sim.simulation import Simulation
from dsgd.runner.configuration import configure
from tests.support.each_row import each_row
from tests.support.simulate import values_of

TIMING = ("experiment=quadratic", "engine.gradients=none", "eval.every_steps=null", "budget.steps=1", "algo=dpsgd")
SHAPED = {"tc_1ms_5gbit": (1e-3, 5e9), "tc_5ms_2gbit": (5e-3, 2e9), "tc_10ms_1gbit": (1e-2, 1e9)}


def test_the_regions_of_aws_are_as_far_apart_as_published() -> None:
    """A pair is as fast both ways; halves of round trips."""
    links = configure(values_of(*TIMING, "cluster=aws10", "nodes=20")).experiment.cluster.link_matrix
    assert links is not None
    at = links.regions.index
    for here, there, round_trip_s, bandwidth in (
        ("Oregon", "Virginia", 0.067, 0.79e9),
        ("Frankfurt", "Sydney", 0.265, 0.328e9),
        ("Seoul", "Tokyo", 0.034, 1.10e9),
    ):
        assert 2 * links.latency_s[at(here)][at(there)] == pytest.approx(round_trip_s)
        assert links.bandwidth[at(there)][at(here)] == bandwidth
    assert [links.region_of(node, 20) for node in (0, 1, 2, 19)] == [0, 0, 1, 9]


@each_row(
    ("name", "up", "down", "round_trip_s"),
    [("starlink", 14.84e6, 104.71e6, 0.045), ("mobile_5g", 14.56e6, 265.8e6, 0.047)],
)
def test_two_nodes_behind_such_lines_are_half_a_round_trip_apart_at_both_ends(
    name: str, up: float, down: float, round_trip_s: float
) -> None:
    cluster = configure(values_of(*TIMING, f"cluster={name}")).experiment.cluster
    assert (cluster.bandwidth, cluster.receive_bandwidth, cluster.latency_s) == (up, down, 2 * round_trip_s / 2)


def test_eight_hosts_of_v100_take_the_step_that_was_measured() -> None:
    """0.113 s, with 64 GPUs."""
    timing = ("model=vector", "data=quadratic", "engine.gradients=none", "eval.every_epochs=null", "budget.epochs=null")
    run = values_of(*timing, "algo=sync", "cluster=dgx_v100", "nodes=64", "budget.steps=2")
    simulation = Simulation(configure(run).experiment)
    for _ in simulation.run():
        pass
    assert simulation.summary()["time_s"] / 2 == pytest.approx(0.113, rel=0.1)


@each_row("name", list(SHAPED))
def test_a_shaped_network_has_the_delay_and_rate_of_its_name(name: str) -> None:
    cluster = configure(values_of(*TIMING, f"cluster={name}")).experiment.cluster
    assert (cluster.latency_s, cluster.bandwidth) == SHAPED[name]
    assert cluster.collective_startup_s == pytest.approx(3 * cluster.latency_s)
