"""The syncer of Decoupled DiLoCo (`decoupled.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class Syncer:
    """The parameters x [d], and what learners have sent of each fragment since it was last merged."""

    def __init__(self, x: Tensor, fragments: int, quorum: int, olr: float, beta: float) -> None:
        self.x, self.v, self.direction = x, x.new_zeros(x.shape), x.new_zeros(x.shape)
        self.length, self.weight = x.new_zeros(fragments), x.new_zeros(fragments)
        self.waiting: list[set[int]] = [set() for _ in range(fragments)]
        self.quorum, self.olr, self.beta = quorum, olr, beta

    def part(self, vector: Tensor, f: float) -> Tensor:
        return vector.tensor_split(len(self.waiting))[int(f)]

    def send(self, x_f: Tensor, f: float, rank: float, steps: float) -> None:
        """Take a learner's fragment [d / P], unless an earlier one still waits."""
        waiting = self.waiting[int(f)]
        if rank in waiting:
            return
        waiting.add(int(rank))
        D = self.part(self.x, f) - x_f
        norm = float(D.square().sum()) ** 0.5
        self.length[int(f)] += steps * norm
        self.weight[int(f)] += steps
        if norm > 0:
            self.part(self.direction, f).add_(D, alpha=steps / norm)

    def fetch(self, f: float, rank: float) -> Tensor | None:
        """Merge a fragment of which a quorum waits. Returns a copy [d / P], or None while the learner's own waits."""
        waiting = self.waiting[int(f)]
        if len(waiting) >= self.quorum:
            self.merge(int(f))
        return None if rank in waiting else self.part(self.x, f).clone()

    def merge(self, f: int) -> None:
        x, v, direction = self.part(self.x, f), self.part(self.v, f), self.part(self.direction, f)
        norm = float(direction.square().sum()) ** 0.5
        D = direction * (float(self.length[f] / self.weight[f]) / norm if norm > 0 else 0.0)
        v.mul_(self.beta).add_(D)
        x.add_(D, alpha=-self.olr).add_(v, alpha=-self.olr * self.beta)
        direction.zero_()
        self.length[f] = self.weight[f] = 0
        self.waiting[f].clear()
