"""Photographs on disk, decoded by processes that work ahead: the loaded form of imagenet and imagenet-like."""

from __future__ import annotations

import os
import sys
import weakref
from collections import deque
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dsgd.data import DataLost
from dsgd.data.images import SIDE
from dsgd.data.images.augment import DEVIATION, MEAN
from dsgd.data.images.layout import Layout, Source
from dsgd.data.images.pool import Job, Pool
from dsgd.data.partition import Partition
from dsgd.host.resources import cores
from dsgd.streams import stream

EVALUATION_BATCH = 128  # images: bounds the memory
BUFFERS = 3  # that are kept besides the one in use
_INHERITED: list[Pool] = []
IN_A_ROW = 100  # broken images, one after the other: there is something else wrong


class Buffers:
    """Memory of batches, used again when nothing refers to it any more: fresh memory costs a third of the time that
    decoding into it takes, page by page."""

    def __init__(self) -> None:
        self._lent: list[tuple[np.ndarray, weakref.ref[np.ndarray]]] = []

    def take(self, shape: tuple[int, ...], dtype: type) -> np.ndarray:
        """An array of any content. It is taken back when the last tensor that is made of it is gone."""
        free = next((kept for kept, lent in self._lent if lent() is None and kept.shape == shape), None)
        if free is None or free.dtype != dtype:
            free = np.empty(shape, dtype)
        view = free[:]
        others = [(kept, lent) for kept, lent in self._lent if kept is not free]
        self._lent = [*others[-BUFFERS:], (free, weakref.ref(view))]
        return view


