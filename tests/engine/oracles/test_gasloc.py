"""GASLoC: gossip with DiLoCo's outer optimiser, and the methods that it becomes with some options."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from dsgd.algorithms.diloco import DiLoCo
from dsgd.algorithms.dpsgd import DPSGD
from dsgd.algorithms.gasloc import GASLoC
from dsgd.algorithms.noloco import NoLoCo
from dsgd.cluster import Cluster
from dsgd.data.quadratic import Quadratic
from dsgd.streams import stream
from dsgd.topology import Chain, Complete, OnePeerExponential, Ring, Star, TopologyConfig, Torus
from dsgd.worker import Algorithm
from tests.support import reference
from tests.support.reference import Array, Setting
from tests.support.simulated import assert_close, run
from tests.support.timing import step_times, timed

SPREAD = np.random.default_rng(8).standard_normal((6, 5))
OWN_CURVATURES = Quadratic(dim=5, curvature_spread=0.7)


def configured(graph: TopologyConfig, nodes: int, tau: int = 3, **options: Any) -> GASLoC:
    return GASLoC(graph.build(nodes, 0), tau, **options)


def drawn(peers: str, order: tuple[int, ...] | list[int]) -> Array:
    """W of random peers: by an order of the workers, pairs from its beginning, or a ring along it."""
    p = len(order)
    W = np.eye(p)
    if peers == "one" or p == 2:
        for i, j in zip(order[::2], order[1::2], strict=False):
            W[[i, i, j, j], [i, j, i, j]] = 1 / 2
        return W
    for i, j in zip(order, (*order[1:], order[0]), strict=True):
        W[i, j] = W[j, i] = 1
    return W / 3


def seeded(peers: str, nodes: int, purpose: str = "pairs") -> Any:
    return lambda turn: drawn(peers, stream(purpose, 5, turn).permutation(nodes).tolist())


@pytest.mark.parametrize(
    ("setting", "graph", "options"),
    [
        (Setting(steps=14, nodes=5, start=SPREAD[:5]), Ring(), {"alpha": 0.7}),
        (Setting(steps=13, nodes=6, momentum=0.8, nesterov=True, halve_at=6), Torus(), {"alpha": 1.3, "overlap": 0.4}),
        (Setting(steps=9, weight_decay=0.05, start=SPREAD[:4]), Star(), {"alpha": 0.0, "overlap": 1.0}),
    ],
)
def test_agrees_with_a_numpy_loop_over_a_graph(setting: Setting, graph: TopologyConfig, options: Any) -> None:
    algo = configured(graph, setting.nodes, eta=0.8, gamma=0.6, **options)
    W = algo.topology.matrix()
    expected = reference.gasloc(setting, 3, 0.8, options["alpha"], 0.6, lambda _: W, options.get("overlap", 0.0))
    assert_close(run(setting, algo).xs, expected)


@pytest.mark.parametrize("peers", ["one", "two"])
@pytest.mark.parametrize("nodes", [2, 3, 4, 5])
def test_agrees_with_a_numpy_loop_with_random_peers(nodes: int, peers: str) -> None:
    """Which differ between the two mixings of a round."""
    s = Setting(steps=13, nodes=nodes, start=SPREAD[:nodes])
    path = run(s, configured(Ring(), nodes, 2, eta=0.8, alpha=0.9, gamma=0.6, peers=peers, overlap=0.5, seed=5))
    mixings = seeded(peers, nodes), seeded(peers, nodes, "overlapped pairs")
    assert_close(path.xs, reference.gasloc(s, 2, 0.8, 0.9, 0.6, mixings[0], 0.5, mixings[1]))


@pytest.mark.parametrize("alpha", [0.0, 0.9])
def test_late_messages_change_times_alone(alpha: float) -> None:
    """Also those that arrive after the local steps of their round, which take 3 s."""
    s = Setting(steps=10, nodes=5, start=SPREAD[:5])
    algo = configured(Ring(), 5, alpha=alpha, overlap=0.5)
    late, early = run(replace(s, latency_s=7.5), algo), run(s, algo)
    assert late.marks[-1]["time_s"] > early.marks[-1]["time_s"] + 10
    assert np.array_equal(late.xs[-1], early.xs[-1])


@pytest.mark.parametrize(
    "options",
    [
        {"graph": Complete()},
        {"graph": Ring(), "alpha": 0.6},
        {"graph": Star(), "overlap": 0.7},
        {"graph": Chain(), "alpha": 0.0, "overlap": 1.0},
        {"graph": Ring(), "peers": "one"},
        {"graph": Ring(), "peers": "two", "overlap": 1.0},
    ],
)
def test_the_mean_goes_the_way_of_diloco_whatever_the_graph(options: Any) -> None:
    """With Nesterov's momentum, where curvatures are equal."""
    s = Setting(steps=13, nodes=5, momentum=0.5, start=np.tile(SPREAD[0], (5, 1)))
    path = run(s, configured(nodes=5, eta=0.8, gamma=0.6, seed=2, **options))
    assert_close(path.mean, run(s, DiLoCo(3, "nesterov", olr=0.8, beta=0.6)).mean)
    assert np.abs(path.xs[-1] - path.mean[-1]).max() > 1e-3


