"""One gradient after the other: the reference."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dsgd.gradients.pending import Wanted
from dsgd.problem.problem import Problem


class Loop:
    """device: where to compute, evaluation too."""

    def __init__(self, problem: Problem, device: torch.device | None = None) -> None:
        self.problem = problem
        self.device = device or torch.device("cpu")
        problem.to(self.device)

    def evaluate(self, wanted: Sequence[Wanted]) -> None:
        for item in wanted:
            assert item.snapshot is not None
            x, buffers = item.snapshot.to(self.device), item.buffers.to(self.device)
            g = self.problem.gradient(x, buffers, item.rank, item.step)
            item.fulfil(g.to(item.snapshot.device), buffers.to(item.snapshot.device))
