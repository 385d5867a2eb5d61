"""Virtual time against the cost models: latency a, B bytes/s a port and way, N bytes, gradient time t, p nodes."""

from __future__ import annotations

import dataclasses
from math import ceil, floor, log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd.algorithms.delayfree import DelayFree
from dsgd.algorithms.diloco import DiLoCo
from dsgd.algorithms.downpour import Downpour
from dsgd.algorithms.dpsgd import DPSGD
from dsgd.algorithms.easgd import EASGD
from dsgd.algorithms.gossip import Gossip
from dsgd.algorithms.sgp import SGP
from dsgd.algorithms.sync import Sync
from dsgd.cluster import COLLECTIVES, Cluster
from dsgd.engines.rules.step_rules import bucket_count
from dsgd.experiment import Budget
from dsgd.topology import Complete, Exponential, Hypercube, OnePeerExponential, Ring, Star, TopologyConfig, Torus
from dsgd.worker import Algorithm, Worker
from tests.engine.sim.conftest import Close
from tests.support.timing import step_times, timed

few = settings(max_examples=12)
several_nodes = st.integers(2, 20)
step_counts = st.integers(1, 6)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """From microseconds to minutes, so that each of t, a and N / B is at times the one that matters."""
    return Cluster(
        gradient_s=draw(st.floats(1e-3, 1.0)),
        bandwidth=draw(st.floats(1e6, 1e10)),
        latency_s=draw(st.one_of(st.just(0.0), st.floats(1e-6, 0.1))),
        message_bytes=draw(st.floats(1e2, 1e8)),
    )


def parameters(cluster: Cluster) -> tuple[float, float, float]:
    """t, a and N / B, in seconds."""
    assert cluster.message_bytes is not None
    assert cluster.gradient_s is not None
    return cluster.gradient_s, cluster.latency_s, cluster.message_bytes * 8 / cluster.bandwidth


def buckets_of(cluster: Cluster) -> int:
    assert cluster.message_bytes is not None
    return bucket_count(cluster.message_bytes)


def all_reduce(collective: str, p: int, a: float, n: float) -> float:
    """n: N / B."""
    if p == 1:
        return 0.0
    rounds, whole = floor(log2(p)), 2 ** floor(log2(p))
    surplus = 2 * (a + n) if p > whole else 0.0
    times = {
        "ring": 2 * (p - 1) * (a + n / p),
        "halving_doubling": 2 * rounds * a + 2 * (whole - 1) / whole * n + surplus,
        "tree": 2 * ceil(log2(p)) * (a + n),
    }
    if collective == "best":
        return min(times.values())
    others = {
        "chain": 2 * (p - 1) * (a + n),
        "star": 2 * a + 2 * p * n,
        "store": 2 * a + 2 * n,
        "hierarchical": times["ring"],
    }
    return (times | others)[collective]


def overlapped(collective: str, p: int, t: float, a: float, n: float, buckets: int) -> float:
    """max(t + T_c, t / 3 + 2 t / (3 c) + c T_c): the backward pass is the last two thirds of a gradient, and of c
    buckets each is reduced in T_c when it is ready, after the one before it."""
    part = all_reduce(collective, p, a, n / buckets)
    return max(t + part, t / 3 + 2 * t / (3 * buckets) + buckets * part)


@pytest.mark.parametrize("collective", COLLECTIVES)
@few
@given(cluster=clusters(), p=several_nodes, steps=step_counts)
def test_sync_takes_gradient_plus_all_reduce_which_overlap_hides_behind_the_backward_pass(
    close: Close, collective: str, cluster: Cluster, p: int, steps: int
) -> None:
    """In as many buckets as real workers make of a gradient of N bytes."""
    t, a, n = parameters(cluster)
    cluster = dataclasses.replace(cluster, collective=collective)
    close(timed(Sync(overlap=False), cluster, p, steps).time_s, steps * (t + all_reduce(collective, p, a, n)))
    expected = steps * overlapped(collective, p, t, a, n, buckets_of(cluster))
    close(timed(Sync(overlap=True), cluster, p, steps).time_s, expected)


