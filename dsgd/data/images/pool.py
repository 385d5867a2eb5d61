"""Start processes that decode images ahead, and take their 8-bit pixels from shared memory.

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
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dsgd.data import DataLost
from dsgd.data.images import SIDE
from dsgd.data.images.layout import ImageSource
from dsgd.data.slot_pool import SIGNALS, SlotPool

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
from dsgd.data.images.decoding_process import serve
serve(*{arguments!r})
"""

# (source, broken sample, reason): the sample that stands in for it; raises DataLost
Substitute = Callable[[ImageSource, int, str], int]


class PendingBatch:
    """A batch that is being decoded. samples: [b], positions in the source; broken ones are replaced here meanwhile.
    key: (seed, rank, step) of the augmentation, or None for evaluation."""

    def __init__(self, source: ImageSource, samples: np.ndarray, key: tuple[int, int, int] | None) -> None:
        self.source = source
        self.samples = samples
        self.draws = None if key is None else (*key, len(samples))
        self.chunks = -(-len(samples) // CHUNK)
        self.decoded: deque[tuple[slice, int]] = deque()  # rows, and the slot where their pixels are
        self.cancelled = False
        self.error: DataLost | None = None

    def labels(self) -> Tensor:
        """Return the labels [b], of the substitutes where images are broken: ask when all pixels are there."""
        return torch.from_numpy(self.source.labels[self.samples])


@dataclass(eq=False)
class PendingChunk:
    """The rows of a batch that one request is for. slot: where the pixels go, None before the request is sent.
    missing: positions in the chunk that have no pixels yet."""

    batch: PendingBatch
    rows: slice
    missing: list[int]
    slot: int | None = None


class DecodingPool(SlotPool[PendingChunk]):
    """The decoding processes of this process. To be used by one thread at a time, and not after a fork."""

    kind = "decoding"
    patience_s = PATIENCE_S

    def __init__(self, processes: int, decoder: str, max_pixels: int, substitute: Substitute) -> None:
        self.outstanding = 0  # images submitted, and neither collected nor cancelled
        self.ahead = 2 * processes * CHUNK  # images to have outstanding, so that no process waits
        self._substitute = substitute
        self._reserve = 2 * processes  # slots that work ahead must leave
        memory = os.memfd_create("dsgd images")
        try:
            os.ftruncate(memory, SLOTS * CHUNK_BYTES)
            self._pixels = np.frombuffer(mmap.mmap(memory, 0), np.uint8).reshape(SLOTS, *CHUNK_SHAPE)
            super().__init__(processes, SLOTS, lambda theirs: self._start(theirs, memory, decoder, max_pixels))
        finally:
            os.close(memory)

    def _start(self, theirs: socket.socket, memory: int, decoder: str, max_pixels: int) -> subprocess.Popen[bytes]:
        signals, files = list(map(int, SIGNALS)), (theirs.fileno(), memory)
        program = PROGRAM.format(signals=signals, path=sys.path, arguments=(*files, self.owner, decoder, max_pixels))
        command = [sys.executable, "-c", program]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=files, env=os.environ | SINGLE)

    def has_room(self, batch: PendingBatch) -> bool:
        """Return whether there are slots for a batch that is decoded ahead."""
        return len(self._free) >= len(self._waiting) + batch.chunks + self._reserve

    def submit(self, batch: PendingBatch) -> None:
        """Begin to decode a batch."""
        count = len(batch.samples)
        for start in range(0, count, CHUNK):
            stop = min(start + CHUNK, count)
            self._waiting.append(PendingChunk(batch, slice(start, stop), list(range(stop - start))))
        self.outstanding += count
        self._send()

    def collect(self, batch: PendingBatch) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield (rows of the batch, their pixels [k, 3, 224, 224] uint8) as they come, until the batch is complete.

        The pixels are valid until the next ones are asked for. Raises DataLost if `substitute` does, a process dies, or
        nothing comes for PATIENCE_S."""
        for _ in range(batch.chunks):
            deadline = time.monotonic() + PATIENCE_S
            while not batch.decoded:
                if batch.error is not None:
                    self.cancel(batch)
                    raise batch.error
                self._receive(deadline)
            rows, slot = batch.decoded.popleft()
            yield rows, self._pixels[slot, : rows.stop - rows.start]
            self._release(slot, rows)

    def cancel(self, batch: PendingBatch) -> None:
        """Drop what is not collected of a batch."""
        batch.cancelled = True
        dropped = [chunk for chunk in self._waiting if chunk.batch is batch]
        self._waiting = deque(chunk for chunk in self._waiting if chunk.batch is not batch)
        for rows, slot in [*batch.decoded, *((chunk.rows, chunk.slot) for chunk in dropped)]:
            self._release(slot, rows)
        batch.decoded.clear()

    def _release(self, slot: int | None, rows: slice) -> None:
        self.outstanding -= rows.stop - rows.start
        self._give_back(slot)

    def _contents(self, item: PendingChunk) -> dict[str, Any]:
        batch, first = item.batch, item.rows.start
        images = [(at, first + at, *batch.source.locate(int(batch.samples[first + at]))) for at in item.missing]
        return {"images": images, "draws": batch.draws}

    def _answered(self, item: PendingChunk, answer: dict[str, Any]) -> None:
        batch, broken = item.batch, answer["broken"]
        if not batch.cancelled and batch.error is None:
            try:
                for position, reason in broken:
                    row = item.rows.start + position
                    batch.samples[row] = self._substitute(batch.source, int(batch.samples[row]), reason)
            except DataLost as error:
                batch.error = error
        if batch.cancelled or batch.error is not None:
            self._release(item.slot, item.rows)
        elif broken:  # into the same slot, where the others are already
            item.missing = [position for position, _ in broken]
            self._waiting.appendleft(item)
        else:
            assert item.slot is not None
            batch.decoded.append((item.rows, item.slot))
