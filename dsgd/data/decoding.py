"""Read a user's data sets once, into one array each, if their samples do not change from one reading to the next.

That is checked, not assumed: reading must not change any global random stream, and some samples are read again, before
and after the others, and compared bit for bit. The tensors of a TensorDataset are used unchanged.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from time import monotonic
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from dsgd.data import DataLost
from dsgd.data.in_memory import Classification
from dsgd.data.items import EVALUATION_BATCH, check_alike, read_sample, type_name
from dsgd.data.own_sets import Samples, Sizes, check_length
from dsgd.data.partition import evaluation_order
from dsgd.data.protocols import content_hash
from dsgd.host.resources import available_memory, total_memory
from dsgd.streams import seeded_streams, stream, stream_states

TRIED = 16  # samples of a set that are read twice before all are read
COMPARED = 64  # samples of a set that are read again at the end
LONG_S = 10.0  # of reading a set: from here on a line says that it will take long
KINDS = ("", " of the test set")  # of samples, for errors
GIB = 2**30

CHECKED_AT_ONCE = 4096  # samples: bounds the memory


class LabelledTensors(NamedTuple):
    """Inputs [n, *input_shape] of any type, and labels [n] int64."""

    inputs: Tensor
    labels: Tensor

    def chosen(self, indices: np.ndarray) -> LabelledTensors:
        """Return a copy of some samples."""
        rows = torch.from_numpy(indices)
        return LabelledTensors(self.inputs[rows], self.labels[rows])

    def check_finite(self, name: str, dtype: torch.dtype, kind: str = "") -> None:
        """Raise ValueError for an input that is not finite in this type. name: the data's name. kind: its set."""
        if not self.inputs.is_floating_point():
            return
        for begin in range(0, len(self.inputs), CHECKED_AT_ONCE):
            finite = self.inputs[begin : begin + CHECKED_AT_ONCE].to(dtype).isfinite().flatten(1).all(dim=1)
            if not bool(finite.all()):
                sample = begin + int(finite.logical_not().nonzero()[0])
                raise ValueError(f"{name}: sample {sample}{kind} must be of finite numbers in {type_name(dtype)}")


