from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from dsgd.engines.rules.marks import least_due, marks_due
from dsgd.engines.rules.step_rules import StepRules
from dsgd.worker import Worker
from tests.support.cases import prepared


def test_the_rate_is_that_of_the_samples_whatever_was_asked_for_before() -> None:
    """Also after as many samples as the rate before was large."""
    experiment = prepared("experiment=quadratic", "algo=gossip", "nodes=2", "schedule=cosine", "optimizer.lr=4")
    rules, worker = StepRules(experiment, []), cast(Worker, None)
    for samples in (0, 4, 4, 2, 0):
        assert rules.learning_rate(worker, samples) == experiment.learning_rate(samples)


def test_marks_of_lockstep_follow_the_first_step_behind_each_multiple_but_not_the_last_step() -> None:
    """Also where the interval is a float whose multiples are rounded to the samples of a step."""
    experiment = prepared(
        "experiment=quadratic", "algo=sync", "nodes=1", "batch_size=1", "eval.every_steps=2", "budget.steps=6"
    )
    rules = StepRules(experiment, [])
    steps = [cast(Worker, SimpleNamespace(steps=number)) for number in range(1, 7)]
    assert experiment.unit == 1
    assert [rules.is_at_mark(worker) for worker in steps] == [False, True, False, True, False, False]
    assert [marks_due(samples, 102.4) for samples in (0, 102, 103, 511, 512, 513)] == [0, 0, 1, 4, 5, 5]
    assert marks_due(10**9, float("inf")) == 0


@given(st.integers(1, 10**6), st.floats(1.0, 1e6))
def test_the_least_amount_with_so_many_marks_is_that_of_marks_due(marks: int, interval: float) -> None:
    least = least_due(marks, interval)
    assert marks_due(least, interval) >= marks > marks_due(least - 1, interval)
