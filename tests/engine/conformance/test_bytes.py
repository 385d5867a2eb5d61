"""Bytes counted, against what each method says that it sends."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from math import ceil
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd.cluster import CENTRAL, COLLECTIVES, Cluster
from dsgd.engines.sim.simulation import Simulation
from dsgd.experiment import Budget, Evaluation
from dsgd.worker import Algorithm
from tests.support.cases import ALGORITHMS, CASES, PLAIN, alone, described, prepared

N = 1e6
IDEAL = Cluster(0.01, float("inf"), 0.0, message_bytes=N)
P = 8

each_plain = pytest.mark.parametrize("case", PLAIN, ids=described)


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


CODED = {"sign": 2, "topk": 8}  # numbers of four bytes for 20 of them, whose PowerSGD is themselves
# Messages of N bytes that a worker sends, and that the servers together send it, in k steps.
# An algorithm that is not here passes by the rules further down.
FORMULAS: dict[str, Callable[..., tuple[float, float]]] = {
    "sync": lambda algo, k: (k * 2 * (P - 1) / P, 0),
    "dpsgd": lambda algo, k: (k * len(algo.topology.targets(0)), 0),
    "compressed": lambda algo, k: (
        k * (2 * (P - 1) / P if algo.code in ("powersgd", "none") else (P - 1) * CODED[algo.code] / 20),
        0,
    ),
    "corrected": lambda algo, k: ((2 if algo.method == "tracking" else 1) * k * len(algo.topology.targets(0)), 0),
    "choco": lambda algo, k: (k * len(algo.topology.targets(0)) * CODED[algo.compressor] / 20, 0),
    "delayfree": lambda algo, k: (ceil(k / (algo.tau // 2)) * 2 * (P - 1) / P, 0),
    "localsgd": lambda algo, k: ((algo.switch + (k - 1 - algo.switch) // algo.tau) * 2 * (P - 1) / P, 0),
    "sgp": lambda algo, k: (ceil(k / max(algo.overlap, 1)) * len(algo.topology.targets(0)), 0),
    "diloco": lambda algo, k: (
        (ceil(k / algo.tau) - (algo.overlap != "none"))
        * (2 * (P - 1) / P if algo.code == "none" else (P - 1) * 5 / 20),  # 4 means, and 6 entries in 5 bits
        0,
    ),
    "streaming": lambda algo, k: (ceil(k / algo.cycle) / algo.fragments * 2 * (P - 1) / P, 0),
    "sparta": lambda algo, k: (
        ((k - k // algo.tau) / 20 + ceil(k / algo.tau) if algo.tau else k / 20) * 2 * (P - 1) / P,
        0,
    ),  # a share of 0.005 of 20 numbers is one
    "noloco": lambda algo, k: (ceil(k / algo.tau), 0),
    "gasloc": lambda algo, k: (
        ceil(k / algo.tau)
        * ((algo.alpha > 0) + (algo.overlap > 0))
        * {"one": 1, "two": 2, "topology": len(algo.topology.targets(0))}[algo.peers],
        0,
    ),
    "gossip": lambda algo, k: (ceil(k / algo.tau), 0),
    "easgd": lambda algo, k: (
        ceil(k / algo.tau) * (2 * (P - 1) / P if algo.variant == "sync" else 1),
        ceil(k / algo.tau) if algo.variant == "async" else 0,
    ),
    "asyncdiloco": lambda algo, k: (k // algo.tau, k // algo.tau),
    "decoupled": lambda algo, k: tuple(
        sum(len(algo.leaving(step)) for step in range(1, end + 1)) / algo.fragments for end in (k, k - algo.delay)
    ),
    "downpour": lambda algo, k: (k // algo.n_push, ceil(k / algo.n_fetch)),
}
OPTIONS = [
    ("sync",),
    ("sync", "algo.overlap=false", "algo.backups=2"),
    ("dpsgd", "topology=complete"),
    ("dpsgd", "topology=one_peer_exponential", "algo.gradient=after"),
    ("compressed",),
    ("compressed", "algo.code=topk", "algo.share=0.25"),
    ("corrected",),
    ("corrected", "algo.method=tracking", "topology=complete"),
    ("choco",),
    ("choco", "algo.compressor=topk", "algo.share=0.25", "algo.order=code", "topology=hypercube"),
    ("delayfree", "algo.tau=6"),
    ("localsgd", "algo.tau=3", "algo.switch=5"),
    ("diloco", "algo.tau=4"),
    ("diloco", "algo.tau=4", "algo.overlap=delayed"),
    ("diloco", "algo.tau=4", "algo.code=sparse", "algo.chunk=8", "algo.kept=2"),
    ("noloco", "algo.tau=4"),
    ("gasloc", "algo.tau=4", "topology=hypercube"),
    ("gasloc", "algo.tau=4", "algo.peers=one", "algo.overlap=1"),
    ("gasloc", "algo.tau=4", "algo.peers=two", "algo.overlap=1", "algo.alpha=0"),
    ("sparta", "algo.tau=4"),
    ("streaming", "algo.tau=6", "algo.fragments=2"),
    ("sgp", "topology=one_peer_exponential"),
    ("sgp", "algo.overlap=3", "topology=exponential"),
    ("gossip", "algo.tau=3", "algo.mode=push"),
    ("gossip", "algo.tau=10", "algo.mode=pull"),
    ("easgd", "algo.tau=4", "algo.servers=3"),
    ("easgd", "algo.variant=sync", "algo.tau=3"),
    ("easgd", "algo.variant=round_robin", "algo.tau=3"),
    ("decoupled", "algo.tau=12"),
    ("downpour", "algo.n_push=3", "algo.n_fetch=2", "algo.servers=2"),
]


@pytest.mark.parametrize("case", [case for case in OPTIONS if case[0] in ALGORITHMS], ids=described)
def test_a_worker_sends_what_its_paper_says(case: tuple[str, ...]) -> None:
    """All workers alike where all have one part in the graph; a server what all of them ask of it."""
    algo = prepared("experiment=quadratic", "engine.gradients=none", f"nodes={P}", f"algo={case[0]}", *case[1:]).algo
    k = steps_of(algo, 20)
    simulation = sent(case, k)
    by_worker, by_servers = FORMULAS[case[0]](algo, k)
    counted = simulation.machine.network.bytes_sent(simulation.time_s)
    if case[0] == "gossip" and "algo.mode=pull" in case:  # who serves a pull is random: each serves one on average
        assert sum(counted) == pytest.approx(P * by_worker * N, rel=1e-12)
    else:
        assert counted[:P] == pytest.approx([by_worker * N] * P, rel=1e-12)
    assert counted[P:] == pytest.approx([P * by_servers * N / max(algo.servers, 1)] * algo.servers, rel=1e-12)
    received = simulation.machine.network.bytes_received(simulation.time_s)
    if case[0] == "gossip" and "algo.mode=push" in case:  # who receives a push is random
        assert sum(received) == pytest.approx(sum(counted), rel=1e-12)
    elif case[0] == "gossip":
        assert received == pytest.approx([by_worker * N] * P, rel=1e-12)
    else:  # what workers send the servers receive, and the other way round
        down, up = (by_servers, by_worker) if algo.servers else (by_worker, 0)
        assert received[:P] == pytest.approx([down * N] * P, rel=1e-12)
        assert received[P:] == pytest.approx([P * up * N / max(algo.servers, 1)] * algo.servers, rel=1e-12)
    summary = simulation.summary()
    assert summary["bytes_received_total"] == summary["bytes_sent_total"]
    assert summary["bytes_received_max_node"] == pytest.approx(max(received), rel=1e-9)
    for way, of_nodes in (("sent", counted), ("received", received)):
        expected = pytest.approx(max(of_nodes[P:]), rel=1e-9) if algo.servers else None
        assert summary[f"bytes_{way}_max_server"] == expected
    assert summary["bytes_sent_total"] == pytest.approx(P * (by_worker + by_servers) * N, rel=1e-9)
    assert summary["bytes_sent_max_node"] == pytest.approx(max(counted), rel=1e-9)


# Messages of N bytes that each node sends in an all-reduce of 8 and of 6 nodes, which are 4 and 2 surplus ones. In a
# tree a node sends its vector up, and the sum to each child. The last one of a star is its centre.
OF_COLLECTIVES: dict[str, tuple[Sequence[float], Sequence[float]]] = {
    "ring": ([14 / 8] * 8, [10 / 6] * 6),
    "halving_doubling": ([14 / 8] * 8, [2.5, 2.5, 1.5, 1.5, 1, 1]),
    "tree": ([3, 1, 2, 1, 3, 1, 2, 1], [3, 1, 2, 1, 2, 1]),
    "chain": ([1, *[2] * 6, 1], [1, *[2] * 4, 1]),
    "star": ([1] * 8 + [8], [1] * 6 + [6]),
    "store": ([1] * 8 + [8], [1] * 6 + [6]),
    "hierarchical": ([14 / 8] * 8, [10 / 6] * 6),  # all in one island
}


@pytest.mark.parametrize("collective", sorted(set(COLLECTIVES) - {"best"}))
def test_a_node_sends_what_its_collective_says(collective: str) -> None:
    cluster = dataclasses.replace(IDEAL, collective=collective)
    whole, surplus = OF_COLLECTIVES[collective]
    for algo, all_reduces, nodes, expected in (("sync", 8, 8, whole), ("delayfree", 1, 6, surplus)):
        simulation = sent((algo,), 8, nodes, cluster)
        counters = simulation.counters(simulation.time_s)
        counted, received = counters.bytes_sent, counters.bytes_received
        assert counted == pytest.approx([all_reduces * N * each for each in expected], rel=1e-12)
        assert received == counted  # each hands on as much as it gets
        found = [simulation.summary()[f"bytes_{way}_max_server"] for way in ("sent", "received")]
        assert found == ([counted[-1]] * 2 if collective in CENTRAL else [None] * 2)
        assert simulation.summary()["bytes_sent_max_node"] == pytest.approx(max(counted), abs=1)
        assert simulation.summary()["collective"] == collective


def test_the_hub_of_a_star_sends_for_all() -> None:
    for algo in ("dpsgd", "relay"):
        counted = sent((algo,), 5, P, IDEAL, "topology=star").counters(math.inf).bytes_sent
        assert counted == [5 * (P - 1) * N] + [5 * N] * (P - 1)


def test_a_server_that_shares_a_port_is_counted_with_its_worker() -> None:
    """Workers 0 and 1 have a shard each: of k = 2 shards they send one over the network, the others two."""
    colocated = dataclasses.replace(IDEAL, servers_colocated=True)
    summary = sent(("easgd",), 1, 4, colocated, "algo.servers=2").summary()
    assert summary["bytes_sent_max_server"] == summary["bytes_sent_max_node"] == (1 + 3) / 2 * N
    assert summary["bytes_sent_total"] == summary["bytes_received_total"] == 2 * (2 * 1 + 2 * 2) / 2 * N


def test_what_waits_at_a_server_has_not_been_sent() -> None:
    """8 workers ask one server at once, whose port takes 1 s for a vector: after 4.5 s it has sent the answers to 3.5
    of them, whose requests came one after the other, and received 4.5 requests."""
    experiment = prepared("experiment=quadratic", "engine.gradients=none", "nodes=8", "algo=easgd")
    cluster = Cluster(100.0, 8 * N, 0.0, message_bytes=N)
    simulation = Simulation(dataclasses.replace(experiment, cluster=cluster, budget=Budget(time_s=4.5)))
    assert list(simulation.run())
    assert simulation.machine.network.bytes_sent(4.5) == pytest.approx([N] * 8 + [3.5 * N])
    assert simulation.machine.network.bytes_received(4.5) == pytest.approx([N] * 3 + [0.5 * N] + [0] * 4 + [4.5 * N])
    summary = simulation.summary()
    assert (summary["bytes_sent_max_server"], summary["bytes_sent_total"]) == (3.5 * N, 11.5 * N)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Ports on which a vector takes from 1 ms to 10 s, a gradient takes 10 ms."""
    rates = st.floats(8e5, 8e9)
    collective = draw(st.sampled_from(COLLECTIVES))
    return Cluster(
        0.01,
        draw(rates),
        draw(st.sampled_from([0.0, 1e-3, 0.1])),
        message_bytes=N,
        server_bandwidth=draw(st.none() | rates),
        servers_colocated=collective not in CENTRAL and draw(st.booleans()),
        node_bandwidth=draw(st.none() | st.dictionaries(st.integers(0, 3), rates)),
        chunks_per_message=draw(st.sampled_from([1, 1, 4])),
        slow_nodes=draw(st.none() | st.just({1: 4.0})),
        jitter=draw(st.sampled_from([0.0, 0.5])),
        collective=collective,
        collective_messages=collective != "best" and draw(st.booleans()),
    )


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(CASES), clusters(), st.floats(0.02, 20), st.sampled_from([1, 4, 6]))
def test_bytes_never_exceed_time_times_bandwidth(
    case: tuple[str, ...], cluster: Cluster, seconds: float, nodes: int
) -> None:
    """At every mark of every algorithm, on every port and in both directions; and nothing is received unsent."""
    if nodes == 1:
        cluster = dataclasses.replace(cluster, node_bandwidth=None, slow_nodes=None)
    if "topology=one_peer_exponential" not in case and case[0] != "relay":
        case = (*case, "topology=ring")
    case = case if nodes > 1 else alone(case)
    experiment = prepared(
        "experiment=quadratic", "engine.gradients=none", f"nodes={nodes}", f"algo={case[0]}", *case[1:]
    )
    marks = Evaluation(every_time_s=seconds / 7)
    changed: dict[str, Any] = {"cluster": cluster, "budget": Budget(steps=200, time_s=seconds), "eval": marks}
    simulation = Simulation(dataclasses.replace(experiment, **changed))
    k = experiment.algo.servers
    last = (nodes if cluster.servers_colocated else nodes + k) + (cluster.collective in CENTRAL)
    ports = [cluster.bytes_per_s(node, nodes) for node in range(last)]
    before = [0.0] * len(ports)
    for mark in simulation.run():
        counters = simulation.counters(mark["time_s"])
        passed_s = mark["time_s"] * (1 + 1e-9)
        limits = [rate * passed_s + 1e-3 if passed_s else 0.0 for rate in ports]  # that of a store is infinite
        for of_nodes in (counters.bytes_sent, counters.bytes_received):
            assert all(count <= limit for count, limit in zip(of_nodes, limits, strict=True))
        assert all(count >= last * (1 - 1e-9) - 1e-3 for count, last in zip(counters.bytes_sent, before, strict=True))
        assert sum(counters.bytes_received) <= sum(counters.bytes_sent) * (1 + 1e-9) + 1e-3
        assert (mark["bytes_sent"], mark["bytes_received"]) == (
            round(sum(counters.bytes_sent)), round(sum(counters.bytes_received))
        )  # fmt: skip
        before = list(counters.bytes_sent)


@each_plain
def test_bytes_are_those_of_whole_vectors(case: tuple[str, ...]) -> None:
    """A message is as large as the model unless given: d numbers of 8 or 4 bytes. None sends more than the busiest."""
    cluster = dataclasses.replace(IDEAL, message_bytes=None)
    double = sent(case, 20, P, cluster)
    single = sent(case, 20, P, cluster, "precision=fp32")
    assert double.summary()["dimension"] == 20
    assert double.summary()["message_bytes"] == 160 == 2 * single.summary()["message_bytes"]
    total, most = (double.summary()[f"bytes_sent_{of}"] for of in ("total", "max_node"))
    assert 0 < most <= total <= most * (P + double.experiment.algo.servers)
    ratio = total / single.summary()["bytes_sent_total"]
    if any(
        text.startswith(("algo.code=", "algo.compressor=")) for text in case
    ):  # its places and bits take as much in either
        assert 1 <= ratio <= 2  # 2 where both are filled up to whole numbers
    else:
        assert ratio == pytest.approx(2, rel=1e-4)