@few
@given(cluster=clusters(), p=several_nodes, tau=st.integers(1, 4), rounds=st.integers(1, 3))
def test_a_round_of_diloco_hides_its_mean_behind_the_last_backward_pass(
    close: Close, cluster: Cluster, p: int, tau: int, rounds: int
) -> None:
    """(tau - 1) t + max(t + T_c, t / 3 + 2 t / (3 c) + c T_c); every byte of it counts once."""
    t, a, n = parameters(cluster)
    last = overlapped("best", p, t, a, n, buckets_of(cluster))
    hidden = timed(DiLoCo(tau=tau, overlap="backward"), cluster, p, tau * rounds)
    close(hidden.time_s, rounds * ((tau - 1) * t + last))
    plain = timed(
        DiLoCo(tau=tau), dataclasses.replace(cluster, collective=hidden.machine.all_reduces.taken), p, tau * rounds
    )
    sent = [run.machine.network.bytes_sent(run.time_s) for run in (hidden, plain)]
    assert sent[0] == pytest.approx(sent[1])


class Delayed(Algorithm):
    """One all-reduce with overlap, which worker i begins i gradients late, behind one that it begins at once."""

    async def train(self, worker: Worker) -> None:
        first = worker.start(worker.all_reduce_mean(worker.x.clone()))
        for _ in range(worker.rank):
            await worker.gradient()
        worker.step(await worker.mean_gradient())
        await first


@few
@given(cluster=clusters(), factors=st.lists(st.floats(0.2, 8), min_size=2, max_size=6))
def test_each_bucket_is_reduced_when_it_is_ready_everywhere_and_those_before_it_are_done(
    close: Close, cluster: Cluster, factors: list[float]
) -> None:
    """Whoever begins when and however long a gradient takes: bucket by bucket."""
    t, a, n = parameters(cluster)
    p, c = len(factors), buckets_of(cluster)
    cluster = dataclasses.replace(cluster, slow_nodes=dict(enumerate(factors)))
    part, free = all_reduce("best", p, a, n / c), all_reduce("best", p, a, n)
    for bucket in range(1, c + 1):
        share = 1 / 3 + 2 / 3 * bucket / c
        free = max(free, *(t * f * (i + share) for i, f in enumerate(factors))) + part
    close(timed(Delayed(), cluster, p, budget=Budget(steps=1)).time_s, free)


def test_an_all_reduce_runs_at_the_pace_of_the_slowest_port(close: Close) -> None:
    cluster = Cluster(0.01, 1e9, 1e-4, message_bytes=1e6, node_bandwidth={2: 1e8}, collective="ring")
    close(timed(Sync(overlap=False), cluster, 4, 5).time_s, 5 * (0.01 + all_reduce("ring", 4, 1e-4, 0.08)))


def test_the_centre_of_a_star_has_a_port_of_its_own(close: Close) -> None:
    """2 a + 2 p N / B at its rate, but no less than a worker needs for its own vector."""
    plain = Cluster(0.01, 1e9, 1e-4, message_bytes=1e6, collective="star")
    for server_bandwidth, way in ((1e8, 4 * 0.08), (1e11, 0.008)):
        cluster = dataclasses.replace(plain, server_bandwidth=server_bandwidth)
        close(timed(Sync(overlap=False), cluster, 4, 5).time_s, 5 * (0.01 + 2e-4 + 2 * way))


def test_a_store_takes_a_vector_once_and_gives_it_to_each_of_the_others(close: Close) -> None:
    """2 a + N / up + (p - 1) N / down for one vector to all others; 2 a + N / up + N / down for a sum."""
    lines = Cluster(0.01, 1e8, 1e-4, receive_bandwidth=4e8, message_bytes=1e6, collective="store")
    for p in (3, 6):
        topology = Complete().build(p, 0)
        run = timed(DPSGD(topology, "after"), lines, p, 5, topology)
        close(run.time_s, 5 * (0.01 + 2e-4 + 0.08 + (p - 1) * 0.02))
        assert run.machine.network.bytes_sent(run.time_s) == pytest.approx([5e6] * p + [5 * p * (p - 1) * 1e6])
        assert run.summary()["bytes_sent_max_server"] == 5 * p * (p - 1) * 1e6
    close(timed(Sync(overlap=False), lines, 6, 5).time_s, 5 * (0.01 + 2e-4 + 0.08 + 0.02))


