"""Serve batches of images on disk, the loaded form of imagenet and imagenet-like: other processes decode them ahead,
and their 8-bit pixels come from shared memory.

The processes are started by exec, not by fork: the process that asks for batches may have threads, sockets and a GPU,
none of which a forked process may keep. The memory has no name, so nothing is left of it whichever way the processes
end.
torch's DataLoader forks or spawns, needs the order of the batches beforehand, and takes 10 % more processor time.
"""

from __future__ import annotations

import mmap
import os
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dsgd.data import DataLost
from dsgd.data.images import SIDE
from dsgd.data.images.augment import DEVIATION, DRAWS, MEAN, evaluation_pixels, train_pixels
from dsgd.data.images.decode import BrokenImage, open_image, read_image
from dsgd.data.images.layout import ImageSource, Layout
from dsgd.data.in_memory import CrossEntropy
from dsgd.data.partition import Partition, evaluation_order
from dsgd.data.slot_pool import SIGNALS, Chunk, PendingBatch, SlotPool, answer_requests
from dsgd.host.resources import cores, keep_freed_memory
from dsgd.streams import stream

CHUNK = 8  # images of a request, at most
CHUNK_SHAPE = (CHUNK, 3, SIDE, SIDE)
CHUNK_BYTES = CHUNK * 3 * SIDE * SIDE
MEMORY_BYTES = 1 << 30  # of address space; pages that are not used take no memory
SLOTS = MEMORY_BYTES // CHUNK_BYTES
PATIENCE_S = 300.0  # for the next pixels: a file system that hangs longer ends the run
SINGLE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
# Signals are ignored before the imports, which take long.
PROGRAM = """
import signal, sys
for number in {signals}:
    signal.signal(number, signal.SIG_IGN)
sys.path[:] = {path!r}
from dsgd.data.images.loader import decode_requests
decode_requests(*{arguments!r})
"""

# (source, broken sample, reason) to the substitute; raises DataLost
Substitute = Callable[[ImageSource, int, str], int]


class PendingImages(PendingBatch):
    """A batch that is being decoded. samples: [b], positions in the source; broken ones are replaced here meanwhile.
    key: (seed, rank, step) of the augmentation, or None for evaluation."""

    def __init__(self, source: ImageSource, samples: np.ndarray, key: tuple[int, int, int] | None) -> None:
        super().__init__(len(samples), CHUNK)
        self.source = source
        self.samples = samples
        self.draws = None if key is None else (*key, len(samples))

    def labels(self) -> Tensor:
        """Return the labels [b], for broken images the substitutes' labels. Call it when all pixels have arrived."""
        return torch.from_numpy(self.source.labels[self.samples])


