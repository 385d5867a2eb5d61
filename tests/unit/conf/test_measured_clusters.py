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


@each_row(
    ("name", "cards", "gbit_s", "nvlink_gb_s"),
    [
        ("aws_p3dn", 1, 100, 6 * 20),
        ("aws_p4d", 4, 100, 12 * 20),
        ("aws_p5", 32, 100, 18 * 20.6),
        ("azure_nd_h100_v5", 8, 400, 18 * 20.6),
        ("dgx_h100", 8, 400, 18 * 20.6),
        ("gcp_a3", 4, 200, 18 * 20.6),
        ("gcp_a3_mega", 8, 200, 18 * 20.6),
        ("oci_a100", 16, 100, 12 * 20),
    ],
)
def test_hosts_of_gpus_have_the_rates_of_their_cards_and_links(
    name: str, cards: int, gbit_s: float, nvlink_gb_s: float
) -> None:
    """Of a card 12 of 12.5 GB/s are left (NCCL's NET_BW)."""
    cluster = configure(values_of(*TIMING, f"cluster={name}", "nodes=16")).experiment.cluster
    assert cluster.wan_bandwidth == pytest.approx(cards * gbit_s * 1e9 * 12 / 12.5)
    assert cluster.bandwidth == pytest.approx(8e9 * nvlink_gb_s)
    assert cluster.of_nccl is not None


def test_spot_instances_are_there_as_often_as_in_the_trace() -> None:
    """5.6 of twelve on average, 51 lost in 20,233 s."""
    failures = configure(values_of(*TIMING, "cluster=spot_instances")).experiment.cluster.failing
    assert failures is not None
    assert 12 * failures.every_s / (failures.every_s + failures.repair_s) == pytest.approx(5.6, rel=0.01)
    assert 5.6 * 20_233 / failures.every_s == pytest.approx(51, rel=0.01)
