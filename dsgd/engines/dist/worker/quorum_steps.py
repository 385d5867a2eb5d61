"""A worker's part in steps with the first complete gradients, which the coordinator selects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dsgd.engines.dist.worker.process import CoordinatorClient
from dsgd.engines.rules.task import Task
from dsgd.worker import MeanOfFirst, Worker

# applies a finished gradient with its statistics; None: the run ends with it
Taken = Callable[[], Tensor | None]


@dataclass(eq=False)
class QuorumMember:
    """Compute gradients for the steps, report each to the coordinator, and join the all-reduce of the first ones.

    A late worker joins with zeros, while it finishes its gradient, which it discards.

    compute: computes a gradient at a point, and calls its second argument at the end. reduce: gives a task the mean of
    a vector over a number of workers."""

    worker: Worker
    client: CoordinatorClient
    compute: Callable[[Tensor, Callable[[Taken], None]], None]
    reduce: Callable[[Task[Any], Tensor, int], None]
    _waiting: tuple[Task[Any], MeanOfFirst] | None = None  # for the mean of the step
    _ahead: Sequence[int] | None = None  # first ranks of the next step, decided before this worker reached it
    _computes: bool = False
    _taken: Taken | None = None  # of the step's gradient

    def enter(self, task: Task[Any], request: MeanOfFirst) -> None:
        """Take part in the worker's next step, unless it is already decided or an earlier gradient is in progress."""
        self._waiting = task, request
        if self._ahead is not None:
            ranks, self._ahead = self._ahead, None
            self._close(ranks)
        elif not self._computes:
            self._begin(request.at)

    def decide(self, steps: int, ranks: Sequence[int]) -> None:
        """Note the ranks of the first gradients of a step."""
        if self._waiting is not None and steps == self.worker.steps:
            self._close(ranks)
        else:
            self._ahead = ranks

    def _begin(self, at: Tensor) -> None:
        self._computes = True
        steps = self.worker.steps

        def computed(taken: Taken) -> None:
            self._computes = False
            if self._waiting is None:  # the step is decided, and its mean in flight
                return
            if steps < self.worker.steps:
                self._begin(self._waiting[1].at)
            else:
                self._taken = taken
                self.client.send("computed", steps=steps)

        self.compute(at, computed)

    def _close(self, ranks: Sequence[int]) -> None:
        assert self._waiting is not None
        (task, request), taken = self._waiting, self._taken
        self._waiting = self._taken = None
        g = torch.zeros_like(request.at)
        if self.worker.rank in ranks:
            assert taken is not None  # it was reported to the coordinator
            if (gradient := taken()) is None:
                return
            g = gradient
        self.reduce(task, g, request.count)
