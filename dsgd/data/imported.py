"""Take data of the user's own from a function, named by its import path, that returns a training and a test set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from dsgd.data.partition import check_share
from dsgd.data.split import Split
from dsgd.user_code import call_by_path

if TYPE_CHECKING:
    import torch

    from dsgd.data.items import Items, Samples


@dataclass(frozen=True)
class ImportedData(Split):
    """The two data sets that the function at `target` returns when it is called with the arguments."""

    target: str  # package.module.function
    classes: int  # labels are 0 .. classes - 1
    arguments: dict[str, Any] = field(default_factory=dict)
    label: str | None = None  # its name in tables and figures

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.classes < 2:
            raise ValueError(f"classes must be >= 2, got {self.classes}")

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of the first training sample, without batch axis. Raises ValueError."""
        return tuple(self._first.shape)

    def train_samples(self, nodes: int) -> int:
        """Count the samples to train on. Calls the target. Raises ValueError."""
        return self.kept(len(self._sets[0]))

    def check(self, nodes: int, batch_size: int) -> None:
        check_share(self.kept(len(self._sets[0])), nodes, batch_size)
        self._labels()

    def load(self, nodes: int, batch_size: int, seed: int, dtype: torch.dtype) -> Items:
        from dsgd.data.items import ChosenSamples, Items

        train, test = self.parts(*self._sets, ChosenSamples, len(self._sets[0]))
        partition = self.partition(self._labels(), nodes, batch_size, seed)
        return Items(self._name, train, test, self.classes, self.input_shape, partition, dtype)

    def _labels(self) -> np.ndarray:
        """Return the labels [n] of the samples to train on, as `targets` of the training set has them; zeros where
        data.split=iid asks for none, since reading all samples may take long. Raises ValueError."""
        kept, _ = self.indices(samples := len(self._sets[0]))
        if self.split == "iid":
            return np.zeros(len(kept), np.int64)
        rule = f"{self._name} must give a training set with `targets`, {samples} labels, for data.split={self.split}"
        if (targets := getattr(self._sets[0], "targets", None)) is None:
            raise ValueError(f"{rule}, got none")
        labels = np.asarray(targets)
        if labels.shape != (samples,) or labels.dtype.kind not in "iu":
            raise ValueError(f"{rule}, got {labels.dtype} of shape {labels.shape}")
        return labels[kept]

    @property
    def _name(self) -> str:
        return f"data.target={self.target}"

    @cached_property
    def _sets(self) -> tuple[Samples, Samples]:
        found = call_by_path(self.target, self.arguments, "data.target")
        pair = isinstance(found, Sequence) and len(found) == 2
        if not pair or not all(hasattr(of, "__len__") and hasattr(of, "__getitem__") for of in found):
            what = f"{len(found)} things" if isinstance(found, Sequence) else type(found).__name__
            raise ValueError(f"{self._name} must give two data sets, for training and for test, got {what}")
        if not all(map(len, found)):
            raise ValueError(f"{self._name} must give samples, got sets of {len(found[0])} and {len(found[1])}")
        return found[0], found[1]

    @cached_property
    def _first(self) -> torch.Tensor:
        from dsgd.data import DataLost
        from dsgd.data.items import read_sample

        try:
            return read_sample(self._name, self._sets[0], 0, self.classes)[0]
        except DataLost as error:
            raise ValueError(str(error)) from error