class Images:
    """Training and test images, split over the workers.

    Decoding processes are started where and when a batch is first asked for; a forked process starts its own. They
    decode ahead what is asked for next if (rank, step) is followed by (rank, step + 1); any other order gives the same
    batches, more slowly. One thread at a time.

    processes: of decoding; None: one for each core that this process may use, divided by `share`. on_error: what a
    broken file does, `skip` or `fail`. broken: how many have been met by this process.
    scale, shift: [3, 1, 1] fp64, inputs = pixels * scale + shift.
    """

    def __init__(
        self,
        layout: Layout,
        partition: Partition,
        dtype: torch.dtype,
        decoder: str,
        on_error: str,
        processes: int | None,
    ) -> None:
        self.partition = partition
        self.samples = len(layout.train.labels)
        self.classes: int | None = len(layout.classes)
        self.input_shape: tuple[int, ...] = (3, SIDE, SIDE)
        self.dtype = dtype
        self.broken = 0
        self.scale = torch.from_numpy(1 / DEVIATION).view(3, 1, 1)
        self.shift = torch.from_numpy(-MEAN / DEVIATION).view(3, 1, 1)
        self._layout = layout
        self._decoder = decoder
        self._on_error = on_error
        self._processes = processes
        self._neighbours = 1
        self._buffers = Buffers()
        self._pool: Pool | None = None
        self._ahead: dict[int, deque[tuple[int, Job]]] = {}  # by rank: steps in order, and their jobs
        self._substitutes: dict[tuple[int, int], int] = {}  # of a broken sample, by split

    def share(self, processes: int) -> None:
        """So many processes of this machine ask for batches at once: each is to take its part of the cores."""
        self._neighbours = processes

    def batch(self, rank: int, step: int) -> tuple[Tensor, Tensor]:
        """Inputs [b, 3, 224, 224], normalised, and labels [b] of worker `rank` at its own step `step`."""
        return self._inputs(self._asked(rank, step))

    def pixels(self, rank: int, step: int, pinned: bool = False) -> tuple[Tensor, Tensor]:
        """As `batch`, 8-bit and not normalised: a quarter of the bytes on their way to a device.

        pinned: in memory that a GPU copies from beside its other work."""
        job = self._asked(rank, step)
        shape = (len(job.samples), *self.input_shape)
        if pinned:
            out = torch.empty(shape, dtype=torch.uint8, pin_memory=True)  # torch uses such memory again
        else:
            out = torch.from_numpy(self._buffers.take(shape, np.uint8))
        target = out.numpy()
        for rows, found in self._here().take(job):
            target[rows] = found
        return out, self._labels(job)

    def evaluation(
        self, test: bool, limit: int | None = None, shard: tuple[int, int] = (0, 1)
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and labels of the test or training set in batches, not augmented.

        limit: so many samples only, the same ones in every run, of all classes. shard: (i, k), the i-th of k parts;
        together they are the whole."""
        source = self._layout.test if test else self._layout.train
        part, parts = shard
        order = stream("evaluation order", int(test)).permutation(len(source.labels))[:limit][part::parts]
        pool = self._here()
        wanted = (order[start : start + EVALUATION_BATCH] for start in range(0, len(order), EVALUATION_BATCH))
        jobs: deque[Job] = deque()
        try:
            for samples in wanted:
                job = self._job(source, samples, None)
                jobs.append(job)
                pool.submit(job, in_advance=False)
                while len(jobs) > 1 and pool.outstanding >= pool.ahead + EVALUATION_BATCH:
                    yield self._inputs(jobs.popleft())
            while jobs:
                yield self._inputs(jobs.popleft())
        finally:
            for job in jobs:
                pool.give_up(job)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy of logits `outputs` [b, classes] against labels `targets` [b], in nats."""
        return F.cross_entropy(outputs, targets)

    def close(self) -> None:
        """End the decoding processes of this process; asking for a batch starts new ones."""
        if self._pool is not None and self._pool.owner == os.getpid():
            self._pool.close()
        self._pool = None
        self._ahead.clear()

    def _here(self) -> Pool:
        """The pool of this process, not that of the process it was forked from."""
        if self._pool is None or self._pool.owner != os.getpid():
            if self._pool is not None:
                self._pool.close()  # its link only: the processes are not ours,
                _INHERITED.append(self._pool)  # and not to be waited for
            self._ahead.clear()
            processes = self._processes or max(1, cores() // self._neighbours)
            self._pool = Pool(processes, self._decoder, self._substitute)
        return self._pool

    def _asked(self, rank: int, step: int) -> Job:
        """The job of this batch, with those that follow on their way."""
        pool = self._here()
        coming = self._ahead.setdefault(rank, deque())
        while coming and coming[0][0] != step:
            pool.give_up(coming.popleft()[1])
        if coming:
            job = coming.popleft()[1]
        else:
            job = self._training_job(rank, step)
            pool.submit(job, in_advance=False)
        b = self.partition.batch_size
        following = step + 1 + len(coming)
        while not coming or pool.outstanding < pool.ahead + 2 * b:
            job_ahead = self._training_job(rank, following)
            if not pool.submit(job_ahead, in_advance=True):
                break
            coming.append((following, job_ahead))
            following += 1
        return job

    def _training_job(self, rank: int, step: int) -> Job:
        indices = self.partition.indices(rank, step)
        return self._job(self._layout.train, indices, (self.partition.seed, rank, step))

    def _job(self, source: Source, samples: np.ndarray, draws: tuple[int, int, int] | None) -> Job:
        if self._substitutes:
            samples = np.array([self._known(source, int(sample)) for sample in samples])
        return Job(source, samples, draws)

    def _known(self, source: Source, sample: int) -> int:
        split = source is self._layout.test
        while (split, sample) in self._substitutes:
            sample = self._substitutes[split, sample]
        return sample

    def _substitute(self, source: Source, sample: int, reason: str) -> int:
        """The next sample of the source in the place of a broken one, whichever batch it is in."""
        name, split = source.name(sample), source is self._layout.test
        if self._on_error == "fail":
            raise DataLost(f"data.on_error=fail: {name} {reason}")
        others = len(source.labels)
        other = (sample + 1) % others
        if (split, sample) not in self._substitutes:
            self._substitutes[split, sample] = other
            self.broken += 1
            print(f"data: {name} {reason}; {source.name(other)} in its place ({self.broken} broken)", file=sys.stderr)
        row, limit = 1, min(IN_A_ROW, others)
        while row < limit and (split, (sample - row) % others) in self._substitutes:
            row += 1
        if row == limit:
            raise DataLost(f"data.path must hold images, got {row} broken ones in a row up to {name}, which {reason}")
        return self._known(source, other)

    def _labels(self, job: Job) -> Tensor:
        return torch.from_numpy(job.source.labels[job.samples])

    def _inputs(self, job: Job) -> tuple[Tensor, Tensor]:
        dtype = np.float64 if self.dtype == torch.float64 else np.float32
        out = self._buffers.take((len(job.samples), *self.input_shape), dtype)
        scale, shift = self.scale.numpy().astype(dtype), self.shift.numpy().astype(dtype)
        for rows, found in self._here().take(job):
            for target, image in zip(out[rows], found, strict=True):  # one at a time stays in the cache
                target[...] = image
                target *= scale
                target += shift
        return torch.from_numpy(out).to(self.dtype), self._labels(job)
