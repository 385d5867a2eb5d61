"""What gradients and evaluation need of a data set at once, whether or not it offers that itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Protocol, TypeGuard, runtime_checkable

import torch
from torch import Tensor

from dsgd.data import Data

EVALUATION_BATCH = 1024  # samples per forward pass: bounds the memory of activations


@runtime_checkable
class Streamed(Protocol):
    """Data that do not fit into memory: there is no `train_set` and no `test_set`."""

    def evaluation(
        self, test: bool, limit: int | None, shard: tuple[int, int] = (0, 1)
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """The test or training set (`limit` samples of it), not augmented, in batches. shard: (i, k), of these samples
        the i-th and every k-th after it, and no other is read."""
        ...


@runtime_checkable
class Decoded(Protocol):
    """Data that processes of their own read and decode."""

    def share(self, processes: int) -> None:
        """So many processes of this machine ask for batches at once: each is to take its part of the cores."""
        ...


@runtime_checkable
class Together(Protocol):
    """Data that serve several batches in one call. The same numbers as `Data.batch` and `Data.loss` give."""

    def batches(self, ranks: Sequence[int], steps: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Inputs [n, b, *input_shape] and targets [n, b, ...], row i of worker ranks[i] at its own step steps[i]."""
        ...

    def total_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The sum of the losses of n batches of outputs [n, b, ...]: a scalar."""
        ...


def _serves_together(data: Data) -> TypeGuard[Together]:
    return _is_together(type(data))


@cache  # asked anew of every flush, it would take a twentieth of a small one's time
def _is_together(kind: type[Data]) -> bool:
    return issubclass(kind, Together)


def batches(data: Data, ranks: Sequence[int], steps: Sequence[int]) -> tuple[Tensor, Tensor]:
    """As `Together.batches`, for any data."""
    if _serves_together(data):
        return data.batches(ranks, steps)
    found = [data.batch(rank, step) for rank, step in zip(ranks, steps, strict=True)]
    inputs, targets = (torch.stack(column) for column in zip(*found, strict=True))
    return inputs, targets


def total_loss(data: Data, outputs: Tensor, targets: Tensor) -> Tensor:
    """As `Together.total_loss`, for any data."""
    if _serves_together(data):
        return data.total_loss(outputs, targets)
    return torch.vmap(data.loss)(outputs, targets).sum()


def evaluation(
    data: Data, test: bool, limit: int | None = None, shard: tuple[int, int] = (0, 1)
) -> Iterator[tuple[Tensor, Tensor]]:
    """As `Streamed.evaluation`, for any data; of its first `limit` samples if they are in memory."""
    if isinstance(data, Streamed):
        yield from data.evaluation(test, limit, shard)
        return
    part, parts = shard
    inputs, targets = (whole[:limit][part::parts] for whole in (data.test_set if test else data.train_set))
    for begin in range(0, len(inputs), EVALUATION_BATCH):
        batch = slice(begin, begin + EVALUATION_BATCH)
        yield inputs[batch], targets[batch]
