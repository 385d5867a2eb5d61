"""One worker of every method that can be SGD is SGD, bit for bit: there is nobody to average with."""

from __future__ import annotations

import pytest

from dsgd.algorithms.adpsgd import ADPSGD
from dsgd.algorithms.delayfree import DelayFree
from dsgd.algorithms.dpsgd import DPSGD
from dsgd.algorithms.easgd import EASGD
from dsgd.algorithms.gossip import Gossip
from dsgd.algorithms.localsgd import LocalSGD
from dsgd.algorithms.relay import Relay
from dsgd.algorithms.sgp import SGP
from dsgd.algorithms.sync import Sync
from dsgd.topology import Hypercube, OnePeerExponential, Ring
from dsgd.worker import Algorithm
from tests.support.reference import Setting
from tests.support.simulated import run

ALONE = Ring().build(1, 0)


@pytest.mark.parametrize(
    "algo",
    [
        Sync(overlap=False),
        ADPSGD(ALONE),
        DelayFree(8),
        DPSGD(Hypercube().build(1, 0)),
        DPSGD(OnePeerExponential().build(1, 0), "after"),
        DPSGD(ALONE, "first"),
        EASGD(tau=1, alpha=0.0),
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
