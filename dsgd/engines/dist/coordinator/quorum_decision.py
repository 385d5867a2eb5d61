"""Whose gradients of a step are the first: decided in one place, so that all workers take the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dsgd.experiment import Experiment


class QuorumDecision:
    """Collect who has computed a gradient, step by step, and tell all workers when there are enough."""

    def __init__(self, experiment: Experiment, tell: Callable[[dict[str, Any]], None]) -> None:
        self._count = experiment.contributors
        self._tell = tell
        self._steps = -1  # the latest that a worker has computed a gradient for
        self._first: list[int] = []  # ranks of those that have

    def computed(self, steps: int, rank: int) -> None:
        """Take note of the gradient of a worker that has made so many steps."""
        if steps > self._steps:
            self._steps, self._first = steps, []
        if steps < self._steps or len(self._first) == self._count or rank in self._first:
            return
        self._first.append(rank)
        if len(self._first) == self._count:
            self._tell({"kind": "first", "steps": steps, "ranks": self._first})
