"""The servers of asynchronous DiLoCo (`asyncdiloco.py`): Nesterov's momentum, once for several differences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(eq=False)
class DelayedNesterov:
    """A server, or one shard of it: x, m, sum [d], and how many differences have come, in each number of `count`."""

    x: Tensor
    m: Tensor
    sum: Tensor
    count: Tensor
    olr: float
    beta: float
    buffer: int

    def update(self, D: Tensor) -> Tensor:
        """Apply a difference [d]. Returns a copy of x."""
        self.x.add_(D, alpha=-self.olr)
        self.sum.add_(D)
        self.count.add_(1)
        if int(self.count[0]) % self.buffer == 0:
            self.m.mul_(self.beta).add_(self.sum, alpha=1 / self.buffer)
            self.x.add_(self.m, alpha=-self.olr * self.buffer * self.beta)
            self.sum.zero_()
        return self.x.clone()