class DecodedSamples(Classification):
    """Samples that were read once, each in its own type: inputs are converted when a batch is made, and not normalised.
    Batches and evaluation have the same bits as with `dsgd.data.items.Items`."""

    def evaluation(self, test: bool, limit: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs and labels of the test or training set in batches. limit: see `evaluation_order`."""
        inputs, labels = self._set(test)
        order = evaluation_order(len(labels), test, limit)
        for begin in range(0, len(order), EVALUATION_BATCH):
            rows = self._beside_images(order[begin : begin + EVALUATION_BATCH])
            yield self._normalised(inputs.index_select(0, rows)), labels[rows]

    def sample(self, test: bool, index: int) -> tuple[Tensor, Tensor]:
        """Return input and label of one sample of the test or training set, in the form of a batch."""
        inputs, labels = self._set(test)
        return self._normalised(inputs[index]), labels[index]

    def count(self, test: bool) -> int:
        """Return the number of samples of the test or training set."""
        return len(self._set(test)[1])

    def _set(self, test: bool) -> tuple[Tensor, Tensor]:
        return (self._test_images, self._test_labels) if test else (self._train_images, self._train_labels)

    def _statistics(self) -> tuple[Tensor, Tensor]:
        return torch.zeros((), dtype=self.dtype), torch.ones((), dtype=self.dtype)

    def _training_inputs(self, indices: Tensor) -> Tensor:
        return self._normalised(self._train_images.index_select(0, indices))  # all of them may take eight times as much

    def _normalised(self, images: Tensor) -> Tensor:
        return images.to(self.dtype)


class NotFixed(Exception):
    """Raised for a set that cannot be read once: its text says why."""


def decoded(
    name: str, sets: Sequence[Samples], sizes: Sizes, first: Tensor, classes: int, established: bool
) -> tuple[list[LabelledTensors], int]:
    """Read all samples of the training set, and of the test set if it is given. Returns the tensors, and the bytes of
    newly allocated memory.

    sizes: sizes of both sets. first: input whose shape and kind all must have. established: whether to check that
    samples do not change. Raises NotFixed if they change or are too many for this machine, DataLost for invalid
    ones."""
    tensors = [_tensors(samples, first, classes) for samples in sets]
    for samples, size, kind in zip(sets, sizes, KINDS, strict=False):
        check_length(name, samples, size, kind)
    whole = list(zip(sets, sizes, KINDS, tensors, strict=False))
    read = [(samples, size, kind) for samples, size, kind, given in whole if given is None]
    needed = sum(_bytes(name, samples, size, classes, kind) for samples, size, kind in read)
    if needed > (most := total_memory() // 2):
        raise NotFixed(f"its samples take {needed / GIB:.3g} GiB, more than half of the memory, {most / GIB:.3g} GiB")
    if needed > (left := available_memory()):
        rule = f"{name} needs {needed / GIB:.3g} GiB of memory for its samples, got {left / GIB:.3g} GiB"
        raise DataLost(f"{rule}; data.decode=each_read reads them whenever they are needed")
    if established:
        for samples, size, kind in read:
            _try(name, samples, size, classes, kind)
    arrays = [
        given or _read(name, samples, size, first, classes, kind, established) for samples, size, kind, given in whole
    ]
    return arrays, needed


def _tensors(samples: Samples, first: Tensor, classes: int) -> LabelledTensors | None:
    """Return the inputs and labels of a user's TensorDataset. None for other data, which are read sample by sample."""
    if type(samples) is not TensorDataset or len(samples.tensors) != 2:
        return None
    inputs, labels = samples.tensors
    plain = all(
        type(tensor) is Tensor and tensor.layout == torch.strided and tensor.device.type == "cpu"
        for tensor in (inputs, labels)
    )
    if not plain or inputs.is_complex() or labels.is_complex() or labels.numel() != len(labels):
        return None
    if inputs.shape[1:] != first.shape or inputs.is_floating_point() != first.is_floating_point():
        return None
    numbers = labels.detach().reshape(-1).double()
    if not bool(((numbers >= 0) & (numbers < classes) & (numbers == numbers.floor())).all()):
        return None
    return LabelledTensors(inputs.detach(), numbers.long())


def _bytes(name: str, samples: Samples, size: int, classes: int, kind: str) -> int:
    with seeded_streams():
        value, _ = read_sample(name, samples, 0, classes, kind)
    return size * (value.nbytes + torch.int64.itemsize)


def _try(name: str, samples: Samples, size: int, classes: int, kind: str) -> None:
    """Read some samples twice. Raises NotFixed if they differ, or if a random number was drawn."""
    chosen = stream("tried samples").permutation(size)[:TRIED].tolist()
    began = monotonic()
    with seeded_streams():
        before = stream_states()
        for index in chosen:
            bits = [_bits(*read_sample(name, samples, index, classes, kind)) for _ in range(2)]
            _check_streams(before)
            if bits[0] != bits[1]:
                raise NotFixed(f"sample {index}{kind} differs from one reading to the next")
    expected_s = (monotonic() - began) / (2 * len(chosen)) * size
    if expected_s > LONG_S:
        line = f"{name}: reading {size:,} samples{kind} once will take about {expected_s:.0f} s"
        print(f"{line}; data.decode=each_read reads them whenever they are needed", file=sys.stderr)


def _read(
    name: str, samples: Samples, count: int, first: Tensor, classes: int, kind: str, established: bool
) -> LabelledTensors:
    """Read all samples of a set, in their order, in the type of its first one."""
    with seeded_streams():
        before = stream_states()
        value, _ = read_sample(name, samples, 0, classes, kind)
        inputs, labels = torch.empty((count, *first.shape), dtype=value.dtype), torch.empty(count, dtype=torch.int64)
        for index in range(count):
            value, labels[index] = read_sample(name, samples, index, classes, kind)
            check_alike(name, value, first, f"{index}{kind}")
            if value.dtype != inputs.dtype:
                types = f"{type_name(value.dtype)}, and the first one {type_name(inputs.dtype)}"
                raise NotFixed(f"sample {index}{kind} is of {types}")
            inputs[index] = value
        check_length(name, samples, count, kind)
        if established:
            for index in stream("compared samples").permutation(count)[:COMPARED].tolist():
                if _bits(*read_sample(name, samples, index, classes, kind)) != _bits(inputs[index], int(labels[index])):
                    raise NotFixed(f"sample {index}{kind} differs from one reading to the next")
            _check_streams(before)
    return LabelledTensors(inputs, labels)


def _check_streams(before: dict[str, object]) -> None:
    after = stream_states()
    if moved := [name for name, state in before.items() if after[name] != state]:
        raise NotFixed(f"reading them draws random numbers of {' and '.join(moved)}")


def _bits(value: Tensor, label: int) -> str:
    return content_hash([str(value.dtype), str(tuple(value.shape)), value, str(label)])
