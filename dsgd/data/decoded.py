"""Serve a user's samples from memory: the loaded form of imported data whose samples do not change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dsgd.data.classification import Classification
from dsgd.data.items import EVALUATION_BATCH, type_name
from dsgd.data.partition import evaluation_order

CHECKED_AT_ONCE = 4096  # samples: bounds the memory


class LabelledTensors(NamedTuple):
    """Inputs [n, *input_shape], of whichever type, and labels [n] int64."""

    inputs: Tensor
    labels: Tensor

    def chosen(self, indices: np.ndarray) -> LabelledTensors:
        """Return a copy of some samples."""
        rows = torch.from_numpy(indices)
        return LabelledTensors(self.inputs[rows], self.labels[rows])

    def check_finite(self, name: str, dtype: torch.dtype, kind: str = "") -> None:
        """Raise ValueError for an input that is not finite in this type. name: of the data, kind: of samples."""
        if not self.inputs.is_floating_point():
            return
        for begin in range(0, len(self.inputs), CHECKED_AT_ONCE):
            finite = self.inputs[begin : begin + CHECKED_AT_ONCE].to(dtype).isfinite().flatten(1).all(dim=1)
            if not bool(finite.all()):
                sample = begin + int(finite.logical_not().nonzero()[0])
                raise ValueError(f"{name}: sample {sample}{kind} must be of finite numbers in {type_name(dtype)}")


class DecodedSamples(Classification):
    """Samples that were read once, each of the type that it has: inputs are converted when a batch is made, and not
    normalised. Batches and evaluation have the same bits as those of `dsgd.data.items.Items`."""

    def evaluation(self, test: bool, limit: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs and labels of the test or training set in batches. limit: see `evaluation_order`."""
        inputs, labels = self._set(test)
        order = evaluation_order(len(labels), test, limit)
        for begin in range(0, len(order), EVALUATION_BATCH):
            rows = self._beside_images(order[begin : begin + EVALUATION_BATCH])
            yield self._normalised(inputs.index_select(0, rows)), labels[rows]

    def sample(self, test: bool, index: int) -> tuple[Tensor, Tensor]:
        """Return input and label of one sample of the test or training set, as they are in a batch."""
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
