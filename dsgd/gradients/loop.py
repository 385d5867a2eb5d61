"""One gradient after the other: the reference."""

from __future__ import annotations

from collections.abc import Sequence

from dsgd.gradients import Wanted
from dsgd.gradients.problem import Problem


class Loop:
    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def evaluate(self, wanted: Sequence[Wanted]) -> None:
        for item in wanted:
            assert item.snapshot is not None
            g = self.problem.gradient(item.snapshot, item.buffers, item.rank, item.step)
            item.fulfil(g, item.buffers)
