"""Returns zeros as gradients, for timing-only runs and for replaying the events of an interrupted run."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dsgd.gradients.pending import PendingGradient


class NullEvaluator:
    """Set every gradient to zeros."""

    device = torch.device("cpu")

    def evaluate(self, pending: Sequence[PendingGradient]) -> None:
        for item in pending:
            assert item.snapshot is not None
            item.set(torch.zeros_like(item.snapshot), item.buffers, item.snapshot.new_zeros(()))
