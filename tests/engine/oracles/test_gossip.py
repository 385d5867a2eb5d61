"""Gossip: how fast random peers agree, and on what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from dsgd.algorithms.gossip import Gossip
from dsgd.algorithms.sync import Sync
from dsgd.data import Quadratic
from dsgd.streams import stream
from tests.support import reference
from tests.support.long import long_but
from tests.support.reference import Array, Setting
from tests.support.simulated import assert_close, cluster_of, run

UNEVEN = (1.0, 1.7131, 0.6217, 2.3549)
SPREAD = np.random.default_rng(8).standard_normal((4, 5))


def uniform_peers(s: Setting) -> Callable[[int], int]:
    """Any other worker, from the workers' own streams."""
    streams = [stream("algorithm", s.seed, rank) for rank in range(s.nodes)]
    others = [[j for j in range(s.nodes) if j != rank] for rank in range(s.nodes)]
    return lambda rank: others[rank][int(streams[rank].integers(s.nodes - 1))]


def peers_among(s: Setting, neighbours: list[list[int]]) -> Callable[[int], int]:
    streams = [stream("algorithm", s.seed, rank) for rank in range(s.nodes)]
    return lambda rank: neighbours[rank][int(streams[rank].integers(len(neighbours[rank])))]


NUMPY = {"pull": reference.gossip_pull, "push": reference.gossip_push}


@pytest.mark.parametrize("tau", [1, 3])
@pytest.mark.parametrize("mode", ["pull", "push"])
@pytest.mark.parametrize(
    "setting",
    [
        Setting(gradient_s=UNEVEN, steps=20),
        Setting(gradient_s=UNEVEN, latency_s=0.1357, momentum=0.7, weight_decay=0.05),
        Setting(gradient_s=UNEVEN, latency_s=0.5357, momentum=0.7, nesterov=True, halve_at=5),
        Setting(start=SPREAD),
        Setting(lr=0.0, start=SPREAD, gradient_s=UNEVEN, latency_s=0.3579),
        Setting(nodes=2, steps=15),
    ],
)
def test_agrees_with_a_numpy_loop(setting: Setting, mode: str, tau: int):
    """Pull: the mean with what a random peer last published. Push: the mean with each vector that came. Then a step."""
    path = run(setting, Gossip(tau, mode))
    assert_close(path.xs[-1], NUMPY[mode](setting, tau, uniform_peers(setting)))


@pytest.mark.parametrize(("tau", "latency_s"), [(1, 0.9357), (3, 2.1357)])
def test_a_push_that_waits_for_the_one_before_agrees_with_a_numpy_loop(tau: int, latency_s: float):
    """The fastest worker's messages take longer than its tau steps, the others' do not."""
    # of this seed, nobody's first message reaches the fastest worker at the moment in which it stops waiting
    s = Setting(gradient_s=UNEVEN, latency_s=latency_s, steps=20, seed=4)
    path = run(s, Gossip(tau, "push"))
    assert path.marks[-1]["idle_fraction_max"] > 0.1
    assert_close(path.xs[-1], reference.gossip_push(s, tau, uniform_peers(s)))


@pytest.mark.parametrize("tau", [1, 3])
@pytest.mark.parametrize("seed", [0, 1])  # see the test above: of these no first messages meet in that way
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


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_one_worker_is_sgd_bit_for_bit(mode: str):
    """Without peers there is nothing to average with."""
    s = Setting(nodes=1, momentum=0.9, weight_decay=0.05)
    assert (run(s, Gossip(mode=mode)).xs == run(s, Sync()).xs).all()


def test_workers_with_the_same_data_are_sgd_bit_for_bit():
    """Equal workers on equal data without noise pull equal vectors, and the mean of two of them changes nothing."""
    s = Setting(momentum=0.9, data=Quadratic(dim=5, spread=0, noise=0))
    alone = run(replace(s, nodes=1), Sync())
    # of the same seed, the minimum of one worker is the common minimum of several
    assert (replace(s, nodes=1).target == s.target).all()
    assert (run(s, Gossip()).xs == alone.xs).all()


