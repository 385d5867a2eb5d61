"""Whose gradients of a step are the first: decided in one place, so that all workers take the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dsgd.experiment import Experiment


class QuorumDecision:
    """Collect who has computed a gradient, step by step, and tell all workers when there are enough."""

    def __init__(self, experiment: Experiment, tell: Callable[[dict[str, Any]], None]) -> None:
        self._count = experiment.nodes - experiment.algo.backups
        self._tell = tell
        self._decided = -1  # the latest step
        self._first: dict[int, list[int]] = {}  # ranks, of steps that are not decided

    def computed(self, steps: int, rank: int) -> None:
        """Take note of the gradient of a worker that has made so many steps."""
        if steps <= self._decided:
            return
        first = self._first.setdefault(steps, [])
        if rank not in first:
            first.append(rank)
        if len(first) == self._count:
            self._decided = steps
            del self._first[steps]
            self._tell({"kind": "first", "steps": steps, "ranks": first})
