"""Data sets whose samples are read one by one, in the process that trains: the loaded form of the user's own data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dsgd.data import DataLost
from dsgd.data.augmentation import move_and_mirror, movements
from dsgd.data.own_sets import OwnSets, Samples
from dsgd.data.partition import Partition, evaluation_order
from dsgd.streams import stream
from dsgd.user_code import RAISED, first_line

EVALUATION_BATCH = 256  # samples: bounds the memory


@dataclass(frozen=True)
class ChosenSamples:
    """Some samples of a map-style data set. indices: of them in it."""

    samples: Samples
    indices: np.ndarray

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.samples[int(self.indices[index])]


def read_sample(name: str, samples: Samples, index: int, classes: int, kind: str = "") -> tuple[Tensor, int]:
    """Return input and label of one sample. name: of the data, kind: of samples, for errors. Raises DataLost."""
    try:
        found, label = samples[index]
        value = torch.as_tensor(found).detach()
        given = torch.as_tensor(label)
    except DataLost:
        raise
    except RAISED as error:  # of somebody else's code: whatever it may raise
        rule = f"{name}: sample {index}{kind} must be a tensor or array, and a label"
        raise DataLost(f"{rule}; {first_line(error)}") from error
    if value.is_complex():
        raise DataLost(f"{name}: sample {index}{kind} must be of real numbers, got {type_name(value.dtype)}")
    if not hasattr(found, "dtype") and not value.is_floating_point():
        value = value.double()  # a list of Python's numbers, whole ones by chance
    if given.numel() != 1 or given.is_complex() or not float(given).is_integer():
        what = f"{given.numel()} numbers" if given.numel() != 1 else str(given.item())
        raise DataLost(f"{name}: the label of sample {index}{kind} must be one whole number, got {what}")
    number = int(given)
    if not 0 <= number < classes:
        rule = f"the label of sample {index}{kind} must be in [0, data.classes = {classes})"
        raise DataLost(f"{name}: {rule}, got {number}")
    return value, number


def check_alike(name: str, value: Tensor, first: Tensor, sample: str) -> None:
    """Raise DataLost unless an input has the shape of the first one, and is of whole numbers where that is: pixels from
    0 to 255 are not those from 0 to 1. sample: its number, for errors."""
    if value.shape != first.shape:
        expected, shape = (" x ".join(map(str, of.shape)) or "one number" for of in (first, value))
        raise DataLost(f"{name}: sample {sample} must be {expected} as the first one, got {shape}")
    if value.is_floating_point() != first.is_floating_point():
        raise DataLost(
            f"{name}: sample {sample} must be {type_name(first.dtype)} as the first one, got {type_name(value.dtype)}"
        )


def type_name(dtype: torch.dtype) -> str:
    """Return the name of a type without its module, for errors."""
    return str(dtype).removeprefix("torch.")


@dataclass(eq=False, repr=False)
class Items:
    """Samples of two map-style data sets, split over the workers. name: of the data, for errors. first: an input that
    all must be like; None: the first one that is read. source: where the sets are from, if a function of the user's.
    augment: as `Classification`, after reading.

    Torch's global random stream, from which they draw augmentation, is seeded by (seed, rank, step)."""

    name: str
    train: Samples
    test: Samples
    classes: int
    input_shape: tuple[int, ...]
    partition: Partition
    dtype: torch.dtype
    first: Tensor | None = None
    source: OwnSets | None = None
    augment: bool = False

    def __post_init__(self) -> None:
        self.samples = len(self.train)

    def batch(self, rank: int, step: int) -> tuple[Tensor, Tensor]:
        """Return inputs [b, *input_shape] and labels [b] of worker `rank` at its own step `step`. Raises DataLost."""
        indices = self.partition.indices(rank, step).tolist()
        with _seeded("augmentation", self.partition.seed, rank, step):
            inputs, labels = self._read(self.train, indices)
        if self.augment:
            drawn = movements(self.partition.seed, rank, step, len(indices))
            inputs = move_and_mirror(inputs, *map(torch.from_numpy, drawn))
        return inputs, labels

    def evaluation(
        self, test: bool, limit: int | None = None, shard: tuple[int, int] = (0, 1)
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs and labels of the test or training set in batches. limit, shard: see `evaluation_order`."""
        samples = self.test if test else self.train
        order = evaluation_order(len(samples), test, limit, shard).tolist()
        for begin in range(0, len(order), EVALUATION_BATCH):
            with _seeded("evaluation", int(test), begin, *(shard if shard[1] > 1 else ())):
                found = self._read(samples, order[begin : begin + EVALUATION_BATCH])
            yield found

    def sample(self, test: bool, index: int) -> tuple[Tensor, Tensor]:
        """Return input and label of one sample of the test or training set, as they are in a batch. Raises DataLost."""
        inputs, labels = self._read(self.test if test else self.train, [index])
        return inputs[0], labels[0]

    def count(self, test: bool) -> int:
        """Return the number of samples of the test or training set."""
        return len(self.test if test else self.train)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross entropy of logits `outputs` [b, classes] against labels `targets` [b], in nats."""
        return F.cross_entropy(outputs, targets)

    def _read(self, samples: Samples, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        inputs = torch.empty(len(indices), *self.input_shape, dtype=self.dtype)
        labels = torch.empty(len(indices), dtype=torch.int64)
        for row, index in enumerate(indices):
            value, labels[row] = read_sample(self.name, samples, index, self.classes)
            if self.first is None:
                self.first = value
            check_alike(self.name, value, self.first, str(index))
            inputs[row] = value
        if not bool(inputs.isfinite().all()):
            row = int(inputs.flatten(1).isfinite().all(dim=1).logical_not_().nonzero()[0])
            raise DataLost(f"{self.name}: sample {indices[row]} must be of finite numbers in {type_name(self.dtype)}")
        return inputs, labels


@contextmanager
def _seeded(*key: str | int) -> Iterator[None]:
    """Seed torch's global random stream inside of the block, and restore it afterwards."""
    name, *numbers = key
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(stream(str(name), *map(int, numbers)).integers(2**63)))
        yield
