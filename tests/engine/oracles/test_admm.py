"""Zhang et al. 2015 (arXiv 1412.6651), section 3: ADMM in round-robin order is unstable where EASGD is stable.

The package has no ADMM; here it is as published, equations 9 to 11, on F(x) = x^2 / 2. Both methods are linear there.
tests/unit/papers/test_zhang2015.py holds the simulated EASGD against the same `round_robin_radius`."""

from __future__ import annotations

import numpy as np
import pytest

from studies.papers.zhang2015.stability import round_robin_radius
from tests.support.reference import Array

ETA, RHO = 1e-3, 2.5  # of the paper's example, whose moving rate is their product


def turn(state: Array, i: int, eta: float, rho: float) -> Array:
    """Let worker i move. state: (lambda_1 .. lambda_p, x_1 .. x_p, centre), [2 p + 1]."""
    lambdas, x, centre = np.split(state.copy(), [len(state) // 2, len(state) - 1])
    lambdas[i] -= x[i] - centre[0]
    x[i] = (x[i] - eta * x[i] + eta * rho * (lambdas[i] + centre[0])) / (1 + eta * rho)
    return np.concatenate([lambdas, x, [(x - lambdas).mean()]])


def admm_round(workers: int, eta: float, rho: float) -> Array:
    """Return the map of one turn of every worker, [2 p + 1, 2 p + 1], from what it does to each unit vector."""
    columns = np.eye(2 * workers + 1)
    for i in range(workers):
        columns = np.array([turn(column, i, eta, rho) for column in columns])
    return columns.T


def radius(workers: int, eta: float, rho: float) -> float:
    return float(np.abs(np.linalg.eigvals(admm_round(workers, eta, rho))).max())


@pytest.mark.parametrize(("workers", "expected"), [(3, 1.00097), (8, 1.00226)])
def test_admm_in_turn_is_unstable_where_easgd_is_stable(workers: int, expected: float):
    """At the published example the distance from the minimum grows in every round; EASGD's shrinks. A larger rate
    calms ADMM: the unstable region has small rates and penalties, and more workers make it larger."""
    assert radius(workers, ETA, RHO) == pytest.approx(expected, abs=1e-5)
    assert round_robin_radius(workers, ETA, ETA * RHO) < 0.9993
    assert radius(workers, 10 * ETA, RHO) < 1


def test_two_workers_are_stable():
    assert all(radius(2, eta, rho) < 1 for eta in (1e-4, 1e-3, 1e-2) for rho in (0.1, 1.0, 2.5, 10.0))


def test_a_run_from_1000_calms_down_before_it_grows_beyond_all_bounds():
    """The paper starts x and the centre at 1000 and lambda at 0: the unstable mode is hardly in it, and swings."""
    one, state = admm_round(3, ETA, RHO), np.array([0.0] * 3 + [1000.0] * 4)
    hundred = np.linalg.matrix_power(one, 100)
    centres = [state[-1]]
    for _ in range(300):
        state = hundred @ state
        centres.append(state[-1])
    sizes = np.abs(centres)
    assert sizes[30:60].max() < 100 < 1e6 < sizes[-30:].max()
    growth = (sizes[-30:].max() / sizes[-130:-100].max()) ** (1 / 10_000)
    assert growth - 1 == pytest.approx(radius(3, ETA, RHO) - 1, rel=0.05)  # of maxima of what swings
