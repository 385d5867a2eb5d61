"""AD-PSGD: averages of pairs beside the gradients, against a NumPy loop."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dsgd.algorithms.adpsgd import ADPSGD
from dsgd.streams import stream
from dsgd.topology import Ring, Star, Torus
from tests.support import reference
from tests.support.reference import Setting
from tests.support.simulated import assert_close, run

UNEVEN = (1.0, 1.7131, 0.6217, 2.3549)
SPREAD = np.random.default_rng(8).standard_normal((4, 5))


def among(s: Setting, peers: list[list[int]]) -> Callable[[int], int | None]:
    """Draws from each worker's own stream, in the order of the list."""
    streams = [stream("algorithm", s.seed, rank) for rank in range(s.nodes)]
    return lambda rank: peers[rank][int(streams[rank].integers(len(peers[rank])))] if peers[rank] else None


def anyone(s: Setting) -> Callable[[int], int | None]:
    """Workers of even rank average with any of odd rank."""
    return among(s, [[] if rank % 2 else list(range(1, s.nodes, 2)) for rank in range(s.nodes)])


@pytest.mark.parametrize(
    "setting",
    [
        Setting(gradient_s=UNEVEN, steps=20),
        Setting(gradient_s=UNEVEN, latency_s=0.2357, momentum=0.7, nesterov=True, weight_decay=0.05, halve_at=5),
        Setting(gradient_s=UNEVEN, latency_s=0.9357, steps=30, start=SPREAD),  # averages are left out
        Setting(nodes=3, gradient_s=UNEVEN[:3], latency_s=0.0791),
    ],
)
def test_agrees_with_a_numpy_loop(setting: Setting) -> None:
    path = run(setting, ADPSGD(Ring().build(setting.nodes, 0)))
    assert path.marks[-1]["idle_fraction_max"] == 0
    assert_close(path.xs[-1], reference.adpsgd(setting, 1, anyone(setting)), 1e-10)


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