DEGREES: list[tuple[TopologyConfig, int, int]] = [
    (Ring(), 2, 1),
    (Ring(), 17, 2),
    (Complete(), 5, 4),
    (Torus(), 6, 3),
    (Hypercube(), 16, 4),
    (Star(), 6, 5),
    (Exponential(), 11, 4),
    (OnePeerExponential(), 6, 1),
]


@pytest.mark.parametrize(("graph", "p", "degree"), DEGREES)
@few
@given(cluster=clusters(), steps=step_counts, gradient=st.sampled_from(["before", "after", "first"]))
def test_dpsgd_exchanges_with_k_neighbours_in_a_plus_k_n_over_b(
    close: Close, graph: TopologyConfig, p: int, degree: int, cluster: Cluster, steps: int, gradient: str
) -> None:
    """A step takes max(t, a + k N / B), and t + a + k N / B where the gradient follows the mixing. k is the largest
    degree: around a star everybody waits for the hub."""
    t, a, n = parameters(cluster)
    topology = graph.build(p, 0)
    exchange = a + degree * n
    expected = steps * (max(t, exchange) if gradient == "before" else t + exchange)
    close(timed(DPSGD(topology, gradient), cluster, p, steps, topology).time_s, expected)


@pytest.mark.parametrize(("graph", "p", "k"), [(OnePeerExponential(), 8, 1), (Exponential(), 6, 3), (Star(), 4, 3)])
@few
@given(cluster=clusters(), overlap=st.integers(0, 3), rounds=step_counts)
def test_pushed_shares_take_a_plus_k_n_over_b_after_a_gradient_or_beside_several(
    close: Close, graph: TopologyConfig, p: int, k: int, cluster: Cluster, overlap: int, rounds: int
) -> None:
    """max(overlap t, a + k N / B) for overlap steps of sgp, and t + a + k N / B for each without."""
    t, a, n = parameters(cluster)
    topology, exchange = graph.build(p, 0), a + k * n
    expected = rounds * (max(overlap * t, exchange) if overlap else t + exchange)
    close(timed(SGP(topology, overlap), cluster, p, rounds * max(overlap, 1), topology).time_s, expected)


@few
@given(cluster=clusters(), p=st.integers(2, 9), factor=st.floats(1, 6), steps=st.integers(1, 8))
def test_a_delay_travels_one_hop_a_step(close: Close, cluster: Cluster, p: int, factor: float, steps: int) -> None:
    """T_k(i) = max over j in N(i) and i of T_k-1(j), plus the exchange, against T_k-1(i) + t_i: dpsgd on a ring where
    one node is slow."""
    t, a, _ = parameters(cluster)
    # one message a port at a time, or a late neighbour's would find the port free and shorten the exchange
    cluster = dataclasses.replace(cluster, slow_nodes={0: factor}, bandwidth=float("inf"))
    topology = Ring().build(p, 0)
    expected = [0.0] * p
    times = step_times(DPSGD(topology), cluster, p, steps, topology=topology)
    for step in range(steps):
        begun = list(expected)
        for i in range(p):
            arrived = max(begun[j] + a for j in topology.sources(i))
            expected[i] = max(begun[i] + t * (factor if i == 0 else 1), arrived)
        for i in range(p):
            close(times[i][step], expected[i])


class RoundGossip(Gossip):
    """With the next worker in place of a random one: everybody has one partner."""

    def random_peer(self, worker: Worker) -> int:
        return (worker.rank + 1) % worker.nodes


