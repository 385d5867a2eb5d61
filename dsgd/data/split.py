"""Hold training samples out, and split the others over the workers: identically distributed, or with different labels.

Options are chosen by held out samples: a choice by the test set would bias its accuracy.

    iid         all samples are reassigned to all workers in every epoch
    dirichlet   for each class y: q_y ~ Dirichlet(alpha, ..., alpha) over the workers whose shares have room; a sample
                of class y goes to worker i with probability q_yi; if its share is full, q_y is drawn again
    label       samples sorted by label, cut into contiguous shares: a worker sees few classes

Shares are drawn once, from the run's seed, and classes are assigned in random order. All shares are equal, to one
sample: a budget counts samples, and a lock-step algorithm takes the same number from every worker, so unequal shares
would weight samples unequally. With alpha towards 0, `dirichlet` is `label` with the classes in random order; with a
large alpha, all shares are alike, but still fixed for each worker.

Reference: Hsu, Qi, Brown 2019, Measuring the effects of non-identical data distribution for federated visual
classification, arXiv 1909.06335: shares of equal size too. There, a client draws its classes, q_i ~ Dirichlet(alpha p),
p the share of each class, so their alpha is about the alpha here times the number of classes. Decentralised methods are
usually compared with classes that draw their workers, as here: Lin et al. 2021, Quasi-global momentum, arXiv
2102.04761, which also puts the last classes into shares with room.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeVar

import numpy as np

from dsgd.data.partition import OwnShares, Partition, check_share
from dsgd.keys import Key, check_options
from dsgd.streams import stream

if TYPE_CHECKING:
    import torch

    from dsgd.data.in_memory import Classification

EVALUATED = ("test", "validation")
SPLITS = ("iid", "dirichlet", "label")
LARGEST_ALPHA = 1e15  # all classes alike everywhere, long before
Arrays = tuple[np.ndarray, np.ndarray]
S = TypeVar("S")


@dataclass(frozen=True, kw_only=True)
class Validation:
    """The options of it, which data sets with a training and a test set have in common."""

    validation: Annotated[float, Key("{} of the training samples held out", "in [0, 1)", unit="%")] = 0.0
    evaluate: str = "test"

    def __post_init__(self) -> None:
        check_options(self, evaluate=EVALUATED)
        if self.evaluate == "validation" and not self.validation:
            raise ValueError("evaluate must be test with data.validation=0, got validation")

    def train_samples(self, nodes: int) -> int:
        """Count the samples to train on. Raises ValueError as `check`."""
        raise NotImplementedError

    def check(self, nodes: int, batch_size: int) -> None:
        """Raise ValueError, one line, if the data are missing or too few for `nodes` batches of `batch_size`."""
        check_share(self.train_samples(nodes), nodes, batch_size)

    def kept(self, samples: int) -> int:
        """Return the number of `samples` training samples that are trained on. Raises ValueError if none remains, or
        none to evaluate."""
        held_out = round(self.validation * samples)
        if self.validation and not 0 < held_out < samples:
            rule = f"must hold out at least one of {samples} training samples, and leave one"
            raise ValueError(f"data.validation {rule}, got {self.validation:g}")
        return samples - held_out

    def indices(self, samples: int) -> Arrays:
        """Return the indices of training samples that are trained on, and of those held out, both ascending."""
        order = stream("validation").permutation(samples)
        kept = self.kept(samples)
        return np.sort(order[:kept]), np.sort(order[kept:])

    def arrays(self, train: Arrays, test: Arrays) -> tuple[Arrays, Arrays]:
        """Return the samples to train on, and the samples to evaluate. train, test: inputs [n, ...] and labels [n]."""
        if not self.validation:
            return train, test
        kept, held_out = self.indices(len(train[1]))
        evaluated = (train[0][held_out], train[1][held_out]) if self.evaluate == "validation" else test
        return (train[0][kept], train[1][kept]), evaluated

    def parts(self, train: S, test: S, part: Callable[[S, np.ndarray], S], samples: int) -> tuple[S, S]:
        """Return the same of sets whose samples are read one by one. part: makes a set of chosen samples of one."""
        if not self.validation:
            return train, test
        kept, held_out = self.indices(samples)
        return part(train, kept), part(train, held_out) if self.evaluate == "validation" else test


@dataclass(frozen=True, kw_only=True)
class Split(Validation):
    """The options of a split, for all data sets with labels; no worker has held out samples."""

    split: str = "iid"  # iid | dirichlet | label
    split_alpha: float = 0.1  # of dirichlet: the smaller, the fewer classes a worker sees

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self, split=SPLITS, split_alpha=f"in (0, {LARGEST_ALPHA:g}]")

    def partition(self, labels: np.ndarray, nodes: int, batch_size: int, seed: int) -> Partition:
        """Assign the samples with these labels [n] to workers. seed: seed of the run. Raises ValueError as
        `check_share`."""
        check_share(len(labels), nodes, batch_size)
        if self.split == "iid":
            return Partition(len(labels), nodes, batch_size, seed)
        rng = stream(f"{self.split} split", seed)
        sizes = len(labels) // nodes + (np.arange(nodes) < len(labels) % nodes)
        if self.split == "label":
            owners = by_label(labels, sizes, rng)
        else:
            owners = by_dirichlet(labels, sizes, self.split_alpha, rng)
        shares = np.split(np.argsort(owners, kind="stable"), sizes.cumsum()[:-1])
        return OwnShares(len(labels), nodes, batch_size, seed, shares)


def by_label(labels: np.ndarray, sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the worker [n] of each sample, in the order of their labels [n]. sizes: sizes of the shares [nodes]."""
    owners = np.empty(len(labels), np.int64)
    owners[_sorted_by_label(labels, rng)] = np.repeat(np.arange(len(sizes)), sizes)
    return owners


