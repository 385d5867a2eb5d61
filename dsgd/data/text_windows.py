"""Serve windows of bytes from memory: the loaded form of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dsgd.data.partition import Partition, evaluation_order
from dsgd.models import TokenShape

EVALUATED_BYTES = 2**14  # predicted in one forward pass: bounds the memory of activations


def windows(text: bytes, context: int) -> np.ndarray:
    """Cut a text into windows [n, context + 1] uint8, a view: each begins with the last byte of the one before."""
    each = np.lib.stride_tricks.sliding_window_view(np.frombuffer(text, np.uint8), context + 1)
    return each[::context]


@dataclass(eq=False, repr=False)
class TextWindows:
    """Windows of bytes [n, context + 1] for training and test, split over the workers.

    Inputs are the first `context` bytes of a window, targets those that follow each of them: int64 in [0, 256)."""

    train: np.ndarray
    test: np.ndarray
    partition: Partition
    classes: int = 256

    def __post_init__(self) -> None:
        self.samples = len(self.train)
        self.input_shape = TokenShape((self.train.shape[1] - 1,))

    def batch(self, rank: int, step: int) -> tuple[Tensor, Tensor]:
        """Return inputs and targets [b, context] of worker `rank` at its own step `step`."""
        return shifted(self.train[self.partition.indices(rank, step)])

    def batches(self, ranks: Sequence[int], steps: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return inputs and targets [n, b, context]; row i is `batch(ranks[i], steps[i])`."""
        return shifted(self.train[self.partition.several(ranks, steps)])

    def evaluation(self, test: bool, limit: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs and targets of the test or training set in batches. limit: see `evaluation_order`."""
        windows = self.test if test else self.train
        order = evaluation_order(len(windows), test, limit)
        size = max(1, EVALUATED_BYTES // (windows.shape[1] - 1))
        for begin in range(0, len(order), size):
            yield shifted(windows[order[begin : begin + size]])

    @property
    def train_set(self) -> tuple[Tensor, Tensor]:
        """All training inputs and targets [n, context]."""
        return shifted(self.train)

    @property
    def test_set(self) -> tuple[Tensor, Tensor]:
        """All test inputs and targets, likewise."""
        return shifted(self.test)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross entropy per byte, in nats, of logits `outputs` [b, 256, context] against `targets`
        [b, context]: a scalar."""
        return F.cross_entropy(outputs.transpose(1, 2).flatten(0, 1), targets.flatten())

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross entropy per byte of each window [b], of which `loss` is the mean."""
        return F.cross_entropy(outputs, targets, reduction="none").mean(dim=1)


def shifted(windows: np.ndarray) -> tuple[Tensor, Tensor]:
    """Return inputs and targets [..., context] int64 of windows [..., context + 1] uint8."""
    numbers = torch.from_numpy(windows.astype(np.int64))
    return numbers[..., :-1].contiguous(), numbers[..., 1:].contiguous()
