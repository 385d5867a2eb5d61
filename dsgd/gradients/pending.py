"""Gradients that were asked for and are evaluated later, together.

An evaluator gets all gradients that are asked for and not yet known. It may compute them in any grouping; neither order
nor grouping may change a result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Wanted:
    """A gradient that was asked for. snapshot: [d], where to take it; buffers: [nb], a copy that the forward pass may
    change; rank, step: whose batch. `value` [d] is None until an evaluator has set it."""

    __slots__ = ("buffers", "rank", "snapshot", "step", "value")

    def __init__(self, rank: int, step: int, snapshot: Tensor, buffers: Tensor) -> None:
        self.rank = rank
        self.step = step
        self.snapshot: Tensor | None = snapshot
        self.buffers = buffers
        self.value: Tensor | None = None

    def fulfil(self, value: Tensor, buffers: Tensor) -> None:
        """Set the gradient, and let go of the snapshot: per worker there is one or the other."""
        self.value = value
        self.buffers = buffers
        self.snapshot = None


class Evaluator(Protocol):
    def evaluate(self, wanted: Sequence[Wanted]) -> None:
        """Fulfil every one of them."""
        ...