def by_dirichlet(labels: np.ndarray, sizes: np.ndarray, alpha: float, rng: np.random.Generator) -> np.ndarray:
    """Return the worker [n] of each sample, each class over the workers by Dirichlet(alpha). As `by_label`."""
    owners, room = np.empty(len(labels), np.int64), sizes.copy()
    _, counts = np.unique(labels, return_counts=True)
    classes = np.split(_sorted_by_label(labels, rng), counts.cumsum()[:-1])
    for index in rng.permutation(len(classes)):
        members = classes[index]
        before = room.copy()
        while left := len(members) - (before - room).sum():
            (open_to,) = room.nonzero()
            wanted = rng.multinomial(left, rng.dirichlet(np.full(len(open_to), alpha)))
            room[open_to] -= np.minimum(wanted, room[open_to])
        owners[members] = np.repeat(np.arange(len(sizes)), before - room)
    return owners


def _sorted_by_label(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the samples [n] in the order of their labels, samples of a class in random order."""
    order = rng.permutation(len(labels))
    return order[np.argsort(labels[order], kind="stable")]


@dataclass(frozen=True, kw_only=True)
class ImageSet(Split):
    """Labelled images in memory, which can be augmented."""

    augment: bool = False  # shift by up to 4 pixels and mirror at random, in training only

    def read(self) -> tuple[Arrays, Arrays]:
        """Return images [n, channels, height, width] uint8 and labels [n] int64, for training and for test, before any
        are held out. Raises ValueError as `check`."""
        raise NotImplementedError

    def load(self, nodes: int, batch_size: int, seed: int, dtype: torch.dtype) -> Classification:
        """Load the data for one run, as `DataConfig.load`."""
        from dsgd.data.in_memory import Classification

        train, test = self.arrays(*self.read())
        partition = self.partition(train[1], nodes, batch_size, seed)
        classes: int = self.classes  # pyright: ignore[reportAttributeAccessIssue]  # a field here, a property there
        return Classification(train, test, classes, partition, dtype, self.augment)
