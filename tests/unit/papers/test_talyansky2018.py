"""The closed form of Talyansky et al. 2018."""

from __future__ import annotations

import numpy as np
import pytest

from studies.papers import talyansky2018
from tests.support.each_row import each_row


@each_row(("nodes", "tau"), [(2, 2), (4, 8), (3, 6)])
def test_the_closed_form_of_a_distance_is_that_of_the_recursion(nodes: int, tau: int) -> None:
    """One coordinate of the workers, whose covariance follows each step and each exchange of Algorithm 2."""
    rate, beta = talyansky2018.LR, tau // 2
    centred = np.eye(nodes) - 1 / nodes
    state = np.zeros((2 * nodes, 2 * nodes))  # covariance of (x, where each began its cycle)
    step_map = np.kron(np.diag([1 - rate, 1.0]), np.eye(nodes))
    mean = np.full((nodes, nodes), 1 / nodes)
    exchange = np.block([[np.eye(nodes), mean - np.eye(nodes)], [np.eye(nodes), mean - np.eye(nodes)]])
    noise = np.kron(np.diag([(rate * talyansky2018.NOISE) ** 2, 0.0]), np.eye(nodes))
    for step in range(1, 5 * beta + 2):
        state = step_map @ state @ step_map.T + noise
        if step % beta == 0:
            state = exchange @ state @ exchange.T
        apart = np.trace(centred @ state[:nodes, :nodes] @ centred) / nodes
        assert talyansky2018.expected_distance(nodes, tau, step) == pytest.approx(talyansky2018.DIM * apart)
