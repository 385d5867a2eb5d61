"""SparseLoCo, `diloco code=sparse`: the largest entries of each chunk in few bits, and memory of what was left out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dsgd.algorithms.diloco import DiLoCo
from dsgd.cluster import Cluster
from dsgd.compression.chunks import ChunkCode
from dsgd.data import Quadratic
from tests.support.reference import Array, Direction, Setting
from tests.support.simulated import assert_close, run
from tests.support.timing import timed

DIM = 7  # two chunks of 3 and one of 1
START = np.tile(np.random.default_rng(8).standard_normal(DIM), (4, 1))
WIDE = Quadratic(dim=DIM)


def said(a: Array, chunk: int, kept: int, bits: int) -> Array:
    """What a code says, place by place."""
    places = []
    for begin in range(0, len(a), chunk):
        order = begin + np.argsort(-np.abs(a[begin : begin + chunk]))
        places += order[:kept].tolist()
    values, q = a[places], np.zeros_like(a)
    if bits == 32:
        q[places] = values
        return q
    width = 6 * values.std(ddof=1) / 2**bits
    edges = values.mean() + width * (np.arange(1, 2**bits) - 2 ** (bits - 1) - 0.5)
    bins = np.digitize(values, edges)
    for place, number in zip(places, bins, strict=True):
        q[place] = values[bins == number].mean()
    return q


PLAIN, HEAVY = Setting(steps=22, data=WIDE, start=START), Setting(steps=20, data=WIDE, momentum=0.8)


@pytest.mark.parametrize(
    ("setting", "chunk", "kept", "bits"), [(HEAVY, 3, 1, 2), (PLAIN, 3, 2, 3), (HEAVY, 7, 2, 32), (PLAIN, 4096, 64, 2)]
)
def test_agrees_with_a_numpy_loop(setting: Setting, chunk: int, kept: int, bits: int) -> None:
    """Where nodes fail, too: a node comes back with its memory of what was left out."""
    tau, olr, beta, decay = 4, 0.9, 0.3, 0.8
    X, direction = setting.xs(), Direction(setting)
    theta, v, E = X[0], np.zeros(DIM), np.zeros_like(X)
    path = [X]
    for k in range(setting.steps):
        X = X - setting.lr * direction(setting.gradients(k, X))
        if (k + 1) % tau == 0 or k + 1 == setting.steps:
            E = decay * E + theta - X
            Q = np.array([said(e, chunk, kept, bits) for e in E])
            E = E - Q
            v = beta * v + Q.mean(axis=0)
            theta = theta - olr * (Q.mean(axis=0) + beta * v)
            X = np.tile(theta, (setting.nodes, 1))
        path.append(X)
    algo = DiLoCo(tau, olr=olr, beta=beta, code="sparse", chunk=chunk, kept=kept, bits=bits, decay=decay)
    simulated = run(setting, algo)
    assert_close(simulated.xs, np.array(path), 1e-10)
    failures = {"every_s": 20.0, "repair_s": 5.0}
    failing = run(setting, algo, Cluster(1.0, 1e3, 0.2, jitter=0.3, failures=failures), mark_samples=setting.samples)
    assert failing.simulation.summary()["failures"] > 0
    assert (failing.xs[-1] == simulated.xs[-1]).all()


def test_the_code_of_the_paper_has_one_in_146_of_the_bytes() -> None:
    """64 entries of 4096, 12 bits for the place of each and 2 for its value: 14 x 64 bits in place of 32 x 4096."""
    p, d, rounds = 5, 4096 * 100, 3
    code = ChunkCode(d, 4096, 64, 2)
    assert d / code.packed_size(4) == pytest.approx(4096 * 32 / (64 * 14), rel=0.002)
    a = torch.from_numpy(np.random.default_rng(0).standard_normal(d, dtype=np.float32))
    packed = code.encode(a)
    assert len(packed) == code.packed_size(4)
    q = code.decode(packed)
    assert q.count_nonzero() == 6400
    assert 2 < len(q.unique()) <= 5  # zero, and four values at most
    cluster = Cluster(1.0, 8e6, 0.0, message_bytes=1e6)
    simulation = timed(DiLoCo(2, code="sparse"), cluster, p, 2 * rounds, data=Quadratic(dim=d), precision="fp32")
    sent = simulation.machine.network.bytes_sent(simulation.time_s)
    assert sent == pytest.approx([rounds * (p - 1) * 1e6 * code.packed_size(4) / d] * p, rel=1e-9)


def test_an_entry_beyond_all_bins_is_in_the_last_one() -> None:
    """Of 64 entries one is 8 standard deviations from the mean; the bins cover 3 on each side."""
    a = torch.zeros(64, dtype=torch.float64)
    a[5] = 100.0
    for sign in (1, -1):
        code = ChunkCode(64, 64, 64, 2)
        assert torch.equal(code.decode(code.encode(sign * a)), sign * a)