def test_two_workers_agree_after_one_pull_on_their_exact_mean():
    """p = 2: each pulls the only other one, both take the old values."""
    s = Setting(nodes=2, lr=0.0, start=SPREAD[:2])
    path = run(s, Gossip())
    assert_close(path.xs[1], np.tile(SPREAD[:2].mean(axis=0), (2, 1)))


def spread_of(xs: Array) -> Array:
    """V = sum_i |x_i - mean|^2 along the last two axes."""
    return ((xs - xs.mean(axis=-2, keepdims=True)) ** 2).sum(axis=(-2, -1))


def assert_mean(values: list[float], expected: float, precision: float) -> None:
    """The mean is as expected within four standard errors, and one of them is no more than `precision`, relative."""
    standard_error = np.std(values) / np.sqrt(len(values))
    assert standard_error < precision * expected
    assert np.mean(values) == pytest.approx(expected, abs=4 * standard_error)


def without_gradients(p: int, seed: int, steps: int) -> Setting:
    start = np.random.default_rng(1000 + seed).standard_normal((p, 3))
    return Setting(p, steps, lr=0.0, seed=seed, data=Quadratic(dim=3), start=start)


@pytest.mark.parametrize("p", long_but([4], [4, 6]))
def test_rounds_of_pulls_shrink_the_spread_as_computed(p: int):
    """All at once, old values: E[V'] / V = (p - 2)(2 p - 3) / (4 (p - 1)^2), and the mean takes a random step of
    E|mean' - mean|^2 = V (p - 2) / (4 p (p - 1)^2). Equal workers without network pull at the same moments."""
    shrinkage, steps = [], []
    for seed in range(40):
        path = run(without_gradients(p, seed, 14), Gossip())
        # the first round is at the start and the second one before the first mark; none follows the last step
        xs = path.xs[1:-1]
        V = spread_of(xs)
        apart = V[:-1] > 1e-20  # few workers may come to agree exactly
        shrinkage += list((V[1:] / np.where(apart, V[:-1], 1))[apart])
        steps += list(((np.diff(xs.mean(axis=1), axis=0) ** 2).sum(axis=1) / np.where(apart, V[:-1], 1))[apart])
    assert_mean(shrinkage, (p - 2) * (2 * p - 3) / (4 * (p - 1) ** 2), 0.04)
    assert_mean(steps, (p - 2) / (4 * p * (p - 1) ** 2), 0.08)


@pytest.mark.long
def test_a_single_pull_shrinks_the_spread_as_computed():
    """One asynchronous pull: E[V'] / V = 1 - (p + 1) / (2 p (p - 1)).

    Exponential gradient times make the next one who pulls a random one."""
    p = 6
    shrinkage = []
    for seed in range(20):
        s = without_gradients(p, seed, 16)
        path = run(s, Gossip(), replace(cluster_of(s), jitter=1.0), mark_samples=1)
        V = spread_of(path.xs[1:-1])
        shrinkage += list(V[1:] / V[:-1])
    assert_mean(shrinkage, 1 - (p + 1) / (2 * p * (p - 1)), 0.006)


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_the_mean_is_kept_in_expectation_only(mode: str):
    """Workers agree on their first mean plus an error that has mean zero, of about std / sqrt(p) in one run."""
    p, runs = 6, 60
    s = Setting(p, 8, lr=0.0, data=Quadratic(dim=p), start=np.eye(p))
    ends = []
    for seed in range(runs):
        path = run(replace(s, seed=seed), Gossip(mode=mode), replace(cluster_of(s), jitter=1.0), mark_samples=999)
        ends.append(path.xs[-1].mean(axis=0))
    errors = np.array(ends) - 1 / p
    error = np.sqrt((errors**2).mean())
    assert np.abs(errors.mean(axis=0)).max() < 4 * error / np.sqrt(runs)
    assert 0.4 < error / (np.eye(p)[0].std() / np.sqrt(p)) < 1.5


def test_output_model_is_the_mean_of_the_workers():
    """test_loss is 0.5 sum_j h_j (mean_j - target_j)^2, at every mark."""
    s = Setting(gradient_s=UNEVEN)
    path = run(s, Gossip())
    losses = np.array([mark["test_loss"] for mark in path.marks])
    assert_close(losses, 0.5 * (s.h * (path.mean - s.target) ** 2).sum(axis=1))