def test_workers_with_the_same_gradients_are_diloco() -> None:
    for s in (Setting(nodes=1, steps=13), Setting(steps=13, data=Quadratic(dim=5, spread=0.0, noise=0.0))):
        path = run(s, configured(Ring(), s.nodes, eta=0.8, gamma=0.6))
        assert_close(path.xs, run(s, DiLoCo(3, "nesterov", olr=0.8, beta=0.6)).xs)


def assert_same(s: Setting, algo: GASLoC, other: Algorithm, latency_s: float = 0.0) -> None:
    s = replace(s, latency_s=latency_s)
    assert_close(run(s, algo).xs, run(s, other).xs)


def test_reduces_to_four_methods_exactly() -> None:
    """Where curvatures differ as well: DiLoCo without momentum in a complete graph, NoLoCo without its own in pairs,
    D-PSGD in both orders."""
    s = Setting(steps=13, nodes=5, data=OWN_CURVATURES, momentum=0.5, start=np.tile(SPREAD[0], (5, 1)))
    assert_same(s, configured(Complete(), 5, eta=0.8, gamma=0.0), DiLoCo(3, "nesterov", olr=0.8, beta=0.0))
    apart = replace(s, start=SPREAD[:5])
    pairs = configured(Ring(), 5, eta=1.0, gamma=0.0, peers="one", seed=4)
    assert_same(apart, pairs, NoLoCo(3, olr=1.0, beta=0.0, gamma=1.0, seed=4), latency_s=0.3)
    first = configured(Ring(), 5, 1, eta=1.0, gamma=0.0)
    assert_same(apart, first, DPSGD(first.topology, "first"))
    assert_same(apart, replace(first, alpha=0.0, overlap=1.0), DPSGD(first.topology, "before"), latency_s=0.3)


def slowest_wave(p: int) -> tuple[Array, float]:
    """The slowest mode of a ring, [p], and 1 - its eigenvalue."""
    return np.cos(2 * np.pi * np.arange(p) / p), 2 / 3 * (1 - np.cos(2 * np.pi / p))


def root(gap: float, gamma: float, alpha: float = 1.0, overlap: float = 0.0) -> float:
    """The larger modulus of the roots of a mode, without gradients."""
    r = 1 - overlap * gap
    return float(np.abs(np.roots([1.0, -r * (1 - alpha * gap + gamma), r * gamma])).max())


def shrinkage(p: int, rounds: int, **options: Any) -> float:
    """How far the distances of a ring's workers have shrunk after so many rounds without gradients."""
    wave, _ = slowest_wave(p)
    s = Setting(nodes=p, steps=rounds, lr=0.0, data=Quadratic(dim=1), start=wave[:, None])
    path = run(s, configured(Ring(), p, 1, **options), mark_samples=rounds * p)
    return float(np.linalg.norm(path.xs[-1] - path.mean[-1]) / np.linalg.norm(wave))


