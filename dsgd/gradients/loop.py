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
        problem.to(self.device)

    def evaluate(self, pending: Sequence[PendingGradient]) -> None:
        for item in pending:
            assert item.snapshot is not None
            x, buffers = item.snapshot.to(self.device), item.buffers.to(self.device)
            g = self.problem.gradient(x, buffers, item.rank, item.step)
            item.set(g.to(item.snapshot.device), buffers.to(item.snapshot.device))
