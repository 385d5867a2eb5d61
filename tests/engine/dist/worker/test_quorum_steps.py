"""A worker and the coordinator agree on the first gradients of a step, in whatever order they hear of each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

import pytest
import torch
from torch import Tensor

from dsgd.engines.dist.coordinator.membership import QuorumDecision
from dsgd.engines.dist.worker.quorum_steps import QuorumMember, Taken
from dsgd.worker import MeanOfFirst
from tests.support.cases import prepared


@dataclass
class Surroundings:
    """What a worker's part in a step deals with, written down. rank: the worker's."""

    rank: int = 0
    steps: int = 0
    sent: list[int] = field(default_factory=list)
    computing: list[Any] = field(default_factory=list)  # those to call with a gradient, the first begun first
    at: list[float] = field(default_factory=list)
    given: list[Tensor] = field(default_factory=list)  # to all-reduces

    def send(self, kind: str, steps: int) -> None:
        assert kind == "computed"
        self.sent.append(steps)

    def compute(self, at: Tensor, computed: Any) -> None:
        self.at.append(float(at))
        self.computing.append(computed)

    def reduce(self, task: Any, g: Tensor, count: int) -> None:
        assert count == 2
        self.given.append(g)

    def complete(self, value: float) -> None:
        """End the gradient that is under way."""
        taken: Taken = lambda: torch.tensor([value])  # noqa: E731
        self.computing.pop(0)(taken)


def enter(quorum: QuorumMember, at: float) -> None:
    quorum.enter(None, MeanOfFirst(torch.tensor([at]), 2))  # pyright: ignore[reportArgumentType]


def beginning() -> tuple[Surroundings, QuorumMember]:
    around = Surroundings()
    return around, QuorumMember(around, around, around.compute, around.reduce)  # pyright: ignore[reportArgumentType]


def test_who_comes_a_moment_too_late_gives_zeros() -> None:
    """The coordinator had decided when it was told."""
    around, quorum = beginning()
    enter(quorum, 1.0)
    around.complete(7.0)
    quorum.decide(0, [2, 1])
    assert around.given == [torch.zeros(1)]


def test_who_is_late_goes_along_with_zeros_and_then_begins_at_the_present_point() -> None:
    around, quorum = beginning()
    for step in range(3):
        enter(quorum, float(step))
        quorum.decide(step, [1, 2])
        around.steps += 1
    assert around.given == [torch.zeros(1)] * 3
    enter(quorum, 3.0)
    assert around.at == [0.0]
    around.complete(7.0)
    assert around.sent == []
    assert around.at == [0.0, 3.0]
    around.complete(8.0)
    assert around.sent == [3]
    quorum.decide(3, [0, 2])
    assert float(around.given[-1]) == 8.0


def test_a_late_gradient_that_ends_between_two_steps_is_dropped() -> None:
    around, quorum = beginning()
    enter(quorum, 0.0)
    quorum.decide(0, [1, 2])
    around.complete(7.0)  # while the mean is on its way
    around.steps += 1
    enter(quorum, 1.0)
    assert around.sent == []
    assert around.at == [0.0, 1.0]


def test_a_decision_on_a_step_that_others_came_to_before_is_kept() -> None:
    around, quorum = beginning()
    quorum.decide(0, [1, 2])
    enter(quorum, 0.0)
    assert around.at == []
    assert around.given == [torch.zeros(1)]


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_the_coordinator_tells_the_first_once(order: tuple[int, ...]) -> None:
    told: list[dict[str, Any]] = []
    experiment = prepared("experiment=quadratic", "algo=sync", "nodes=3", "algo.overlap=false", "algo.backups=1")
    quorum = QuorumDecision(experiment, told.append)
    for rank in order:
        quorum.computed(4, rank)
    assert told == [{"kind": "first", "steps": 4, "ranks": list(order[:2])}]
    quorum.computed(5, order[2])
    quorum.computed(5, order[2])  # nobody counts twice
    assert len(told) == 1