@pytest.mark.parametrize("p", [4, 8, 16, 32, 64])
def test_momentum_needs_the_square_root_of_the_rounds_on_a_ring(p: int) -> None:
    """In a round the slowest mode shrinks by 1 - 1 / chi without momentum, at best by z = 1 - 1 / sqrt(chi) with it, a
    double root: to (1 + c k) z^k after k rounds, with a first round as without momentum."""
    wave, gap = slowest_wave(p)
    assert np.allclose(Ring().build(p, 0).matrix() @ wave, (1 - gap) * wave, rtol=0, atol=1e-14)
    z = 1 - gap**0.5
    assert root(gap, 0.0) == pytest.approx(1 - gap, rel=1e-12)
    assert root(gap, z**2) == pytest.approx(z, rel=1e-6)  # a double root: half of the digits
    rounds = 9
    assert shrinkage(p, rounds, gamma=0.0) == pytest.approx((1 - gap) ** rounds, rel=1e-9)
    assert shrinkage(p, rounds, gamma=z**2) == pytest.approx((1 + rounds * (1 - gap - z) / z) * z**rounds, rel=1e-9)


def test_the_rounds_to_consensus_grow_with_the_square_root_of_the_condition_number() -> None:
    """From rings of 16 to rings of 64 chi grows 15.9 times, and the logarithm of the root as much, or its root."""
    (_, small), (_, large) = slowest_wave(16), slowest_wave(64)
    plain = np.log(root(small, 0.0)) / np.log(root(large, 0.0))
    fast = np.log(root(small, (1 - small**0.5) ** 2)) / np.log(root(large, (1 - large**0.5) ** 2))
    assert plain == pytest.approx(small / large, rel=0.03)
    assert fast == pytest.approx((small / large) ** 0.5, rel=0.15)


@pytest.mark.parametrize(("alpha", "overlap"), [(1.0, 0.0), (0.0, 1.0), (0.8, 0.0), (0.5, 0.7)])
def test_the_two_mixings_contract_by_the_product_of_their_factors(alpha: float, overlap: float) -> None:
    _, gap = slowest_wave(6)
    both = (1 - overlap * gap) * (1 - alpha * gap)
    assert shrinkage(6, 8, gamma=0.0, alpha=alpha, overlap=overlap) == pytest.approx(both**8, rel=1e-12)
    assert root(gap, 0.0, alpha, overlap) == pytest.approx(both, rel=1e-12)


def second_moments(peers: str, p: int, alpha: float, gamma: float) -> float:
    """The spectral radius of the mean over all orders of the workers of what a round makes of the second moments of
    distances, without gradients."""
    centred = np.kron(np.eye(2), np.eye(p) - 1 / p)
    mean = np.zeros((4 * p * p, 4 * p * p))
    orders = list(permutations(range(p)))
    for order in orders:
        gossip = np.eye(p) + alpha * (drawn(peers, order) - np.eye(p))
        T = centred @ np.block([[gossip + gamma * np.eye(p), -gamma * np.eye(p)], [np.eye(p), np.zeros((p, p))]])
        mean += np.kron(T, T) / len(orders)
    return float(np.abs(np.linalg.eigvals(mean)).max())


@pytest.mark.parametrize(("peers", "p"), [("one", 4), ("one", 5), ("two", 4), ("two", 5), ("two", 2)])
def test_distances_shrink_in_mean_square_below_the_limit_of_random_peers(peers: str, p: int) -> None:
    algo = configured(Ring(), p, gamma=0.4, peers=peers)
    assert second_moments(peers, p, 0.99 * algo.limit(p), 0.4) < 1 < second_moments(peers, p, 1.01 * algo.limit(p), 0.4)


@pytest.mark.parametrize("graph", [Ring(), Star(), Complete()])
def test_distances_shrink_below_the_limit_of_a_graph(graph: TopologyConfig) -> None:
    algo = configured(graph, 6, gamma=0.4)
    most = 1 - algo.topology.least_eigenvalue
    assert root(most, 0.4, 0.99 * algo.limit(6)) < 1 < root(most, 0.4, 1.01 * algo.limit(6))


@pytest.mark.parametrize("overlap", [0.2, 0.6, 1.0])
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.5])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.9])
def test_with_overlap_a_mode_is_stable_if_its_roots_are(overlap: float, alpha: float, gamma: float) -> None:
    algo = configured(Ring(), 8, alpha=alpha, gamma=gamma, overlap=overlap)
    for eigenvalue in (-1 / 3, 0.2, 0.7):
        l, radius = 1 - eigenvalue, 0.0  # noqa: E741
        for a in np.linspace(0, 1, 21):
            r = 1 - overlap * l - algo.eta * a
            radius = max(radius, *np.abs(np.roots([1, -r * (1 - alpha * l + gamma), r * gamma])))
        assert algo.is_stable(eigenvalue) == (radius < 1)


