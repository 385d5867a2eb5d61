"""Take data of the user's own from a function, named by its import path, that returns a training and a test set."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from dsgd.data import DataLost
from dsgd.data.own_sets import OwnSamples, OwnSets, Sets, own_sets
from dsgd.data.partition import check_share
from dsgd.data.split import Split

if TYPE_CHECKING:
    import torch

    from dsgd.data.items import Items


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
        return self.kept(self._source.sizes[0])

    def check(self, nodes: int, batch_size: int) -> None:
        check_share(self.train_samples(nodes), nodes, batch_size)
        self._labels()

    def load(self, nodes: int, batch_size: int, seed: int, dtype: torch.dtype) -> Items:
        from dsgd.data.items import ChosenSamples, Items

        sets = OwnSamples(self._source, 0), OwnSamples(self._source, 1)
        train, test = self.parts(*sets, ChosenSamples, self._source.sizes[0])
        partition = self.partition(self._labels(), nodes, batch_size, seed)
        return Items(
            self._source.name, train, test, self.classes, self.input_shape, partition, dtype, self._first, self._source
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return the configuration alone: whoever is given it loads the sets for itself."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def _labels(self) -> np.ndarray:
        """Return the labels [n] of the samples to train on, as `targets` of the training set has them; zeros where
        data.split=iid asks for none, since reading all samples may take long. Raises ValueError."""
        kept, _ = self.indices(samples := self._source.sizes[0])
        if self.split == "iid":
            return np.zeros(len(kept), np.int64)
        name = self._source.name
        rule = f"{name} must give a training set with `targets`, {samples} labels, for data.split={self.split}"
        if (targets := getattr(self._source.sets[0], "targets", None)) is None:
            raise ValueError(f"{rule}, got none")
        labels = np.asarray(targets)
        if labels.shape != (samples,) or labels.dtype.kind not in "biuf":
            raise ValueError(f"{rule}, got {labels.dtype} of shape {labels.shape}")
        wrong = labels[~((labels >= 0) & (labels < self.classes) & (labels == np.floor(labels)))]
        if len(wrong):
            raise ValueError(f"{name}: targets must be whole numbers in [0, {self.classes}), got {wrong[0]}")
        return labels[kept].astype(np.int64)

    @cached_property
    def _source(self) -> OwnSets:
        return own_sets(self.target, self.arguments, self.classes, self._read_ends)

    @cached_property
    def _first(self) -> torch.Tensor:
        from dsgd.data.items import read_sample

        try:
            return read_sample(self._source.name, self._source.sets[0], 0, self.classes)[0]
        except DataLost as error:
            raise ValueError(str(error)) from error

    def _read_ends(self, sets: Sets) -> None:
        """Read the first and last samples of the sets that are used, which must be alike. Raises DataLost."""
        import torch

        from dsgd.data.items import check_alike, read_sample

        name = f"data.target={self.target}"
        with torch.random.fork_rng(devices=[]):  # whatever they draw
            first, _ = read_sample(name, sets[0], 0, self.classes)
            used = sets if self.evaluate == "test" else sets[:1]  # options are chosen without a look at the test set
            for samples, kind in zip(used, ("", " of the test set"), strict=False):
                for index in dict.fromkeys((0, len(samples) - 1)):
                    value, _ = read_sample(name, samples, index, self.classes, kind)
                    check_alike(name, value, first, f"{index}{kind}")
