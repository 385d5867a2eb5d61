"""Evaluates one gradient after the other, by the module itself: the reference for all other evaluators."""

from __future__ import annotations

from collections.abc import Sequence
from queue import SimpleQueue

import torch
from torch import Tensor

from dsgd.gradients.pending import PendingGradient
from dsgd.gradients.side_by_side import SideBySide
from dsgd.problem.problem import Problem


class LoopEvaluator:
    """Evaluate gradients one after the other, or side by side, each by a copy of the module.

    device: where to compute, evaluation of models included. side_by_side: how many gradients at a time. More than one
    is for modules that `serve_side_by_side`, on a CPU. No bit depends on how many."""

    def __init__(self, problem: Problem, device: torch.device | None = None, side_by_side: int = 1) -> None:
        self.problem = problem
        self.device = device or torch.device("cpu")
        problem.live_on(self.device)
        self.threads = SideBySide(side_by_side)
        self._idle = SimpleQueue[Problem]()  # copies with which no thread computes
        for _ in range(side_by_side if side_by_side > 1 else 0):
            self._idle.put(problem.twin())

    def evaluate(self, pending: Sequence[PendingGradient]) -> None:
        if self.threads.workers > 1:
            batch = self.problem.data.batch  # read here, as data sets serve one thread at a time
            self.threads.starmap(self._evaluate, ((item, *batch(item.rank, item.step)) for item in pending))
            return
        for item in pending:
            assert item.snapshot is not None
            x, buffers = item.snapshot.to(self.device), item.buffers.to(self.device)
            computed = *self.problem.gradient_and_loss(x, buffers, item.rank, item.step), buffers
            g, loss, buffers = (part.to(item.snapshot.device) for part in computed)
            item.set(g, buffers, loss)

    def _evaluate(self, item: PendingGradient, inputs: Tensor, targets: Tensor) -> None:
        assert item.snapshot is not None
        problem = self._idle.get()
        try:
            g, loss = problem.gradient_of_batch(item.snapshot, item.buffers, inputs, targets)
        finally:
            self._idle.put(problem)
        item.set(g, item.buffers, loss)