def test_warnings_name_the_limits() -> None:
    ring = configured(Ring(), 8)
    assert ring.warning(8, 0.0) is None
    assert replace(ring, alpha=2.25).warning(8, 0.0) == (
        "algo.alpha=2.25 lets the workers drift apart: with algo.gamma=0.5 and topology=ring it must be < 2.25"
    )
    assert replace(ring, gamma=0.9, peers="one").warning(8, 0.0) == (
        "algo.alpha=1 lets the workers drift apart: with algo.gamma=0.9 and nodes=8 it must be < 0.4361"
    )
    assert replace(ring, eta=1.6).warning(8, 0.0) == (
        "algo.eta=1.6 is too much where rounds are long: with algo.gamma=0.5 at most 1.5 is stable"
    )
    assert DiLoCo(olr=1.6, beta=0.5).limit(8) == 1.5
    assert "mix nothing" in str(replace(ring, alpha=0.0).warning(8, 0.0))
    assert replace(ring, alpha=0.0, overlap=0.5, gamma=0.0).warning(8, 0.0) is None
    assert replace(ring, alpha=0.0, overlap=1.0).warning(8, 0.0) == (
        "algo.overlap=1 lets the workers drift apart where rounds are long: lower algo.overlap or algo.gamma"
    )
    assert replace(ring, alpha=0.0, overlap=1.0, peers="one").warning(8, 0.0) is None  # not on the ring
    assert configured(Ring(), 1, alpha=0.0).warning(1, 0.0) is None
    replace(ring, topology=OnePeerExponential().build(8, 0), peers="one").check(8, 0.1, 0.0)
    with pytest.raises(ValueError, match=r"algo=gasloc needs an undirected topology .* got topology=one_peer"):
        configured(OnePeerExponential(), 8).check(8, 0.1, 0.0)


@pytest.mark.parametrize(
    ("alpha", "overlap", "latency_s", "seconds"),
    [(1.0, 0.0, 0.5, 4.0), (1.0, 1.0, 0.5, 4.0), (0.0, 1.0, 0.5, 2.0), (0.0, 1.0, 2.5, 4.0), (1.0, 1.0, 2.5, 8.0)],
)
def test_time_and_bytes_of_a_round_are_the_closed_form(
    alpha: float, overlap: float, latency_s: float, seconds: float
) -> None:
    """Two local steps of 1 s; two messages of 0.75 s each leave one after the other."""
    algo, N, rounds = configured(Ring(), 5, 2, alpha=alpha, overlap=overlap), 1e6, 3
    simulation = timed(algo, Cluster(1.0, 8e6 / 0.75, latency_s, message_bytes=N), 5, 2 * rounds)
    assert simulation.time_s == pytest.approx(rounds * seconds, rel=1e-9)
    sent = simulation.machine.network.bytes_sent(simulation.time_s)
    assert sent == pytest.approx([rounds * 2 * N * ((alpha > 0) + (overlap > 0))] * 5, rel=1e-9)


def test_a_slow_worker_holds_up_its_partners_alone() -> None:
    """A round of 2 steps of 1 s, or 10 s on worker 0; messages take 0.5 s."""
    algo, rounds = configured(Ring(), 4, 2, peers="one", seed=1), 6
    times = step_times(algo, Cluster(1.0, 8e6 / 0.25, 0.25, slow_nodes={0: 5.0}, message_bytes=1e6), 4, 2 * rounds + 1)
    ready = [0.0] * 4
    for turn in range(rounds):
        ready = [now + (10.0 if rank == 0 else 2.0) for rank, now in enumerate(ready)]
        order = stream("pairs", 1, turn).permutation(4).tolist()
        for i, j in (order[:2], order[2:]):
            ready[i], ready[j] = max(ready[i], ready[j] + 0.5), max(ready[j], ready[i] + 0.5)
    assert [each[2 * rounds] for each in times] == pytest.approx([ready[0] + 5, *(now + 1 for now in ready[1:])])
