"""Assign samples to workers and steps: one permutation per epoch, split over the workers, or one of each own share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from dsgd.streams import stream


def check_share(samples: int, nodes: int, batch_size: int) -> None:
    """Raise ValueError unless each of `nodes` workers can draw a batch from its own share of `samples`."""
    if nodes < 1:
        raise ValueError(f"nodes must be >= 1, got {nodes}")
    if batch_size < 1:
        raise ValueError(f"batch_size must be >= 1, got {batch_size}")
    share = samples // nodes
    if share < 1:
        raise ValueError(f"nodes must be <= {samples} (the training samples), got {nodes}")
    if batch_size > share:
        raise ValueError(
            f"batch_size must be <= {share} (a worker's share: {samples} samples / {nodes} nodes), got {batch_size}"
        )


@dataclass(frozen=True)
class Partition:
    """Mini-batches as a pure function of (rank, step), so that a resumed run needs only the step number.

    Every epoch has its own permutation, split into one share of floor(samples / nodes) per worker. Samples that do not
    fill a share or a batch are omitted from that epoch. Within an epoch no sample is seen twice."""

    samples: int
    nodes: int
    batch_size: int  # per worker
    seed: int  # >= 0

    def __post_init__(self) -> None:
        check_share(self.samples, self.nodes, self.batch_size)

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps of one worker in one epoch."""
        return self.samples // self.nodes // self.batch_size

    def indices(self, rank: int, step: int) -> np.ndarray:
        """Return the samples of worker `rank` at its step `step`: [batch_size], int64, each in [0, samples).

        Raises ValueError if rank is not in [0, nodes) or step is negative."""
        epoch, batch = self._place(rank, step)
        start = rank * (self.samples // self.nodes) + batch * self.batch_size
        return _permutation(self.samples, self.seed, epoch)[start : start + self.batch_size].copy()

    def several(self, ranks: Sequence[int], steps: Sequence[int]) -> np.ndarray:
        """Return the samples of several workers, each at its own step: [len(ranks), batch_size]."""
        epochs, batches = np.divmod(np.asarray(steps), self.steps_per_epoch)
        starts = np.asarray(ranks) * (self.samples // self.nodes) + batches * self.batch_size
        indices = starts[:, None] + np.arange(self.batch_size)
        present = set(epochs.tolist())
        if len(present) == 1:
            return _permutation(self.samples, self.seed, present.pop())[indices]
        for epoch in present:
            rows = epochs == epoch
            indices[rows] = _permutation(self.samples, self.seed, epoch)[indices[rows]]
        return indices

    def _place(self, rank: int, step: int) -> tuple[int, int]:
        """Return the epoch of a worker's step, and which batch of that epoch it is."""
        if not 0 <= rank < self.nodes:
            raise ValueError(f"rank must be in [0, {self.nodes}), got {rank}")
        if step < 0:
            raise ValueError(f"step must be >= 0, got {step}")
        return divmod(step, self.steps_per_epoch)


@dataclass(frozen=True, eq=False)
class OwnShares(Partition):
    """Mini-batches of workers with fixed shares: in every epoch each has a permutation of its share.

    shares: samples of each worker, floor(samples / nodes) or one more. Samples that do not fill a batch are omitted
    from that epoch."""

    shares: Sequence[np.ndarray]
    _orders: dict[int, tuple[int, np.ndarray]] = field(default_factory=dict, init=False, repr=False)

    def indices(self, rank: int, step: int) -> np.ndarray:
        """Return the samples of worker `rank` at its step `step`, as `Partition.indices`."""
        epoch, batch = self._place(rank, step)
        last, order = self._orders.get(rank, (None, self.shares[rank]))
        if last != epoch:
            order = stream("share permutation", self.seed, rank, epoch).permutation(self.shares[rank])
            self._orders[rank] = epoch, order
        return order[batch * self.batch_size : (batch + 1) * self.batch_size].copy()

    def several(self, ranks: Sequence[int], steps: Sequence[int]) -> np.ndarray:
        """Return the samples of several workers, each at its own step: [len(ranks), batch_size]."""
        return np.stack([self.indices(rank, step) for rank, step in zip(ranks, steps, strict=True)])


def evaluation_order(samples: int, test: bool, limit: int | None) -> np.ndarray:
    """Return the samples of an evaluation: `limit` of them (None: all), the same in every run, spread over the set."""
    return stream("evaluation order", int(test)).permutation(samples)[:limit]


@lru_cache(maxsize=8)  # free-running workers are a few epochs apart
def _permutation(samples: int, seed: int, epoch: int) -> np.ndarray:
    return stream("epoch permutation", seed, epoch).permutation(samples).astype(np.int64, copy=False)