@few
@given(cluster=clusters(), p=several_nodes, tau=st.integers(1, 3), rounds=step_counts)
def test_a_gossip_pull_takes_two_latencies_and_a_message_and_a_push_waits_for_the_one_before(
    close: Close, cluster: Cluster, p: int, tau: int, rounds: int
) -> None:
    """tau t + 2 a + N / B for tau steps, while everybody pulls from somebody else; from one push to the next
    max(tau t, a + N / B), and the last one is not waited for."""
    t, a, n = parameters(cluster)
    pull, push = (timed(RoundGossip(tau=tau, mode=mode), cluster, p, rounds * tau) for mode in ("pull", "push"))
    close(pull.time_s, rounds * (tau * t + 2 * a + n))
    close(push.time_s, (rounds - 1) * max(tau * t, a + n) + tau * t)


@few
@given(cluster=clusters(), p=st.integers(1, 20), k=st.integers(1, 6))
def test_p_clients_of_k_servers_are_served_one_after_the_other(close: Close, cluster: Cluster, p: int, k: int) -> None:
    """The q-th of p simultaneous calls, send N and get N, is done at 2 a + 2 N / B + (q - 1) N / (k B).

    With one server that is 2 a + (q + 1) N / B. The first call takes what one undisturbed call takes whatever k is,
    because the client's own port carries all of N; each further one waits for one shard of its predecessor."""
    t, a, n = parameters(cluster)
    times = step_times(EASGD(tau=1, servers=k), cluster, p, 1 if p == 1 else 2)
    for q, found in enumerate(sorted(worker[0] for worker in times if worker), start=1):
        close(found, 2 * a + 2 * n + (q - 1) * n / k + t)


@few
@given(cluster=clusters(), p=st.integers(1, 20), slower=st.floats(0.05, 1))
def test_a_server_with_a_slow_port_sets_the_pace(close: Close, cluster: Cluster, p: int, slower: float) -> None:
    """2 a + (q + 1) N / B_server."""
    t, a, n = parameters(cluster)
    cluster = dataclasses.replace(cluster, server_bandwidth=cluster.bandwidth * slower)
    times = step_times(EASGD(tau=1), cluster, p, 1 if p == 1 else 2)
    for q, found in enumerate(sorted(worker[0] for worker in times if worker), start=1):
        close(found, 2 * a + (q + 1) * n / slower + t)


@few
@given(cluster=clusters(), p=several_nodes, tau=st.integers(1, 4), rounds=step_counts)
def test_a_centre_that_all_move_at_once_or_in_turn(
    close: Close, cluster: Cluster, p: int, tau: int, rounds: int
) -> None:
    """tau t and an all-reduce in every round. In turn max(tau t, p (a + N / B)); the last worker begins p - 1 messages
    later than the first."""
    t, a, n = parameters(cluster)
    turns = timed(EASGD("round_robin", tau=tau), cluster, p, rounds * tau)
    close(turns.time_s, (p - 1) * (a + n) + (rounds - 1) * max(tau * t, p * (a + n)) + tau * t)
    found = timed(EASGD("sync", tau=tau), cluster, p, rounds * tau)
    close(found.time_s, rounds * (tau * t + all_reduce("best", p, a, n)))


