"""Serve batches of images on disk, decoded ahead by other processes: the loaded form of imagenet and imagenet-like."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dsgd.data import DataLost
from dsgd.data.images import SIDE
from dsgd.data.images.augment import DEVIATION, MEAN
from dsgd.data.images.layout import ImageSource, Layout
from dsgd.data.images.pool import DecodingPool, PendingImages
from dsgd.data.in_memory import CrossEntropy
from dsgd.data.partition import Partition, evaluation_order
from dsgd.host.resources import cores, keep_freed_memory

EVALUATION_BATCH = 128  # images: bounds the memory
IN_A_ROW = 100  # so many broken images, one after the other, end the run: something else is wrong


@dataclass(eq=False, repr=False)
class Images(CrossEntropy):
    """Training and test images, split over the workers.

    Decoding processes are started where and when a batch is first asked for; a forked process starts its own. They
    decode ahead on the assumption that (rank, step) is followed by (rank, step + 1); any other order gives the same
    batches, more slowly. One thread at a time.

    processes: number of decoding processes; None: the cores that this process may use, divided by `share`.
    max_pixels: a file with more is broken. on_error: what a broken file does, `skip` or `fail`.
    broken: number of broken files that this process has met.
    scale, shift: [3, 1, 1] fp64, inputs = pixels * scale + shift."""

    layout: Layout
    partition: Partition
    dtype: torch.dtype
    decoder: str
    max_pixels: int
    on_error: str
    processes: int | None

    def __post_init__(self) -> None:
        self.samples = len(self.layout.train.labels)
        self.classes = len(self.layout.classes)
        self.input_shape = (3, SIDE, SIDE)
        self.broken = 0
        self.scale = torch.from_numpy(1 / DEVIATION).view(3, 1, 1)
        self.shift = torch.from_numpy(-MEAN / DEVIATION).view(3, 1, 1)
        self._sharing = 1  # processes of this machine that ask for batches
        self._pool: DecodingPool | None = None
        self._substitutes: dict[tuple[bool, int], int] = {}  # (of the test set, broken sample): the next sample
        keep_freed_memory()  # fresh memory for each batch would cost a third of the time that decoding into it takes

    def labels(self, test: bool) -> np.ndarray:
        """Return the labels [n] of the test or training set."""
        return (self.layout.test if test else self.layout.train).labels

    def name(self, test: bool, sample: int) -> str:
        """Return where a sample is, apart from the folder of the data: its file, offset and size."""
        path, offset, size = (self.layout.test if test else self.layout.train).locate(sample)
        return f"{os.path.basename(path)} {offset} {size}"

    def share(self, processes: int) -> None:
        """Divide the cores by the number of processes of this machine that ask for batches at the same time."""
        self._sharing = processes

    def batch(self, rank: int, step: int) -> tuple[Tensor, Tensor]:
        """Return inputs [b, 3, 224, 224], normalised, and labels [b] of worker `rank` at its own step `step`."""
        return self._normalised(self._here().of_step(rank, step))

    def pixels(self, rank: int, step: int, pinned: bool = False) -> tuple[Tensor, Tensor]:
        """Return the same batch in 8 bits, not normalised: a quarter of the bytes to copy to a device.

        pinned: in page-locked memory, from which a GPU copies asynchronously."""
        batch = self._here().of_step(rank, step)
        out = torch.empty((len(batch.samples), *self.input_shape), dtype=torch.uint8, pin_memory=pinned)
        target = out.numpy()
        for rows, pixels in self._here().pixels(batch):
            target[rows] = pixels
        return out, batch.labels()

    def evaluation(self, test: bool, limit: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs and labels of the test or training set in batches, not augmented. limit: see
        `evaluation_order`."""
        source = self.layout.test if test else self.layout.train
        order = evaluation_order(len(source.labels), test, limit)
        begins = range(0, len(order), EVALUATION_BATCH)
        batches = (self._pending(source, order[begin : begin + EVALUATION_BATCH], None) for begin in begins)
        yield from map(self._normalised, self._here().in_order(batches, EVALUATION_BATCH))

    def close(self) -> None:
        """End the decoding processes of this process; asking for a batch starts new ones."""
        if self._pool is not None:
            self._pool.close()
        self._pool = None

    def _here(self) -> DecodingPool:
        """Return the pool of this process, not that of the process it was forked from."""
        if self._pool is not None and self._pool.owner != os.getpid():
            self.close()
        if self._pool is None:
            processes = self.processes or max(1, cores() // self._sharing)
            options, more = (self.decoder, self.max_pixels), 2 * self.partition.batch_size
            self._pool = DecodingPool(processes, *options, self._substitute, self._pending_of, more)
        return self._pool

    def _pending_of(self, rank: int, step: int) -> PendingImages:
        indices = self.partition.indices(rank, step)
        return self._pending(self.layout.train, indices, (self.partition.seed, rank, step))

    def _pending(self, source: ImageSource, samples: np.ndarray, key: tuple[int, int, int] | None) -> PendingImages:
        if self._substitutes:
            samples = np.array([self._known(source, int(sample)) for sample in samples])
        return PendingImages(source, samples, key)

    def _known(self, source: ImageSource, sample: int) -> int:
        """Return the sample, or what stands in for it if it is known to be broken."""
        test = source is self.layout.test
        while (test, sample) in self._substitutes:
            sample = self._substitutes[test, sample]
        return sample

    def _substitute(self, source: ImageSource, sample: int, reason: str) -> int:
        """Return the sample that stands in for a broken one: the next that is not known to be broken, in every batch.

        Raises DataLost with on_error=fail, or if there are too many broken ones in a row."""
        name, test = source.name(sample), source is self.layout.test
        if self.on_error == "fail":
            raise DataLost(f"data.on_error=fail: {name} {reason}")
        samples = len(source.labels)
        other = (sample + 1) % samples
        if (test, sample) not in self._substitutes:
            self._substitutes[test, sample] = other
            self.broken += 1
            print(f"data: {name} {reason}; {source.name(other)} in its place ({self.broken} broken)", file=sys.stderr)
        row, limit = 1, min(IN_A_ROW, samples)
        while row < limit and (test, (sample - row) % samples) in self._substitutes:
            row += 1
        if row == limit:
            raise DataLost(f"data.path must hold images, got {row} broken ones in a row up to {name}, which {reason}")
        return self._known(source, other)

    def _normalised(self, batch: PendingImages) -> tuple[Tensor, Tensor]:
        dtype = torch.float64 if self.dtype == torch.float64 else torch.float32
        inputs = torch.empty((len(batch.samples), *self.input_shape), dtype=dtype)
        out, scale, shift = (tensor.to(dtype).numpy() for tensor in (inputs, self.scale, self.shift))
        for rows, pixels in self._here().pixels(batch):
            for target, image in zip(out[rows], pixels, strict=True):  # one at a time stays in the cache
                target[...] = image
                target *= scale
                target += shift
        return inputs.to(self.dtype), batch.labels()
