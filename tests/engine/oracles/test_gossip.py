"""Gossip against NumPy loops, with pulls, pushes, and pushes that are lost; and how fast workers may run apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import exp

import numpy as np
import pytest

from dsgd.algorithms.easgd import EASGD
from dsgd.algorithms.gossip import Gossip
from dsgd.data import Quadratic
from dsgd.streams import stream
from dsgd.worker import Algorithm
from tests.support import reference
from tests.support.reference import Setting
from tests.support.simulated import assert_close, cluster_of, run

UNEVEN = (1.0, 1.7131, 0.6217, 2.3549)
SPREAD = np.random.default_rng(8).standard_normal((4, 5))


def uniform_peers(s: Setting) -> Callable[[int], int]:
    """Any other worker, from the workers' own streams."""
    streams = [stream("algorithm", s.seed, rank) for rank in range(s.nodes)]
    others = [[j for j in range(s.nodes) if j != rank] for rank in range(s.nodes)]
    return lambda rank: others[rank][int(streams[rank].integers(s.nodes - 1))]


NUMPY = {"pull": reference.gossip_pull, "push": reference.gossip_push}


@pytest.mark.parametrize("mode", ["pull", "push"])
@pytest.mark.parametrize(
    ("setting", "tau"),
    [
        (Setting(gradient_s=UNEVEN, latency_s=0.1357, momentum=0.7, weight_decay=0.05, steps=20), 1),
        (Setting(gradient_s=UNEVEN, latency_s=0.5357, momentum=0.7, nesterov=True, halve_at=5), 3),
        (Setting(start=SPREAD), 1),
    ],
)
def test_agrees_with_a_numpy_loop(setting: Setting, mode: str, tau: int):
    """Pull: the mean with what a random peer last published. Push: the mean with each vector that came. Then a step."""
    path = run(setting, Gossip(tau, mode))
    assert [mark["lr"] for mark in path.marks] == [setting.rate(mark["samples"]) for mark in path.marks]
    assert_close(path.xs[-1], NUMPY[mode](setting, tau, uniform_peers(setting)))


def test_a_push_that_waits_for_the_one_before_agrees_with_a_numpy_loop():
    """The fastest worker's messages take longer than its tau steps, the others' do not."""
    # of this seed, nobody's first message reaches the fastest worker at the moment in which it stops waiting
    tau, s = 3, Setting(gradient_s=UNEVEN, latency_s=2.1357, steps=20, seed=4)
    path = run(s, Gossip(tau, "push"))
    assert path.marks[-1]["idle_fraction_max"] > 0.1
    assert_close(path.xs[-1], reference.gossip_push(s, tau, uniform_peers(s)))


@pytest.mark.parametrize(("seed", "tau"), [(0, 1), (1, 3)])  # of these no first messages meet in that way, either
def test_pushes_that_are_lost_agree_with_a_numpy_loop(seed: int, tau: int):
    """A receiver misses an average, and the sender's next push need not wait for the one that is lost."""
    s = Setting(gradient_s=UNEVEN, latency_s=0.9357 * tau, steps=30, seed=seed)
    cluster = replace(cluster_of(s), loss=0.3, collective="ring", collective_messages=True)
    streams = [stream("loss", s.seed, rank) for rank in range(s.nodes)]
    drawn: list[bool] = []

    def lost(rank: int) -> bool:
        drawn.append(bool(streams[rank].random() < 0.3))
        return drawn[-1]

    path = run(s, Gossip(tau, "push"), cluster)
    assert_close(path.xs[-1], reference.gossip_push(s, tau, uniform_peers(s), lost))
    summary = path.simulation.summary()
    assert (summary["messages_lost"], summary["messages_resent"]) == (sum(drawn), 0)
    assert 0 < sum(drawn) < len(drawn) == path.simulation.machine.network.messages


PULLED = 1 / 2  # of the spread is left by a pull: a quarter of one's own, a quarter of a stranger's
# k pushed vectors come before a step, Poisson distributed: own 4^-k, of the j-th last one 4^-j
PUSHED = exp(-3 / 4) + (1 - exp(-3 / 4)) / 3


@pytest.mark.parametrize(
    ("algo", "growth", "runs_apart"),
    [
        (Gossip(mode="pull"), 0.9 / PULLED, False),
        (Gossip(mode="push"), 1.1 / PUSHED, True),
        (EASGD(), 0.99 * (1 - 0.9 / 100) ** -0.2, False),
        (EASGD(), 1.01 * (1 - 0.9 / 100) ** -0.2, True),
    ],
    ids=["pull below", "push above", "easgd below", "easgd above"],
)
def test_how_fast_lone_workers_may_run_apart(algo: Algorithm, growth: float, runs_apart: bool):
    """Let a step multiply squared distances by `growth`. Averaging holds 100 workers together while growth is less than
    1 / 0.5 by pulls, 1 / 0.648 by pushes, and (1 - alpha)^(-2 / tau) = 1.002 by EASGD's spring: as if each were alone.
    docs/explanation/many_workers.md explains why."""
    p, steps = 100, 20
    start = np.random.default_rng(0).standard_normal((p, 50))
    s = Setting(p, steps, 1 + growth**0.5, start=start, data=Quadratic(dim=50, condition=1, spread=0, noise=0))
    xs = run(s, algo, mark_samples=s.samples // 2).xs
    _, halfway, end = ((xs - xs.mean(axis=1, keepdims=True)) ** 2).sum(axis=(1, 2))
    assert (end > halfway) == runs_apart
