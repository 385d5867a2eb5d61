"""A worker's part in steps that take the first gradients to come, of which the coordinator decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dsgd.engines.dist.worker.process import CoordinatorClient
from dsgd.engines.rules.task import Task
from dsgd.worker import MeanOfFirst, Worker

# takes a finished gradient for good, with its statistics; None: the run ends with it
Taken = Callable[[], Tensor | None]


@dataclass(eq=False)
class QuorumMember:
    """Compute gradients for the steps, tell the coordinator of each, and join the all-reduce of those that are first.

    A worker that comes too late joins with zeros, while it finishes its gradient, and drops that.

    compute: a gradient at a point; calls its second argument at the end. reduce: gives a task the mean, over so many
    workers, of a vector."""

    worker: Worker
    client: CoordinatorClient
    compute: Callable[[Tensor, Callable[[Taken], None]], None]
    reduce: Callable[[Task[Any], Tensor, int], None]
    _waiting: tuple[Task[Any], MeanOfFirst] | None = None  # for the mean of the step
    _ahead: Sequence[int] | None = None  # the first of the next step, decided before this worker came to it
    _computes: bool = False
    _taken: Taken | None = None  # of the step's gradient

    def enter(self, task: Task[Any], request: MeanOfFirst) -> None:
        """Take part in the worker's next step, unless others have been first or an earlier gradient is under way."""
        self._waiting = task, request
        if self._ahead is not None:
            ranks, self._ahead = self._ahead, None
            self._close(ranks)
        elif not self._computes:
            self._begin(request.at)

    def decide(self, steps: int, ranks: Sequence[int]) -> None:
        """Take note of whose gradients of a step are the first."""
        if self._waiting is not None and steps == self.worker.steps:
            self._close(ranks)
        else:
            self._ahead = ranks

    def _begin(self, at: Tensor) -> None:
        self._computes = True
        steps = self.worker.steps

        def computed(taken: Taken) -> None:
            self._computes = False
            if self._waiting is None:  # the step is decided, and its mean on its way
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
            assert taken is not None  # the coordinator was told of it
            if (gradient := taken()) is None:
                return
            g = gradient
        self.reduce(task, g, request.count)
