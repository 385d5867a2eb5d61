"""Take data of the user's own from a function, named by its import path, that returns a training and a test set."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from dsgd.data import DataLost
from dsgd.data.own_sets import OwnSamples, OwnSets, Samples, Sets, Sizes, own_sets
from dsgd.data.split import Split
from dsgd.host.launcher import legible
from dsgd.host.resources import total_memory
from dsgd.keys import check_options
from dsgd.streams import seeded_streams

if TYPE_CHECKING:
    import torch

    from dsgd.data.decoding import DecodedSamples, LabelledTensors
    from dsgd.data.items import Items

DECODE = ("auto", "once", "each_read")
ORDER_BYTES = 16  # bytes of a sample in the permutations that assign and hold out samples


@dataclass(frozen=True)
class ImportedData(Split):
    """The two data sets that the function at `target` returns when it is called with the arguments."""

    target: str  # package.module.function
    classes: int  # labels are 0 .. classes - 1
    arguments: dict[str, Any] = field(default_factory=dict)
    label: str | None = None  # its name in tables and figures
    decode: str = "auto"  # auto | once | each_read: when samples are read; auto: once, if that changes nothing
    augment: bool = field(default=False, kw_only=True)  # shift by up to 4 pixels and mirror at random, in training only

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self, decode=DECODE, classes=">= 2")

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of the first training sample, without batch axis. Raises ValueError."""
        return tuple(self._first.shape)

    def train_samples(self, nodes: int) -> int:
        """Count the samples to train on. Calls the target. Raises ValueError."""
        return self.kept(self._source.sizes[0])

    def check(self, nodes: int, batch_size: int) -> None:
        super().check(nodes, batch_size)
        if self.augment and len(self.input_shape) != 3:
            shape = " x ".join(map(str, self.input_shape)) or "one number"
            raise ValueError(f"augment must be false but for images [channels, height, width], got inputs of {shape}")
        needed, most = ORDER_BYTES * max(self._source.sizes), total_memory()
        if needed > most:
            rule = f"must have samples whose order fits in memory, {most / 2**30:.3g} GiB"
            raise ValueError(f"{self._source.name} {rule}, got {max(self._source.sizes)} of them")
        self._labels()

    def load(self, nodes: int, batch_size: int, seed: int, dtype: torch.dtype) -> DecodedSamples | Items:
        partition = self.partition(self._labels(), nodes, batch_size, seed)
        size, name = self._source.sizes[0], self._source.name
        if (arrays := self._decoded) is not None:
            from dsgd.data.decoding import DecodedSamples, LabelledTensors

            for part, kind in zip(arrays, ("", " of the test set"), strict=False):
                part.check_finite(name, dtype, kind)
            train, test = self.parts(arrays[0], arrays[-1], LabelledTensors.chosen, size)
            return DecodedSamples(train, test, self.classes, partition, dtype, self.augment)
        from dsgd.data.items import ChosenSamples, Items

        sets = OwnSamples(self._source, 0), OwnSamples(self._source, 1)
        train, test = self.parts(*sets, ChosenSamples, size)
        shape, first = self.input_shape, self._first
        return Items(name, train, test, self.classes, shape, partition, dtype, first, self._source, self.augment)

    def __getstate__(self) -> dict[str, Any]:
        """Return only the configuration: the receiver loads the sets itself."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def _labels(self) -> np.ndarray:
        """Return the labels [n] of the samples to train on: `targets` of the training set, or the labels of its
        samples; zeros for data.split=iid, which needs no labels, because reading all samples may take long. Raises
        ValueError."""
        arrays = self._decoded
        kept, _ = self.indices(samples := self._source.sizes[0])
        if self.split == "iid":
            return np.zeros(len(kept), np.int64)
        if arrays is not None and not hasattr(self._source.sets[0], "targets"):
            return arrays[0].labels.numpy()[kept]
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
    def _decoded(self) -> list[LabelledTensors] | None:
        """Return all samples of the used sets; None if each is read when it is needed. Raises ValueError."""
        if self.decode == "each_read":
            return None
        # options are chosen without a look at the test set
        used = self._source.sets[: 2 if self.evaluate == "test" else 1]
        if len(used) == 1 and (both := self._source.made((self.decode, 2))):
            return both[:1]
        return self._source.once((self.decode, len(used)), lambda: self._decode(used))

    def _decode(self, sets: Sequence[Samples]) -> list[LabelledTensors] | None:
        """Read all samples of the sets, or say in a line why not. Raises ValueError."""
        from dsgd.data.decoding import NotFixed, decoded

        name, first = self._source.name, self._first
        try:
            with self._source.watched():
                established, sizes = self.decode == "auto", self._source.sizes
                arrays, taken = decoded(name, sets, sizes, first, self.classes, established)
        except DataLost as error:
            raise ValueError(str(error)) from error
        except NotFixed as reason:
            if self.decode == "once":
                rule = "must have samples that can be read once with data.decode=once"
                raise ValueError(f"{name} {rule}: {reason}") from reason
            self._say(f"samples are read whenever they are needed, as {reason}")
            return None
        counts = " and ".join(f"{len(part.labels):,}" for part in arrays)
        self._say(f"{counts} samples in memory, {f'{taken / 2**20:,.1f} MiB' if taken else 'as they are'}")
        return arrays

    def _say(self, text: str) -> None:
        launch = legible(os.environ)
        if launch is None or launch.rank == 0:
            print(f"{self._source.name}: {text}", file=sys.stderr)

    @cached_property
    def _first(self) -> torch.Tensor:
        from dsgd.data.items import read_sample

        try:
            with seeded_streams():
                return read_sample(self._source.name, self._source.sets[0], 0, self.classes)[0]
        except DataLost as error:
            raise ValueError(str(error)) from error

    def _read_ends(self, sets: Sets, sizes: Sizes) -> None:
        """Read the first and last samples of the sets that are used, which must be alike. Raises DataLost."""
        from dsgd.data.items import check_alike, read_sample

        name = f"data.target={self.target}"
        with seeded_streams():  # for random numbers that they draw
            first, _ = read_sample(name, sets[0], 0, self.classes)
            used = sets if self.evaluate == "test" else sets[:1]  # options are chosen without a look at the test set
            for samples, size, kind in zip(used, sizes, ("", " of the test set"), strict=False):
                for index in dict.fromkeys((0, size - 1)):
                    value, _ = read_sample(name, samples, index, self.classes, kind)
                    check_alike(name, value, first, f"{index}{kind}")
