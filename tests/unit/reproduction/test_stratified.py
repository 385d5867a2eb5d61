"""The ratio over tasks: every task counts the same, and its interval holds what it says."""

from __future__ import annotations

import math

import numpy as np
import pytest

from studies.reproduction.stratified import ratio_over_tasks
from tests.support.each_row import each_row


def test_every_task_counts_the_same() -> None:
    found = ratio_over_tasks([[2.0] * 10, [0.5] * 30])
    assert (found.median, found.low, found.high) == pytest.approx((1.0, 1.0, 1.0))
    assert found.count == 40


def test_a_ratio_and_its_inverse_mirror_each_other() -> None:
    tasks = [[1.1, 1.3, 0.9, 1.2, 1.0], [2.0, 1.9, 2.2, 2.4, 2.1]]
    found, inverse = ratio_over_tasks(tasks), ratio_over_tasks([[1 / one for one in ratios] for ratios in tasks])
    assert found.median == pytest.approx(1 / inverse.median)
    assert found.low == pytest.approx(1 / inverse.high)


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    """Two tasks of ten seeds, whose true ratios are 1.2 and 0.8."""
    generator = np.random.default_rng(1)
    truth = math.sqrt(1.2 * 0.8)
    held = [
        found.low <= truth <= found.high
        for found in (
            ratio_over_tasks([(centre * np.exp(generator.normal(0, 0.1, 10))).tolist() for centre in (1.2, 0.8)])
            for _ in range(200)
        )
    ]
    assert 0.9 <= np.mean(held) <= 0.995


def test_a_target_that_is_not_reached_is_an_infinite_ratio() -> None:
    assert ratio_over_tasks([[math.inf] * 5, [1.0] * 5]).median == math.inf


@each_row("tasks", [[], [[1.0], []], [[1.0, 0.0]], [[math.nan]]])
def test_tasks_without_ratios_are_a_mistake(tasks: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="must be"):
        ratio_over_tasks(tasks)
