"""Gradients that workers have asked for, and the interface of what evaluates them.

An evaluator gets all pending gradients at once and may compute them in any grouping; neither order nor grouping may
change a result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor


class PendingGradient:
    """Hold the arguments of a gradient until it is evaluated, and then its value.

    snapshot: [d], where to take it, None once it is evaluated. buffers: [nb], a copy that the forward pass may change.
    rank, step: of the batch. value: [d], None until it is evaluated. loss: of the batch, a scalar; None, too, where
    nothing is computed. A tensor, since a checkpoint stores those. arrives: when a GPU has written it; None: at once.
    """

    __slots__ = ("arrives", "buffers", "loss", "rank", "snapshot", "step", "value")

    def __init__(self, rank: int, step: int, snapshot: Tensor, buffers: Tensor) -> None:
        self.rank = rank
        self.step = step
        self.snapshot: Tensor | None = snapshot
        self.buffers = buffers
        self.value: Tensor | None = None
        self.loss: Tensor | None = None
        self.arrives: torch.cuda.Event | torch.Event | None = None

    def set(self, value: Tensor, buffers: Tensor, loss: Tensor | None = None) -> None:
        """Set the gradient [d], the buffers [nb] after the forward pass and the loss, and release the snapshot."""
        self.value = value
        self.loss = loss
        self.buffers = buffers
        self.snapshot = None

    def read_loss(self) -> float | None:
        """Return the loss, for which a GPU computes this gradient and those before it, and no others."""
        if self.arrives is not None:
            self.arrives.synchronize()
        return None if self.loss is None else float(self.loss)


class GradientEvaluator(Protocol):
    """Evaluate pending gradients. device: where that happens."""

    device: torch.device

    def evaluate(self, pending: Sequence[PendingGradient]) -> None:
        """Set the value of every pending gradient."""
        ...


class NullEvaluator:
    """Set every gradient to zeros."""

    device = torch.device("cpu")

    def evaluate(self, pending: Sequence[PendingGradient]) -> None:
        for item in pending:
            assert item.snapshot is not None
            item.set(torch.zeros_like(item.snapshot), item.buffers, item.snapshot.new_zeros(()))
