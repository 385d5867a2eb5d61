"""Optional abilities of data sets, and functions that fall back on `Data` if a data set lacks them.

A digest identifies data in a few letters, so that processes, and a run and its resumption, can compare theirs. It has
parts, each with a hash for one or several numbers of samples: samples read one by one are read for a limited time only,
so two digests are compared at the numbers that both have. Samples are taken in one order everywhere.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from typing import Protocol, TypeGuard, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from dsgd.data import Data
from dsgd.data.in_memory import Classification
from dsgd.data.items import Items
from dsgd.streams import seeded_streams, stream

EVALUATION_BATCH = 1024  # samples per forward pass: bounds the memory of activations
EVALUATION_BATCH_GPU = 8192  # of data on a GPU, which a small network's pass over fewer leaves waiting for the host
Digest = dict[str, dict[str, str]]  # by part, by number of samples
LIMIT_S = 0.5  # for reading the samples of one set
LEAST = 8  # minimum of samples, for any reading time
AT_ONCE = 256  # inputs of a set in memory at a time; its labels are hashed together


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
    """Data on disk with named samples: the names identify samples without reading them."""

    def labels(self, test: bool) -> np.ndarray:
        """Return the labels [n] of the test or training set."""
        ...

    def name(self, test: bool, sample: int) -> str:
        """Return the location of a sample in the data's folder: its file, offset and size."""
        ...


@runtime_checkable
class SingleSamples(Protocol):
    """Data of the user's, whose samples can be had one by one."""

    def sample(self, test: bool, index: int) -> tuple[Tensor, Tensor]:
        """Return input and label of one sample of the test or training set, in the form of a batch."""
        ...

    def count(self, test: bool) -> int:
        """Return the number of samples of the test or training set."""
        ...


@runtime_checkable
class SharedDecoding(Protocol):
    """Data that separate processes read and decode, sharing the cores of a machine."""

    def share(self, processes: int) -> None:
        """Use the share of one of `processes` processes on this machine that load batches at once."""
        ...


@runtime_checkable
class ReadAhead(Protocol):
    """Data whose batches take long to read, and can be read by processes forked for it."""

    def read_ahead(self, processes: int) -> None:
        """Fork `processes` processes that read batches ahead. This process must have one thread."""
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
    """Return whether data have `JointBatches.batches`."""
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
    """Call `StreamedEvaluation.evaluation`, or yield batches of the first `limit` samples in memory. size: samples of
    such a batch; None: larger for data on a GPU."""
    if isinstance(data, StreamedEvaluation):
        yield from data.evaluation(test, limit)
        return
    inputs, targets = (whole[:limit] for whole in (data.test_set if test else data.train_set))
    size = size or (EVALUATION_BATCH if inputs.is_cpu else EVALUATION_BATCH_GPU)
    for begin in range(0, len(inputs), size):
        batch = slice(begin, begin + size)
        yield inputs[batch], targets[batch]


def test_samples(data: Data) -> int:
    """Return the number of test samples, without reading samples on disk."""
    if isinstance(data, NamedSamples):
        return len(data.labels(test=True))
    return data.count(test=True) if isinstance(data, SingleSamples) else len(data.test_set[0])


def sample_losses(data: Data, outputs: Tensor, targets: Tensor) -> Tensor:
    """Call `SampleLosses.losses`; NaN for every sample if a data set has no such method."""
    if isinstance(data, SampleLosses):
        return data.losses(outputs, targets)
    return outputs.new_full((len(outputs),), math.nan)


def data_digest(data: Data | Items) -> Digest:
    """Return the digest of data: sizes, types, all labels that are in memory, samples of the inputs.

    Raises DataLost for a sample that cannot be read."""
    shape = " x ".join(map(str, data.input_shape))
    digest = {
        "training samples": {"1": str(data.samples)},
        "input shapes": {"1": str(shape)},
        "numbers of classes": {"1": str(data.classes)},
    }
    if isinstance(data, SingleSamples):
        source = data.source if isinstance(data, Items) else None
        with source.watched() if source is not None else nullcontext():
            for test, kind in ((False, "training"), (True, "test")):
                digest |= {f"{kind} {part}": hashes for part, hashes in _of_samples(data, test).items()}
        return digest
    for test, kind in ((False, "training"), (True, "test")):
        digest |= {f"{kind} {part}": hashes for part, hashes in _in_memory(data, test).items()}
    return digest


def difference(digest: Mapping[str, Mapping[str, str]], other: Mapping[str, Mapping[str, str]]) -> str | None:
    """Return the first part in which two digests differ at a number of samples that both have, or None."""
    for part, hashes in digest.items():
        others = other.get(part, {})
        if any(hashes[count] != others[count] for count in hashes if count in others):
            return part
    return None


def content_hash(parts: Iterable[Tensor | np.ndarray | str]) -> str:
    """Return a hash of arrays, with their types and shapes, and texts."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        _add(digest, part)
    return digest.hexdigest()


def _add(digest: hashlib.blake2b, part: Tensor | np.ndarray | str) -> None:
    if isinstance(part, Tensor):
        part = part.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy() if part.numel() else ""
    if isinstance(part, np.ndarray):
        digest.update(f"{part.dtype.str} {part.shape} ".encode())
        digest.update(np.ascontiguousarray(part).data)
    else:
        digest.update(f"{part}\0".encode())


def _in_memory(data: Data, test: bool) -> Digest:
    """Return the parts of a set whose labels are all in memory."""
    inputs: Iterable[Tensor | str]
    labels: Tensor | np.ndarray
    if isinstance(data, NamedSamples):
        labels = data.labels(test)
        inputs = (data.name(test, int(sample)) for sample in _order(len(labels))[:AT_ONCE])
    elif isinstance(data, Classification):  # 8-bit, in their stored form
        images, labels = data.test if test else data.train
        inputs = [torch.as_tensor(images[_order(len(images))[:AT_ONCE]])]
    else:
        values, labels = data.test_set if test else data.train_set
        inputs = [values[torch.from_numpy(_order(len(values))[:AT_ONCE])]]
    return {
        "samples": {"1": str(len(labels))},
        "labels": {"all": content_hash([labels])},
        "inputs": {"some": content_hash(inputs)},
    }


def _of_samples(data: SingleSamples, test: bool) -> Digest:
    """Return the parts of a user's set, in memory or read one by one: hashes of the first samples in an order, of twice
    as many, and so on. Inputs that differ from one reading to the next, with all streams seeded, have no part."""
    samples = data.count(test)
    order = _order(samples).tolist()
    with seeded_streams():
        again = [content_hash(data.sample(test, index)) for index in order[:LEAST]]
    with seeded_streams():
        is_drawn = again != [content_hash(data.sample(test, index)) for index in order[:LEAST]]
    inputs, labels = hashlib.blake2b(digest_size=8), hashlib.blake2b(digest_size=8)
    parts: Digest = {"samples": {"1": str(samples)}, "labels": {}, "inputs": {}}
    deadline, due = time.monotonic() + LIMIT_S, LEAST
    with seeded_streams():
        for count, index in enumerate(order, start=1):
            value, label = data.sample(test, index)
            _add(inputs, value)
            _add(labels, label)
            if count in (due, len(order)):
                parts["labels"][str(count)] = labels.hexdigest()
                if not is_drawn:
                    parts["inputs"][str(count)] = inputs.hexdigest()
                due *= 2
            if count >= LEAST and time.monotonic() > deadline:
                break
    return parts


def _order(samples: int) -> np.ndarray:
    return stream("digest").permutation(samples)
