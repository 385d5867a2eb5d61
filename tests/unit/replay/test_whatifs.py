"""Other conditions of a cluster are its closed forms with other numbers."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from dsgd.cluster import Cluster
from dsgd.experiment import Experiment
from dsgd.replay.night import replay_night
from dsgd.replay.whatifs import bandwidth_factors, bandwidth_name, slowest_rank, whatifs, with_bandwidth, with_slowness
from tests.support.each_row import each_row
from tests.unit.replay.test_night import GRADIENT_S, ISLANDS, NODES, PLAIN, RING_S, STRAGGLER, described

STEPS = 600
MATRIX = {"regions": ["a", "b"], "latency_s": [[None, 0.1], [None, None]], "bandwidth": [[None, 1e9], [2e8, None]]}


def times_of(experiment: Experiment) -> dict[str, float]:
    return {whatif.condition: whatif.times_s[0] / STEPS for whatif in whatifs([experiment], STEPS)}


def test_each_condition_is_its_closed_form() -> None:
    times = times_of(described("sync overlap=false", *PLAIN, *STRAGGLER))
    assert times == {
        "rank 1, 1.5 times as slow, at the median": pytest.approx(GRADIENT_S + RING_S),
        "perfect overlap of communication": pytest.approx(max(1.5 * GRADIENT_S, RING_S)),
        "twice the bandwidth": pytest.approx(1.5 * GRADIENT_S + RING_S / 2),
    }


def test_perfect_overlap_of_a_slow_network_is_its_communication() -> None:
    times = times_of(described("localsgd tau=2", *PLAIN, "cluster.bandwidth=1e8"))
    # the last round has no average
    assert times["perfect overlap of communication"] == pytest.approx(100 * RING_S * (STEPS / 2 - 1) / STEPS)


def test_without_a_straggler_the_median_is_what_there_is() -> None:
    experiment = described("sync", *PLAIN)
    times = times_of(experiment)
    assert times["slowest rank, none, at the median"] == pytest.approx(replay_night("", experiment, STEPS).step_s)


def test_the_slowest_rank_of_measured_times_is_found_by_its_mean(tmp_path) -> None:
    trace = tmp_path / "times.csv"
    times = {0: [0.1, 0.3], 1: [0.2, 0.21], 2: [0.2, 0.5], 3: [0.3, 0.1]}  # of which only the third is above 0.21
    lines = [f"{step},{rank},{seconds[step]}" for rank, seconds in times.items() for step in range(2)]
    trace.write_text("\n".join(["step,rank,seconds", *lines]))
    experiment = described("sync", *PLAIN)
    cluster = replace(experiment.cluster, gradient_s=None, compute_trace=str(trace))
    rank, slowness = slowest_rank(replace(experiment, cluster=cluster))
    assert (rank, slowness) == (2, pytest.approx(0.35 / 0.2025))
    typical = replace(experiment, cluster=with_slowness(cluster, rank, 1 / slowness))
    assert slowest_rank(typical)[1] < 1.02


def test_the_bandwidth_for_another_method_s_time_is_that_of_the_ring() -> None:
    """A ring every step must take as long as one in ten steps does; no bandwidth makes gradients shorter."""
    experiment = described("sync overlap=false", *PLAIN, "cluster.bandwidth=1e9")
    tenth_s = GRADIENT_S + RING_S
    factors = bandwidth_factors(experiment, STEPS, [STEPS * tenth_s, STEPS * GRADIENT_S * 0.9])
    assert factors[0] == pytest.approx(10, rel=2 ** (1 / 16) - 1)
    assert (
        replay_night("", replace(experiment, cluster=with_bandwidth(experiment.cluster, factors[0] or 1)), STEPS).step_s
        <= tenth_s
    )
    assert factors[1] is None


@each_row(
    ("cluster", "name", "changed"),
    [
        (Cluster(0.1, 1e9, 0.0), "bandwidth", {"bandwidth": 2e9}),
        (
            Cluster(0.1, 1e9, 0.0, receive_bandwidth=5e8, node_bandwidth={1: 3e8}, server_bandwidth=4e9),
            "bandwidth",
            {"bandwidth": 2e9, "receive_bandwidth": 1e9, "node_bandwidth": {1: 6e8}, "server_bandwidth": 8e9},
        ),
        (Cluster(0.1, 1e9, 0.0, islands=2), "bandwidth between islands", {"wan_bandwidth": 2e9}),
        (Cluster(0.1, 1e9, 0.0, islands=2, wan_bandwidth=1e8), "bandwidth between islands", {"wan_bandwidth": 2e8}),
        (
            Cluster(0.1, 1e9, 0.0, links=MATRIX),
            "bandwidth between islands",
            {"links": {**MATRIX, "bandwidth": [[None, 2e9], [4e8, None]]}},
        ),
    ],
)
def test_a_bandwidth_is_that_between_islands_where_there_are_some(
    cluster: Cluster, name: str, changed: dict[str, object]
) -> None:
    assert bandwidth_name(cluster) == name
    assert with_bandwidth(cluster, 2.0) == replace(cluster, **changed)  # pyright: ignore[reportArgumentType]


def test_islands_with_unlimited_bandwidth_between_them_are_as_fast_as_inside() -> None:
    experiment = described("sync overlap=false", *PLAIN, *ISLANDS)
    cluster = replace(experiment.cluster, wan_bandwidth=math.inf, wan_latency_s=0.0)
    factors = bandwidth_factors(
        experiment, STEPS, [replay_night("", replace(experiment, cluster=cluster), STEPS).time_s]
    )
    assert factors == [None]  # the latency between islands stays
    assert NODES % experiment.cluster.islands == 0
