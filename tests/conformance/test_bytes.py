"""Bytes counted, against what each method says that it sends."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from math import ceil

import pytest

from dsgd.cluster import COLLECTIVES, Cluster
from dsgd.sim.simulation import Simulation
from dsgd.worker import Algorithm
from tests.support.cases import ALGORITHMS, CASES, described, prepared

N = 1e6
IDEAL = Cluster(0.01, float("inf"), 0.0, message_bytes=N)
P = 8

each_case = pytest.mark.parametrize("case", CASES, ids=described)


def sent(case: tuple[str, ...], steps: int, nodes: int = P, cluster: Cluster = IDEAL, *overrides: str) -> Simulation:
    options = ("experiment=quadratic", "engine.gradients=none", f"nodes={nodes}", f"budget.steps={steps}", *overrides)
    experiment = prepared(*options, f"algo={case[0]}", *case[1:])
    simulation = Simulation(dataclasses.replace(experiment, cluster=cluster))
    assert list(simulation.run())
    return simulation


def steps_of(algo: Algorithm, wanted: int) -> int:
    """A number of steps after which no further message has been begun when the last worker ends."""
    periods = [getattr(algo, name) for name in ("tau", "n_push", "n_fetch") if hasattr(algo, name)]
    while any(period > 1 and wanted % period != 1 for period in periods):
        wanted += 1
    return wanted


# Messages of N bytes that a worker sends, and that the servers together send it, in k steps.
# An algorithm that is not here passes by the rules further down.
FORMULAS: dict[str, Callable[..., tuple[float, float]]] = {
    "sync": lambda algo, k: (k * 2 * (P - 1) / P, 0),
    "dpsgd": lambda algo, k: (k * len(algo.topology.targets(0)), 0),
    "delayfree": lambda algo, k: (ceil(k / (algo.tau // 2)) * 2 * (P - 1) / P, 0),
    "gossip": lambda algo, k: (ceil(k / algo.tau), 0),
    "easgd": lambda algo, k: (ceil(k / algo.tau), ceil(k / algo.tau)),
    "downpour": lambda algo, k: (k // algo.n_push, ceil(k / algo.n_fetch)),
}
OPTIONS = [
    ("sync",),
    ("sync", "algo.overlap=false"),
    ("dpsgd",),
    ("dpsgd", "topology=complete"),
    ("dpsgd", "topology=hypercube"),
    ("dpsgd", "topology=one_peer_exponential", "algo.gradient=after"),
    ("delayfree",),
    ("delayfree", "algo.tau=6"),
    ("gossip", "algo.tau=3", "algo.mode=push"),
    ("gossip", "algo.tau=10", "algo.mode=pull"),
    ("easgd",),
    ("easgd", "algo.tau=4", "algo.servers=3"),
    ("downpour", "algo.n_push=2", "algo.n_fetch=2"),
    ("downpour", "algo.n_push=3", "algo.n_fetch=2", "algo.servers=2"),
]


@pytest.mark.parametrize("case", [case for case in OPTIONS if case[0] in ALGORITHMS], ids=described)
def test_a_worker_sends_what_its_paper_says(case: tuple[str, ...]) -> None:
    """All workers alike where all have one part in the graph; a server what all of them ask of it."""
    algo = prepared("experiment=quadratic", "engine.gradients=none", f"nodes={P}", f"algo={case[0]}", *case[1:]).algo
    k = steps_of(algo, 20)
    simulation = sent(case, k)
    by_worker, by_servers = FORMULAS[case[0]](algo, k)
    counted = simulation.machine.network.bytes_sent
    if (
        case[0] == "gossip" and "algo.mode=pull" in case
    ):  # who serves a pull is random: each takes part in one on average
        assert sum(counted) == pytest.approx(P * by_worker * N, rel=1e-12)
    else:
        assert counted[:P] == pytest.approx([by_worker * N] * P, rel=1e-12)
    assert counted[P:] == pytest.approx([P * by_servers * N / max(algo.servers, 1)] * algo.servers, rel=1e-12)
    summary = simulation.summary()
    assert summary["bytes_sent_total"] == pytest.approx(P * (by_worker + by_servers) * N, rel=1e-9)
    assert summary["bytes_sent_max_node"] == pytest.approx(max(counted), rel=1e-9)


# Messages of N bytes that each node sends in an all-reduce of 8 and of 6 nodes, which are 4 and 2 surplus ones. In a
# tree a node sends its vector up, and the sum to each child. The last one of a star is its centre.
OF_COLLECTIVES: dict[str, tuple[Sequence[float], Sequence[float]]] = {
    "ring": ([14 / 8] * 8, [10 / 6] * 6),
    "halving_doubling": ([14 / 8] * 8, [2.5, 2.5, 1.5, 1.5, 1, 1]),
    "recursive_doubling": ([3] * 8, [3, 3, 2, 2, 1, 1]),
    "tree": ([3, 1, 2, 1, 3, 1, 2, 1], [3, 1, 2, 1, 2, 1]),
    "star": ([1] * 8 + [8], [1] * 6 + [6]),
}


@pytest.mark.parametrize("collective", sorted(set(COLLECTIVES) - {"best"}))
@pytest.mark.parametrize("algo", ["sync", "delayfree"])
def test_a_node_sends_what_its_collective_says(collective: str, algo: str) -> None:
    cluster = dataclasses.replace(IDEAL, collective=collective)
    for nodes, expected in zip((8, 6), OF_COLLECTIVES[collective], strict=True):
        simulation = sent((algo,), 8, nodes, cluster)
        all_reduces = 8 if algo == "sync" else 1
        counted = simulation.machine.network.bytes_sent
        assert counted == pytest.approx([all_reduces * N * each for each in expected], rel=1e-12)
        assert simulation.summary()["bytes_sent_max_node"] == pytest.approx(max(counted), abs=1)
        assert simulation.summary()["collective"] == collective


def test_the_hub_of_a_star_sends_for_all() -> None:
    counted = sent(("dpsgd",), 5, P, IDEAL, "topology=star").machine.network.bytes_sent
    assert counted == [5 * (P - 1) * N] + [5 * N] * (P - 1)


@each_case
def test_bytes_are_those_of_whole_vectors(case: tuple[str, ...]) -> None:
    """Twice the message, twice the bytes, where size costs no time; one node alone without servers sends nothing; and
    the total is at most what it would be with all nodes as busy as the busiest."""
    one, two = (
        sent(case, 20, cluster=dataclasses.replace(IDEAL, message_bytes=size), nodes=P).summary() for size in (N, 2 * N)
    )
    assert two["bytes_sent_total"] == pytest.approx(2 * one["bytes_sent_total"], rel=1e-6)
    assert one["time_s"] == two["time_s"]
    alone = sent(case, 20, nodes=1)
    servers = alone.experiment.algo.servers
    assert 0 < one["bytes_sent_max_node"] <= one["bytes_sent_total"] <= one["bytes_sent_max_node"] * (P + servers)
    assert (alone.summary()["bytes_sent_total"] == 0) == (servers == 0)


@each_case
def test_a_message_is_as_large_as_the_model_unless_it_is_given(case: tuple[str, ...]) -> None:
    """d numbers of 8 or 4 bytes."""
    cluster = dataclasses.replace(IDEAL, message_bytes=None)
    double = sent(case, 20, P, cluster)
    single = sent(case, 20, P, cluster, "precision=fp32")
    assert double.summary()["dimension"] == 20
    assert double.summary()["message_bytes"] == 160 == 2 * single.summary()["message_bytes"]
    assert double.summary()["bytes_sent_total"] == pytest.approx(2 * single.summary()["bytes_sent_total"], abs=1)
