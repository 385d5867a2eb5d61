"""AD-PSGD: averages of pairs beside the gradients, against a NumPy loop, D-PSGD, and how fast pairs agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from dsgd.algorithms.adpsgd import ADPSGD
from dsgd.cluster import Cluster
from dsgd.streams import stream
from dsgd.topology import Ring, Star, Torus
from dsgd.worker import Worker
from tests.support import reference
from tests.support.reference import Setting
from tests.support.simulated import assert_close, run

UNEVEN = (1.0, 1.7131, 0.6217, 2.3549)
SPREAD = np.random.default_rng(8).standard_normal((4, 5))
ANYONE = Ring().build(4, 0)  # peers=uniform never asks it


def among(s: Setting, peers: list[list[int]]) -> Callable[[int], int | None]:
    """Draws from each worker's own stream, in the order of the list."""
    streams = [stream("algorithm", s.seed, rank) for rank in range(s.nodes)]
    return lambda rank: peers[rank][int(streams[rank].integers(len(peers[rank])))] if peers[rank] else None


def anyone(s: Setting) -> Callable[[int], int | None]:
    """Workers of even rank average with any of odd rank."""
    return among(s, [[] if rank % 2 else list(range(1, s.nodes, 2)) for rank in range(s.nodes)])


@pytest.mark.parametrize(
    ("setting", "tau"),
    [
        (Setting(gradient_s=UNEVEN, steps=20), 1),
        (Setting(gradient_s=UNEVEN, latency_s=0.2357, momentum=0.7, nesterov=True, weight_decay=0.05, halve_at=5), 3),
        (Setting(gradient_s=UNEVEN, latency_s=0.9357, steps=30, start=SPREAD), 1),  # averages are left out
        (Setting(nodes=3, gradient_s=UNEVEN[:3], latency_s=0.0791), 1),
    ],
)
def test_agrees_with_a_numpy_loop(setting: Setting, tau: int) -> None:
    path = run(setting, ADPSGD(Ring().build(setting.nodes, 0), tau))
    assert path.marks[-1]["idle_fraction_max"] == 0
    assert_close(path.xs[-1], reference.adpsgd(setting, tau, anyone(setting)), 1e-10)


@pytest.mark.parametrize(
    ("topology", "peers"),
    [
        (Star().build(4, 0), [[1, 2, 3], [], [], []]),
        (Torus().build(4, 0), [[1, 2], [], [], [1, 2]]),
    ],
)
def test_peers_of_a_graph_agree_with_a_numpy_loop(topology, peers: list[list[int]]) -> None:
    """Those of node 0's side average with their neighbours, which are all on the other side."""
    s = Setting(gradient_s=UNEVEN, latency_s=0.0791, steps=20)
    assert_close(run(s, ADPSGD(topology, peers="topology")).xs[-1], reference.adpsgd(s, 1, among(s, peers)), 1e-10)


@dataclass(frozen=True)
class Partner(Sequence[int]):
    """The one worker whose rank differs in a bit that moves on with every step."""

    worker: Worker
    bits: int

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.worker.rank ^ (1 << self.worker.steps % self.bits)


class Matched(ADPSGD):
    """All workers are in pairs, other ones at every step."""

    def passive(self, worker: Worker) -> Sequence[int]:
        bits = worker.nodes.bit_length() - 1
        return () if worker.rank.bit_count() % 2 else Partner(worker, bits)


@pytest.mark.parametrize("nodes", [4, 8])
def test_a_matching_during_each_gradient_is_d_psgd(nodes: int) -> None:
    """Published D-PSGD with W = 1/2 for both of a pair, where all are equally fast."""
    spread = np.random.default_rng(nodes).standard_normal((nodes, 5))
    s = Setting(nodes, latency_s=0.2, momentum=0.7, weight_decay=0.05, start=spread)

    def mixing(step: int) -> np.ndarray:
        partner = [rank ^ (1 << step % (nodes.bit_length() - 1)) for rank in range(nodes)]
        return (np.eye(nodes) + np.eye(nodes)[partner]) / 2

    assert_close(run(s, Matched(ANYONE)).xs, reference.dpsgd(s, mixing), 1e-10)


def test_an_average_that_outlasts_a_gradient_leaves_the_next_one_out() -> None:
    """Two messages of 0.7 s each: every second gradient of 1 s has an average, and none is delayed."""
    s = Setting(nodes=2, steps=20)
    path = run(s, ADPSGD(ANYONE), Cluster(1.0, 8e6 / 0.7, 0.0, message_bytes=1e6))
    last = path.marks[-1]
    assert last["time_s"] == 20
    assert last["idle_fraction_max"] == 0
    assert path.simulation.machine.network.bytes_sent(20) == pytest.approx([10e6, 10e6])


def test_a_graph_that_is_not_bipartite_is_refused() -> None:
    message = r"^peers=topology must have a bipartite graph, got topology=ring with nodes=5$"
    with pytest.raises(ValueError, match=message):
        ADPSGD(Ring().build(5, 0), peers="topology")
