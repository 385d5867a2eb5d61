"""Have processes decode images ahead, and take their 8-bit pixels from shared memory.

They are started by exec, not by fork: the process that asks for batches may have threads, sockets and a GPU, none of
which a forked process may keep. The memory has no name, so nothing is left of it whichever way the processes end.
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
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dsgd.data.images import SIDE
from dsgd.data.images.augment import DRAWS, evaluation_pixels, train_pixels
from dsgd.data.images.decode import BrokenImage, open_image, read_image
from dsgd.data.images.layout import ImageSource
from dsgd.data.slot_pool import SIGNALS, Chunk, PendingBatch, SlotPool, answer_requests
from dsgd.host.resources import keep_freed_memory
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
from dsgd.data.images.pool import decode_requests
decode_requests(*{arguments!r})
"""

# (source, broken sample, reason): the sample that stands in for it; raises DataLost
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
        """Return the labels [b], of the substitutes where images are broken: ask when all pixels are there."""
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
        """batch_of, more: as for `SlotPool`."""
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
    """Be a decoding process: take a request, write the pixels into shared memory, answer, until the parent is gone. It
    keeps no state, so whichever process takes a request, the pixels are the same.

    channel: a SOCK_SEQPACKET socket that all decoding processes of the parent share, so that an idle one takes each
    request. memory: the chunks of pixels, [slots, CHUNK, 3, 224, 224]. Both are file descriptors."""
    warnings.filterwarnings("ignore", module="PIL")  # about metadata that nobody reads
    torch.set_num_threads(1)
    keep_freed_memory()
    slots = os.fstat(memory).st_size // CHUNK_BYTES
    chunks = np.frombuffer(mmap.mmap(memory, 0), np.uint8).reshape(slots, *CHUNK_SHAPE)
    with torch.inference_mode():
        link = socket.socket(fileno=channel)
        answer_requests(link, parent, lambda request: _answer(request, chunks, decoder, max_pixels))


@lru_cache(4)
def _draws(seed: int, rank: int, step: int, rows: int) -> np.ndarray:
    """Return the random numbers of a batch, [rows, DRAWS]. Cached: a batch comes in several requests."""
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
