"""Data sets whose samples are read one by one whenever they are needed: the loaded form of the user's own data."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dsgd.data import DataLost
from dsgd.data.in_memory import CrossEntropy, move_and_mirror, movements
from dsgd.data.own_sets import OwnSets, Samples
from dsgd.data.partition import Partition, evaluation_order
from dsgd.data.read_ahead import BatchesAhead, EvaluationRead, TrainingRead
from dsgd.models import RAISED, first_line
from dsgd.streams import seeded_streams, stream

EVALUATION_BATCH = 256  # samples: bounds the memory


@dataclass(frozen=True)
class ChosenSamples:
    """Some samples of a map-style data set. indices: their indices in it."""

    samples: Samples
    indices: np.ndarray

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.samples[int(self.indices[index])]


def read_sample(name: str, samples: Samples, index: int, classes: int, kind: str = "") -> tuple[Tensor, int]:
    """Return input and label of one sample. name, kind: names of data and set, for errors. Raises DataLost."""
    try:
        raw, label = samples[index]
        value = torch.as_tensor(raw).detach()
        given = torch.as_tensor(label)
    except DataLost:
        raise
    except RAISED as error:  # a user's code may raise anything
        rule = f"{name}: sample {index}{kind} must be a tensor or array, and a label"
        raise DataLost(f"{rule}; {first_line(error)}") from error
    if value.is_complex():
        raise DataLost(f"{name}: sample {index}{kind} must be of real numbers, got {type_name(value.dtype)}")
    if not hasattr(raw, "dtype") and not value.is_floating_point():
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
    """Raise DataLost unless an input has the shape of the first one, and integers if the first has: pixels from 0 to
    255 differ from pixels from 0 to 1. sample: its number, for errors."""
    if value.shape != first.shape:
        expected, shape = (" x ".join(map(str, tensor.shape)) or "one number" for tensor in (first, value))
        raise DataLost(f"{name}: sample {sample} must be {expected} as the first one, got {shape}")
    if value.is_floating_point() != first.is_floating_point():
        raise DataLost(
            f"{name}: sample {sample} must be {type_name(first.dtype)} as the first one, got {type_name(value.dtype)}"
        )


def type_name(dtype: torch.dtype) -> str:
    """Return the name of a type without its module, for errors."""
    return str(dtype).removeprefix("torch.")


@dataclass(eq=False, repr=False)
class Items(CrossEntropy):
    """Samples of two map-style data sets, split over the workers. name: name of the data, for errors. first: input
    whose shape and kind all must have; None: the first one read. source: the user's function that made the sets, if
    any. augment: augmentation after reading, as in `Classification`.

    The global random streams, which augmentation draws from, are seeded by (seed, rank, step)."""

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
    _ahead: BatchesAhead | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.samples = len(self.train)

    def read_ahead(self, processes: int) -> None:
        """Have processes read later batches ahead, as far as that gives the same bits."""
        batch_size = self.partition.batch_size
        most = max(batch_size, EVALUATION_BATCH)
        self._ahead = BatchesAhead(self.name, processes, self.read, batch_size, most, self.input_shape, self.dtype)

    def close(self) -> None:
        """End the processes that read ahead."""
        if self._ahead is not None:
            self._ahead.close()
        self._ahead = None

    def batch(self, rank: int, step: int) -> tuple[Tensor, Tensor]:
        """Return inputs [b, *input_shape] and labels [b] of worker `rank` at its own step `step`. Raises DataLost."""
        read = TrainingRead(rank, step)
        return self.read(read) if (ahead := self._ahead_here()) is None else ahead.batch(read)

    def evaluation(self, test: bool, limit: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs and labels of the test or training set in batches. limit: see `evaluation_order`."""
        order = evaluation_order(self.count(test), test, limit).tolist()
        reads = (
            EvaluationRead(test, begin, order[begin : begin + EVALUATION_BATCH])
            for begin in range(0, len(order), EVALUATION_BATCH)
        )
        yield from map(self.read, reads) if (ahead := self._ahead_here()) is None else ahead.evaluation(reads)

    def read(self, read: TrainingRead | EvaluationRead) -> tuple[Tensor, Tensor]:
        """Read a batch, in this process. Raises DataLost."""
        if isinstance(read, EvaluationRead):
            with seeded_streams(_seed("evaluation", int(read.test), read.begin)):
                return self._read(self.test if read.test else self.train, read.indices)
        indices = self.partition.indices(read.rank, read.step).tolist()
        with seeded_streams(_seed("augmentation", self.partition.seed, read.rank, read.step)):
            inputs, labels = self._read(self.train, indices)
        if self.augment:
            drawn = movements(self.partition.seed, read.rank, read.step, len(indices))
            inputs = move_and_mirror(inputs, *map(torch.from_numpy, drawn))
        return inputs, labels

    def sample(self, test: bool, index: int) -> tuple[Tensor, Tensor]:
        """Return input and label of one sample of the test or training set, as they are in a batch. Raises DataLost."""
        inputs, labels = self._read(self.test if test else self.train, [index])
        return inputs[0], labels[0]

    def count(self, test: bool) -> int:
        """Return the number of samples of the test or training set."""
        return len(self.test if test else self.train)

    def _ahead_here(self) -> BatchesAhead | None:
        """Return the object that reads ahead, if it was started in this process, not in its parent."""
        return self._ahead if self._ahead is not None and self._ahead.owner == os.getpid() else None

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


def _seed(name: str, *key: int) -> int:
    return int(stream(name, *key).integers(2**63))
