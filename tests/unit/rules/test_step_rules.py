from __future__ import annotations

from typing import cast

from dsgd.engines.rules.step_rules import StepRules
from dsgd.worker import Worker
from tests.support.cases import prepared


def test_the_rate_is_that_of_the_samples_whatever_was_asked_for_before() -> None:
    """Also after as many samples as the rate before was large."""
    experiment = prepared("experiment=quadratic", "algo=gossip", "nodes=2", "schedule=cosine", "optimizer.lr=4")
    rules, worker = StepRules(experiment, []), cast(Worker, None)
    for samples in (0, 4, 4, 2, 0):
        assert rules.learning_rate(worker, samples) == experiment.learning_rate(samples)
