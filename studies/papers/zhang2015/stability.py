"""Where the iterations are stable, written out in NumPy: elastic averaging and ADMM in round-robin order, and delayed
gradients.

All are linear on a quadratic of curvature h, so that they are stable where the spectral radius is at most 1."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from dsgd.record.reader import Run, number

WINDOWS = 4  # of a run: its growth is that from the second to the last, as it swings


def moving_rate_bound(lr_h: float) -> float:
    """Return the largest stable moving rate alpha of EASGD in round-robin order, whatever the number of workers, for a
    rate times curvature in [0, 2] (Zhang et al. 2015, section 4)."""
    return (4 - 2 * lr_h) / (4 - lr_h)


def round_robin_radius(workers: int, lr_h: float, alpha: float) -> float:
    """Return the spectral radius of one round: the product of the maps of each worker's step and exchange.

    The state is (x_1, ..., x_p, c), as distances from the minimum."""
    centre = workers
    round_map = np.eye(workers + 1)
    for i in range(workers):
        turn = np.eye(workers + 1)
        turn[i, i] = 1 - lr_h - alpha
        turn[i, centre] = turn[centre, i] = alpha
        turn[centre, centre] = 1 - alpha
        round_map = turn @ round_map
    return float(np.abs(np.linalg.eigvals(round_map)).max())


def admm_radius(workers: int, lr_h: float, rho: float) -> float:
    """Return the spectral radius of one round of linearised ADMM (Zhang et al. 2015, section 4).

    lr_h: rate times curvature. rho: penalty over curvature. In its turn a worker with the multiplier l does
    l -= x - c, then x = (x - lr h x + lr rho (l + c)) / (1 + lr rho), then c is the mean of all x - l.
    The state is (l_1, ..., l_p, x_1, ..., x_p, c), as distances from the minimum."""
    centre = 2 * workers
    pull = lr_h * rho
    round_map = np.eye(centre + 1)
    for i in range(workers):
        multiplier, step, mean = (np.eye(centre + 1) for _ in range(3))
        multiplier[i, workers + i], multiplier[i, centre] = -1, 1
        step[workers + i, [i, workers + i, centre]] = np.array([pull, 1 - lr_h, pull]) / (1 + pull)
        mean[centre] = [*[-1 / workers] * workers, *[1 / workers] * workers, 0]
        round_map = mean @ step @ multiplier @ round_map
    return float(np.abs(np.linalg.eigvals(round_map)).max())


def delayed_rate_bound(delay: int) -> float:
    """Return the largest stable rate times curvature of gradients that are so many updates old."""
    return 2 * math.sin(math.pi / (2 * (2 * delay + 1)))


def delayed_rate_by_bisection(delay: int) -> float:
    """Return the same limit from the roots z of z^(s+1) = z^s - lr h, to twelve digits."""
    low, high = 0.0, 4.0
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        polynomial = np.zeros(delay + 2)
        polynomial[0], polynomial[1] = 1.0, -1.0
        polynomial[-1] += middle
        stable = np.abs(np.roots(polynomial)).max() <= 1
        low, high = (middle, high) if stable else (low, middle)
    return low


def growth_per_step(run: Run) -> float:
    """Return by which factor the distance to the minimum of a run with one parameter grew in each step of a worker.

    The loss is the square of the distance, which may swing: its largest values are compared."""
    marks = [(number(mark.get("epoch")), number(mark.get("test_loss"))) for mark in run.metrics]
    marks = [(step, loss) for step, loss in marks if loss > 0]  # an epoch of the quadratic is a step of each worker
    ends = [round(i * len(marks) / WINDOWS) for i in range(WINDOWS + 1)]
    peaks = [max(marks[start:end], key=lambda mark: mark[1]) for start, end in pairwise(ends)]
    (first, early), (last, late) = peaks[1], peaks[-1]
    return math.exp(0.5 * math.log(late / early) / (last - first))
