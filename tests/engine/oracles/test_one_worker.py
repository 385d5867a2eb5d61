"""One worker of every method that can be SGD is SGD, bit for bit: there is nobody to average with."""

from __future__ import annotations

import pytest

from dsgd.algorithms.adpsgd import ADPSGD
from dsgd.algorithms.delayfree import DelayFree
from dsgd.algorithms.downpour import Downpour
from dsgd.algorithms.dpsgd import DPSGD
from dsgd.algorithms.gossip import Gossip
from dsgd.algorithms.localsgd import LocalSGD
from dsgd.algorithms.relay import Relay
from dsgd.algorithms.sgp import SGP
from dsgd.algorithms.sync import Sync
from dsgd.data import Quadratic
from dsgd.topology import Hypercube, OnePeerExponential, Ring
from dsgd.worker import Algorithm
from tests.support.reference import Setting
from tests.support.simulated import assert_close, run

ALONE, RING = Ring().build(1, 0), Ring().build(4, 0)


@pytest.mark.parametrize(
    "algo",
    [
        Sync(overlap=False),
        ADPSGD(ALONE),
        DelayFree(8),
        DPSGD(Hypercube().build(1, 0)),
        DPSGD(OnePeerExponential().build(1, 0), "after"),
        DPSGD(ALONE, "first"),
        Gossip(),
        Gossip(mode="push"),
        LocalSGD(5),
        Relay(ALONE),
        SGP(ALONE),
        SGP(ALONE, 3),
    ],
    ids=repr,
)
def test_one_worker_is_sgd_bit_for_bit(algo: Algorithm) -> None:
    s = Setting(nodes=1, momentum=0.9, weight_decay=0.05)
    assert (run(s, algo).xs == run(s, Sync()).xs).all()


@pytest.mark.parametrize(("n_fetch", "nesterov"), [(5, None), (1, False)])
def test_a_server_with_one_worker_that_pushes_every_step_makes_the_steps_of_sgd(
    n_fetch: int, nesterov: bool | None
) -> None:
    """Its own copy makes the same steps, so it does not matter when it fetches; momentum at the server is its own."""
    s, expected = Setting(nodes=1, weight_decay=0.05), Setting(nodes=1, weight_decay=0.05)
    algo = Downpour(1, n_fetch)
    if nesterov is not None:
        expected = Setting(nodes=1, weight_decay=0.05, momentum=0.8, nesterov=nesterov)
        algo = Downpour(server_optimizer="momentum", server_momentum=0.8)
    assert_close(run(s, algo).c, run(expected, Sync()).xs[:, 0], 0.0 if nesterov is None else 1e-12)


@pytest.mark.parametrize("algo", [ADPSGD(RING), Gossip()], ids=repr)
def test_workers_with_the_same_data_are_sgd_bit_for_bit(algo: Algorithm) -> None:
    """The mean of two equal vectors changes nothing."""
    alone, several = (Setting(nodes, momentum=0.9, data=Quadratic(5, spread=0, noise=0)) for nodes in (1, 4))
    assert (alone.target == several.target).all()
    assert (run(several, algo).xs == run(alone, Sync()).xs).all()
