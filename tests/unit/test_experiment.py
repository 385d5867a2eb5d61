from __future__ import annotations

import dataclasses
import math
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsgd.experiment import Budget, Evaluation, Experiment
from dsgd.optim.optimizer import SGD
from dsgd.optim.schedule import Schedule
from tests.support.each_row import each_row
from tests.support.simulate import experiment

EPOCH = 1437  # digits


def changed(name: str = "sync", **fields: Any) -> Experiment:
    """An experiment on digits with 4 workers of 16 samples, without a budget but the one given."""
    return dataclasses.replace(base(name), **fields)


@cache
def base(name: str) -> Experiment:
    return experiment(f"algo={name}", "nodes=4", "batch_size=16")


@given(st.integers(64, 10**9))
def test_no_sample_of_the_budget_is_exceeded_or_left_that_a_step_could_use(samples: int) -> None:
    for name, unit in (("sync", 64), ("gossip", 16)):
        total = changed(name, budget=Budget(samples=samples)).total_samples
        assert total is not None
        assert total % unit == 0
        assert total <= samples < total + unit


@each_row(
    ("evaluation", "interval"),
    [
        (Evaluation(every_epochs=1), EPOCH),
        (Evaluation(every_epochs=0.25), EPOCH / 4),
        (Evaluation(every_samples=100), 100),
        (Evaluation(every_steps=3), 3 * 64),
        (Evaluation(every_epochs=1, every_samples=5000, every_steps=3), 3 * 64),
        (Evaluation(every_time_s=1), math.inf),
        (Evaluation(), math.inf),
    ],
)
def test_marks_are_the_least_interval_apart(evaluation: Evaluation, interval: float) -> None:
    assert changed(eval=evaluation).mark_samples == interval


def test_warm_up_without_scaling_rises_from_zero() -> None:
    run = changed(schedule=Schedule(warmup_epochs=2), optimizer=SGD(lr=0.1))
    assert run.learning_rate(0) == 0
    assert run.learning_rate(EPOCH) == pytest.approx(0.05, rel=1e-15)
    assert run.learning_rate(2 * EPOCH) == 0.1


def test_a_constant_rate_is_constant() -> None:
    run = changed(optimizer=SGD(lr=0.3))
    assert {run.learning_rate(samples) for samples in range(0, 30_000, 777)} == {0.3}
    assert run.peak_lr == 0.3


@each_row("warmup", [0.0, 1.0])
def test_the_cosine_goes_from_the_peak_to_zero(warmup: float) -> None:
    """lr (1 + cos(pi u)) / 2, u from 0 at the warm-up's end to 1 at the budget's."""
    schedule = Schedule(kind="cosine", warmup_epochs=warmup)
    run = changed(schedule=schedule, optimizer=SGD(lr=0.2), budget=Budget(samples=89 * 64))
    start, end = warmup * EPOCH, 89 * 64
    for u in (0.0, 0.25, 0.5, 0.75, 1.0):
        samples = start + u * (end - start)
        expected = 0.2 * (1 + math.cos(math.pi * u)) / 2
        assert run.learning_rate(samples) == pytest.approx(expected, rel=1e-9, abs=1e-15)  # pyright: ignore
    assert run.learning_rate(end + 1000) == run.learning_rate(end)
