"""Presets of clusters that somebody has: each is as its source has it."""

from __future__ import annotations

import pytest

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


@each_row("name", list(SHAPED))
def test_a_shaped_network_has_the_delay_and_rate_of_its_name(name: str) -> None:
    cluster = configure(values_of(*TIMING, f"cluster={name}")).experiment.cluster
    assert (cluster.latency_s, cluster.bandwidth) == SHAPED[name]
    assert cluster.collective_startup_s == pytest.approx(3 * cluster.latency_s)