class DecodingPool(SlotPool[PendingImages]):
    """The decoding processes of this process. A slot holds the pixels of up to CHUNK images."""

    kind = "decoding"
    patience_s = PATIENCE_S

    def __init__(
        self,
        processes: int,
        decoder: str,
        max_pixels: int,
        substitute: Substitute,
        batch_of: Callable[[int, int], PendingImages],
        more: int,
    ) -> None:
        """batch_of, more: arguments of `SlotPool`."""
        self._decoder, self._max_pixels, self._substitute = decoder, max_pixels, substitute
        self._memory = os.memfd_create("dsgd images")
        try:
            os.ftruncate(self._memory, SLOTS * CHUNK_BYTES)
            self._pixels = np.frombuffer(mmap.mmap(self._memory, 0), np.uint8).reshape(SLOTS, *CHUNK_SHAPE)
            super().__init__(processes, SLOTS, CHUNK, batch_of, more)
        finally:
            os.close(self._memory)

    def pixels(self, batch: PendingImages) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield (rows of the batch, their pixels [k, 3, 224, 224] uint8) as `collect` yields chunks. Raises DataLost
        also if `substitute` does."""
        for chunk in self.collect(batch):
            yield chunk.pieces, self._pixels[chunk.slot, : chunk.pieces.stop - chunk.pieces.start]

    def _start(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        signals, files = list(map(int, SIGNALS)), (theirs.fileno(), self._memory)
        arguments = (*files, self.owner, self._decoder, self._max_pixels)
        program = PROGRAM.format(signals=signals, path=sys.path, arguments=arguments)
        command = [sys.executable, "-c", program]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=files, env=os.environ | SINGLE)

    def _contents(self, chunk: Chunk) -> dict[str, Any]:
        batch, first = chunk.batch, chunk.pieces.start
        assert isinstance(batch, PendingImages)
        images = [(at, first + at, *batch.source.locate(int(batch.samples[first + at]))) for at in chunk.missing]
        return {"images": images, "draws": batch.draws}

    def _answered(self, chunk: Chunk, answer: dict[str, Any]) -> None:
        batch = chunk.batch
        assert isinstance(batch, PendingImages)
        for position, reason in answer["broken"]:
            row = chunk.pieces.start + position
            batch.samples[row] = self._substitute(batch.source, int(batch.samples[row]), reason)
            chunk.missing.append(position)


def decode_requests(channel: int, memory: int, parent: int, decoder: str, max_pixels: int) -> None:
    """Run a decoding process: take a request, write the pixels into shared memory, answer, until the parent is gone. It
    keeps no state, so the pixels do not depend on the process.

    channel: a SOCK_SEQPACKET socket that all decoding processes of the parent share, so that an idle one takes each
    request. memory: the chunks of pixels, [slots, CHUNK, 3, 224, 224]. Both are file descriptors."""
    warnings.filterwarnings("ignore", module="PIL")  # about unused metadata
    torch.set_num_threads(1)
    keep_freed_memory()
    slots = os.fstat(memory).st_size // CHUNK_BYTES
    chunks = np.frombuffer(mmap.mmap(memory, 0), np.uint8).reshape(slots, *CHUNK_SHAPE)
    with torch.inference_mode():
        link = socket.socket(fileno=channel)
        answer_requests(link, parent, lambda request: _answer(request, chunks, decoder, max_pixels))


@lru_cache(4)
def _draws(seed: int, rank: int, step: int, rows: int) -> np.ndarray:
    """Return the random numbers of a batch, [rows, DRAWS]. Cached: a batch is read by several requests."""
    return stream("augmentation", seed, rank, step).random((rows, DRAWS))


def _answer(request: dict[str, Any], chunks: np.ndarray, decoder: str, max_pixels: int) -> dict[str, Any]:
    """Decode into a slot; return `broken`, [position, reason] of each broken image.

    request: slot; images, each [position in the slot, row of the batch, file, offset, length]; draws: [seed, rank,
    step, batch size] for training, null for evaluation."""
    draws = None if request["draws"] is None else _draws(*request["draws"])
    broken: list[tuple[int, str]] = []
    for position, row, path, offset, length in request["images"]:
        out = chunks[request["slot"], position]
        try:
            picture = open_image(read_image(path, offset, length), decoder, max_pixels)
            if draws is None:
                evaluation_pixels(picture, out)
            else:
                train_pixels(picture, draws[row].tolist(), out)
        except BrokenImage as error:
            broken.append((position, str(error)))
    return {"broken": broken}


EVALUATION_BATCH = 128  # images: bounds the memory
IN_A_ROW = 100  # number of consecutive broken images that ends the run: something else is wrong


@dataclass(eq=False, repr=False)
class Images(CrossEntropy):
    """Training and test images, split over the workers.

    The first request for a batch starts decoding processes; a forked process starts its own. They decode ahead on the
    assumption that (rank, step) is followed by (rank, step + 1); any other order gives the same batches, more slowly.
    One thread at a time.

    processes: number of decoding processes; None: the cores that this process may use, divided by `share`.
    max_pixels: a file with more is broken. on_error: effect of a broken file, `skip` or `fail`.
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
        """Return the location of a sample in the data's folder: its file, offset and size."""
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

        pinned: use page-locked memory, from which a GPU copies asynchronously."""
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
        """Return the pool of this process, not the pool of its parent process."""
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
        """Return the sample, or its substitute if it is known to be broken."""
        test = source is self.layout.test
        while (test, sample) in self._substitutes:
            sample = self._substitutes[test, sample]
        return sample

    def _substitute(self, source: ImageSource, sample: int, reason: str) -> int:
        """Return the substitute of a broken sample: the next sample not known to be broken, in every batch.

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
