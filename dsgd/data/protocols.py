"""Optional abilities of data sets, and functions that fall back on `Data` where a data set lacks them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Protocol, TypeGuard, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from dsgd.data import Data

EVALUATION_BATCH = 1024  # samples per forward pass: bounds the memory of activations
EVALUATION_BATCH_GPU = 8192  # of data on a GPU, which a small network's pass over fewer leaves waiting for the host


@runtime_checkable
class MovableData(Protocol):
    """Data in memory that can be on the device that computes with them."""

    def move_to(self, device: torch.device) -> None:
        """Move the samples to a device, unless they would take more than half of its free memory."""
        ...


@runtime_checkable
class StreamedEvaluation(Protocol):
    """Data that do not fit into memory: they stream evaluation batches, and have no `train_set` and `test_set`."""

    def evaluation(self, test: bool, limit: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches of the test or training set (`limit` samples of it), not augmented."""
        ...


@runtime_checkable
class SampleLosses(Protocol):
    """Data that return the loss of every single sample."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each sample of a batch [b], of several labels their mean. `Data.loss` is their mean."""
        ...


@runtime_checkable
class NamedSamples(Protocol):
    """Data on disk, whose samples have names, by which they are known without being read."""

    def labels(self, test: bool) -> np.ndarray:
        """Return the labels [n] of the test or training set."""
        ...

    def name(self, test: bool, sample: int) -> str:
        """Return where a sample is, apart from the folder of the data: its file, offset and size."""
        ...


@runtime_checkable
class SingleSamples(Protocol):
    """Data of the user's, whose samples can be had one by one."""

    def sample(self, test: bool, index: int) -> tuple[Tensor, Tensor]:
        """Return input and label of one sample of the test or training set, as they are in a batch."""
        ...

    def count(self, test: bool) -> int:
        """Return the number of samples of the test or training set."""
        ...


@runtime_checkable
class SharedDecoding(Protocol):
    """Data that are read and decoded by processes of their own, which share the cores of a machine."""

    def share(self, processes: int) -> None:
        """Use the share of one of `processes` processes on this machine that load batches at once."""
        ...


@runtime_checkable
class ReadAhead(Protocol):
    """Data whose batches take long to read, and can be read by processes forked for it."""

    def read_ahead(self, processes: int) -> None:
        """Fork so many processes, which read batches before they are asked for. This process must have one thread."""
        ...

    def close(self) -> None:
        """End the processes."""
        ...


@runtime_checkable
class JointBatches(Protocol):
    """Data that return several batches in one call, with the same numbers as `Data.batch`."""

    def batches(self, ranks: Sequence[int], steps: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return inputs [n, b, *input_shape] and targets [n, b, ...], row i of worker ranks[i] at its step steps[i]."""
        ...


def is_joint(data: Data) -> TypeGuard[JointBatches]:
    """Tell whether data have `JointBatches.batches`."""
    return _is_joint_type(type(data))


@cache  # a check of a protocol takes a twentieth of the time of a small stack's gradients
def _is_joint_type(kind: type[Data]) -> bool:
    return issubclass(kind, JointBatches)


def joint_batches(data: Data, ranks: Sequence[int], steps: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Call `JointBatches.batches`, or join single batches."""
    if is_joint(data):
        return data.batches(ranks, steps)
    pairs = [data.batch(rank, step) for rank, step in zip(ranks, steps, strict=True)]
    inputs, targets = (torch.stack(column) for column in zip(*pairs, strict=True))
    return inputs, targets


def evaluation_batches(
    data: Data, test: bool, limit: int | None = None, size: int | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Call `StreamedEvaluation.evaluation`, or yield batches of the first `limit` samples in memory. size: samples in
    each of these; None: more of data on a GPU than of others."""
    if isinstance(data, StreamedEvaluation):
        yield from data.evaluation(test, limit)
        return
    inputs, targets = (whole[:limit] for whole in (data.test_set if test else data.train_set))
    size = size or (EVALUATION_BATCH_GPU if inputs.is_cuda else EVALUATION_BATCH)
    for begin in range(0, len(inputs), size):
        batch = slice(begin, begin + size)
        yield inputs[batch], targets[batch]


def test_samples(data: Data) -> int:
    """Return the number of test samples, without reading samples on disk."""
    if isinstance(data, NamedSamples):
        return len(data.labels(test=True))
    return data.count(test=True) if isinstance(data, SingleSamples) else len(data.test_set[0])


def sample_losses(data: Data, outputs: Tensor, targets: Tensor) -> Tensor:
    """Call `SampleLosses.losses`; NaN for every sample where a data set has no such method."""
    if isinstance(data, SampleLosses):
        return data.losses(outputs, targets)
    return outputs.new_full((len(outputs),), math.nan)