@few
@given(cluster=clusters(), k=st.integers(1, 6), n_push=st.integers(1, 3), n_fetch=st.integers(1, 3))
def test_an_unloaded_fetch_and_push(close: Close, cluster: Cluster, k: int, n_push: int, n_fetch: int) -> None:
    """A fetch is a request of no size and N back: 2 a + N / B. A push is N and an acknowledgement: the same."""
    t, a, n = parameters(cluster)
    steps = 6
    found = timed(Downpour(n_push=n_push, n_fetch=n_fetch, servers=k), cluster, 1, steps)
    close(found.time_s, steps * t + (ceil(steps / n_fetch) + steps // n_push) * (2 * a + n))


@few
@given(cluster=clusters(), p=st.integers(1, 20))
def test_p_simultaneous_fetches_and_the_pushes_behind_them(close: Close, cluster: Cluster, p: int) -> None:
    """The q-th fetch arrives at 2 a + q N / B. A gradient later its push follows the one before it without a gap."""
    t, a, n = parameters(cluster)
    times = step_times(Downpour(), cluster, p, 1 if p == 1 else 2)
    first = sorted(worker[0] for worker in times if worker)
    for q, found in enumerate(first, start=1):
        close(found, 4 * a + (q + 1) * n + t)


@few
@given(cluster=clusters(), p=several_nodes, beta=st.integers(1, 6), cycles=step_counts)
def test_a_cycle_without_delay_hides_the_all_reduce(
    close: Close, cluster: Cluster, p: int, beta: int, cycles: int
) -> None:
    """max(beta t, T), and the share max(0, T - beta t) / max(beta t, T) of it is idle."""
    t, a, n = parameters(cluster)
    reduce = all_reduce("best", p, a, n)
    found = timed(DelayFree(tau=2 * beta), cluster, p, cycles * beta)
    close(found.time_s, cycles * max(beta * t, reduce))
    idle = max(0.0, reduce - beta * t) / max(beta * t, reduce)
    summary = found.summary()
    assert summary["idle_fraction_mean"] == pytest.approx(idle, abs=1e-9)
    assert summary["idle_fraction_max"] == pytest.approx(idle, abs=1e-9)


@few
@given(cluster=clusters(), p=several_nodes)
def test_who_waits_is_idle(cluster: Cluster, p: int) -> None:
    """Idle is all but the gradients: T / (t + T) for sync without overlap, more for who waits for a slow one."""
    t, a, n = parameters(cluster)
    slow = dataclasses.replace(cluster, slow_nodes={0: 3.0})
    step = 3 * t + all_reduce("best", p, a, n)
    summary = timed(Sync(overlap=False), slow, p, 3).summary()
    assert summary["idle_fraction_max"] == pytest.approx(1 - t / step, abs=1e-9)
    mean = ((1 - 3 * t / step) + (p - 1) * (1 - t / step)) / p
    assert summary["idle_fraction_mean"] == pytest.approx(mean, abs=1e-9)


@few
@given(cluster=clusters(), p=several_nodes, v=st.floats(1e-4, 0.1), steps=step_counts)
def test_received_vectors_lengthen_the_next_gradient(
    close: Close, cluster: Cluster, p: int, v: float, steps: int
) -> None:
    """By v each: two of them with two neighbours, one after a pull, an all-reduce or a server's answer."""
    t, a, n = parameters(cluster)
    cluster = dataclasses.replace(cluster, receive_overhead_s=v)
    topology = Ring().build(p, 0)
    degree = len(topology.sources(0))
    exchange = a + degree * n
    found = timed(DPSGD(topology), cluster, p, steps, topology)
    close(found.time_s, max(t, exchange) + (steps - 1) * max(t + degree * v, exchange))
    pulls = timed(RoundGossip(tau=2, mode="pull"), cluster, p, 2 * steps)
    close(pulls.time_s, steps * (2 * t + 2 * a + n + v))
    calls = timed(EASGD(tau=1, servers=1), cluster, 1, steps)
    close(calls.time_s, steps * (t + v + 2 * a + 2 * n))
    reduce = all_reduce("best", p, a, n)
    reduces = timed(DelayFree(tau=2), cluster, p, steps)
    close(reduces.time_s, max(t, reduce) + (steps - 1) * max(t + v, reduce))


def test_a_server_beside_a_worker_shares_its_port() -> None:
    """Worker 0's own calls stay within its node and take no time; the others' pass through the port of node 0."""
    t, n, a, transfer = 0.3, 1e6, 0.01, 0.5
    cluster = Cluster(t, 8 * n / transfer, a, message_bytes=n, servers_colocated=True)
    alone = timed(EASGD(tau=1), cluster, nodes=1, steps=10)
    assert alone.time_s == pytest.approx(10 * t, rel=1e-9)
    assert sum(alone.machine.network.bytes_sent(alone.time_s)) == 0
    first, second = step_times(EASGD(tau=1), cluster, nodes=2, steps=10)
    assert len(second) >= 3
    assert first == pytest.approx([(k + 1) * t for k in range(len(first))], rel=1e-9)
    assert second == pytest.approx([(k + 1) * (t + 2 * (a + transfer)) for k in range(len(second))], rel=1e-9)
