"""Gossip: how fast random peers agree, and on what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from dsgd.algorithms.gossip import Gossip
from dsgd.data import Quadratic
from dsgd.streams import stream
from tests.support import reference
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


def test_rounds_of_pulls_shrink_the_spread_as_computed():
    """All at once, old values: E[V'] / V = (p - 2)(2 p - 3) / (4 (p - 1)^2), and the mean takes a random step of
    E|mean' - mean|^2 = V (p - 2) / (4 p (p - 1)^2). Equal workers without network pull at the same moments."""
    p, shrinkage, steps = 4, [], []
    for seed in range(20):
        path = run(without_gradients(p, seed, 14), Gossip())
        # the first round is at the start and the second one before the first mark; none follows the last step
        xs = path.xs[1:-1]
        V = spread_of(xs)
        apart = V[:-1] > 1e-20  # few workers may come to agree exactly
        shrinkage += list((V[1:] / np.where(apart, V[:-1], 1))[apart])
        steps += list(((np.diff(xs.mean(axis=1), axis=0) ** 2).sum(axis=1) / np.where(apart, V[:-1], 1))[apart])
    assert_mean(shrinkage, (p - 2) * (2 * p - 3) / (4 * (p - 1) ** 2), 0.06)
    assert_mean(steps, (p - 2) / (4 * p * (p - 1) ** 2), 0.12)


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_the_mean_is_kept_in_expectation_only(mode: str):
    """Workers agree on their first mean plus an error that has mean zero, of about std / sqrt(p) in one run."""
    p, runs = 6, 30
    s = Setting(p, 8, lr=0.0, data=Quadratic(dim=p), start=np.eye(p))
    ends = []
    for seed in range(runs):
        path = run(replace(s, seed=seed), Gossip(mode=mode), replace(cluster_of(s), jitter=1.0), mark_samples=999)
        ends.append(path.xs[-1].mean(axis=0))
    errors = np.array(ends) - 1 / p
    error = np.sqrt((errors**2).mean())
    assert np.abs(errors.mean(axis=0)).max() < 4 * error / np.sqrt(runs)
    assert 0.4 < error / (np.eye(p)[0].std() / np.sqrt(p)) < 1.5
