"""Evaluates one gradient after the other: the reference for all other evaluators."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dsgd.gradients.pending import PendingGradient
from dsgd.problem.problem import Problem


class LoopEvaluator:
    """Evaluate gradients one after the other. device: where to compute, evaluation of models included."""

    def __init__(self, problem: Problem, device: torch.device | None = None) -> None:
        self.problem = problem
        self.device = device or torch.device("cpu")
        problem.live_on(self.device)

    def evaluate(self, pending: Sequence[PendingGradient]) -> None:
        for item in pending:
            assert item.snapshot is not None
            x, buffers = item.snapshot.to(self.device), item.buffers.to(self.device)
            computed = *self.problem.gradient_and_loss(x, buffers, item.rank, item.step), buffers
            g, loss, buffers = (part.to(item.snapshot.device) for part in computed)
            item.set(g, buffers, loss)
