"""Read batches of a user's samples ahead, if that changes no bit, and report the cost.

The reading processes are forked, not started by exec: they share the user's sets, as every process of a run does, and
do not load them again. So they must be forked while this process has one thread.
"""

from __future__ import annotations

import math
import mmap
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from dsgd.data import DataLost
from dsgd.data.slot_pool import SIGNALS, Chunk, PendingBatch, SlotPool, answer_requests
from dsgd.host.fork import ForkedProcess, fork
from dsgd.host.signals import end_with_parent
from dsgd.host.title import set_title

WORTH_S = 1e-3  # time of reading a batch below which a request to another process takes about as long
SAID_AFTER, SAID_AFTER_S = 20, 10.0  # batches or seconds, the earlier of both
HERE = "in the process that trains"
OTHERS = "its samples depend on more than the global random numbers of torch, NumPy and Python"
MEMORY_BYTES = 1 << 30  # of address space, unless few batches take more; pages that are not used take no memory
SLOTS = 4096  # at most
ALIGNED = 64  # bytes

ReadBatch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class TrainingRead:
    """The batch of a worker at its own step."""

    rank: int
    step: int


@dataclass(frozen=True)
class EvaluationRead:
    """A batch of an evaluation. begin: its position among the samples. indices: indices of the samples in the set."""

    test: bool
    begin: int
    indices: Sequence[int]


Read = TrainingRead | EvaluationRead


class PendingRead(PendingBatch):
    """A batch that is being read, in one piece. tried: it is read twice, to compare the bits. answer: set on
    arrival."""

    def __init__(self, read: Read, tried: bool = False) -> None:
        super().__init__(1, 1)
        self.contents = {"tried": tried, **asdict(read)}
        self.answer: dict[str, Any] = {}


class ReadingPool(SlotPool[PendingRead]):
    """The reading processes of this process. A slot holds a batch."""

    kind = "reading"
    patience_s = math.inf  # as for samples read in the training process

    def __init__(
        self,
        processes: int,
        read: Callable[[Read], ReadBatch],
        most: int,
        input_shape: Sequence[int],
        dtype: torch.dtype,
    ) -> None:
        """read: reads a batch, in a reading process; raises DataLost. most: samples of a batch."""
        self._read, self._shape, self._dtype = read, tuple(input_shape), dtype
        needed = most * (torch.int64.itemsize + math.prod(input_shape) * dtype.itemsize)
        self._slot_bytes = -(-needed // ALIGNED) * ALIGNED
        slots = max(4 * processes, min(SLOTS, MEMORY_BYTES // self._slot_bytes))
        self._memory = mmap.mmap(-1, slots * self._slot_bytes)  # unnamed: removed with its processes
        super().__init__(processes, slots, 1, lambda rank, step: PendingRead(TrainingRead(rank, step)))

    def take(self, pending: PendingRead) -> ReadBatch:
        """Wait for a batch and return it. Raises DataLost, also if a process dies."""
        [batch] = [self._copied(chunk, pending) for chunk in self.collect(pending)]
        return batch

    def _copied(self, chunk: Chunk, pending: PendingRead) -> ReadBatch:
        assert chunk.slot is not None
        inputs, labels = self._slot(chunk.slot, pending.answer["rows"])
        return inputs.clone(), labels.clone()

    def _contents(self, chunk: Chunk) -> dict[str, Any]:
        assert isinstance(chunk.batch, PendingRead)
        return chunk.batch.contents

    def _answered(self, chunk: Chunk, answer: dict[str, Any]) -> None:
        assert isinstance(chunk.batch, PendingRead)
        if (error := answer.get("error")) is not None:
            raise DataLost(error)
        chunk.batch.answer = answer

    def _slot(self, slot: int, rows: int) -> ReadBatch:
        """Return inputs and labels of a slot, which lie in shared memory."""
        begin, count = slot * self._slot_bytes, rows * math.prod(self._shape)
        labels = torch.frombuffer(self._memory, dtype=torch.int64, count=rows, offset=begin)
        begin += rows * torch.int64.itemsize
        inputs = torch.frombuffer(self._memory, dtype=self._dtype, count=count, offset=begin)
        return inputs.view(rows, *self._shape), labels

    def _start(self, theirs: socket.socket) -> ForkedProcess:
        def prepare() -> None:
            end_with_parent(self.owner, signal.SIGKILL)
            signal.set_wakeup_fd(-1)
            for number in SIGNALS:
                signal.signal(number, signal.SIG_IGN)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            set_title("reader", f"dsgd: reads samples for process {self.owner}")
            self._link.close()

        def serve() -> int:
            torch.set_num_threads(1)
            answer_requests(theirs, self.owner, self._answer)
            return 0

        return ForkedProcess(fork(prepare, serve))

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Read a batch into its slot; return the number of its samples, the seconds of reading, and whether a second
        reading gave the same bits; or the error."""
        try:
            began = perf_counter()
            batch = self._read(_as_read(request))
            seconds, same = perf_counter() - began, True
            if request["tried"]:
                began = perf_counter()  # the first reading may have opened files and imported modules
                same = all(map(torch.equal, batch, self._read(_as_read(request))))
                seconds = perf_counter() - began
        except DataLost as error:
            return {"error": str(error)}
        for target, source in zip(self._slot(request["slot"], len(batch[1])), batch, strict=True):
            target.copy_(source)
        return {"rows": len(batch[1]), "seconds": seconds, "same": same}


def _as_read(contents: dict[str, Any]) -> Read:
    if "rank" in contents:
        return TrainingRead(contents["rank"], contents["step"])
    return EvaluationRead(contents["test"], contents["begin"], contents["indices"])


class BatchesAhead:
    """Serves the batches of `read` from processes that read ahead. They assume that (rank, step) is followed by (rank,
    step + 1); any other order gives the same batches, more slowly. One thread at a time.

    One of the processes reads the first batch twice: if its bits differ, or reading takes hardly any time, the
    processes end, and this process reads."""

    def __init__(
        self,
        name: str,
        processes: int,
        read: Callable[[Read], ReadBatch],
        batch_size: int,
        most: int,
        input_shape: Sequence[int],
        dtype: torch.dtype,
    ) -> None:
        """name: name of the data. batch_size: samples of a training batch. most: maximum samples of any batch."""
        self._read, self._batch_size = read, batch_size
        self._pool: ReadingPool | None = ReadingPool(processes, read, most, input_shape, dtype)
        self.owner = self._pool.owner
        self._is_tried = False
        self._cost = ReadingCost(name, f"ahead in {processes} process{'es' * (processes > 1)}")

    def batch(self, read: TrainingRead) -> ReadBatch:
        """Return a training batch, and have later ones read as far as slots are free. Raises DataLost."""
        began = perf_counter()
        if not self._is_tried:
            return self._first(read)
        if self._pool is None:
            batch = self._read(read)
            self._cost.count(perf_counter() - began, perf_counter() - began)
            return batch
        pending = self._pool.of_step(read.rank, read.step)
        batch = self._pool.take(pending)
        self._cost.count(pending.answer["seconds"], perf_counter() - began)
        return batch

    def evaluation(self, reads: Iterable[EvaluationRead]) -> Iterator[ReadBatch]:
        """Yield the batches of an evaluation. Raises DataLost."""
        self._cost.pause()
        left = iter(reads)
        if not self._is_tried and (read := next(left, None)) is not None:
            yield self._first(read)
        if (pool := self._pool) is None:
            yield from map(self._read, left)
        else:
            yield from map(pool.take, pool.in_order(map(PendingRead, left), 1 + len(pool.processes)))

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.close()
        self._pool = None

    def _first(self, read: Read) -> ReadBatch:
        """Return the first batch, and decide which process reads the later ones."""
        assert self._pool is not None
        pending = PendingRead(read, tried=True)
        batch = self._pool.take(self._pool.submit(pending))
        self._is_tried = True
        if not pending.answer["same"]:
            self.close()
            self._cost.how = f"{HERE}, as {OTHERS}"
            return self._read(read)
        if pending.answer["seconds"] / len(batch[1]) * self._batch_size < WORTH_S:
            self.close()
            self._cost.how = HERE
        return batch


class ReadingCost:
    """Reports once, after some training batches, the time that they cost.

    name: name of the data. how: method of reading, for the report."""

    def __init__(self, name: str, how: str) -> None:
        self._name, self.how = name, how
        self._before: float | None = None  # when the batch before it was there
        self._batches, self._read_s, self._waited_s, self._trained_s = 0, 0.0, 0.0, 0.0
        self._is_said = False

    def pause(self) -> None:
        """Leave out the time from the last batch to the next one."""
        self._before = None

    def count(self, read_s: float, waited_s: float) -> None:
        """Count a batch. read_s: seconds of reading it, in any process. waited_s: seconds of the training process for
        it."""
        now = perf_counter()
        self._trained_s += waited_s if self._before is None else now - self._before
        self._before = now
        self._batches += 1
        self._read_s += read_s
        self._waited_s += waited_s
        if self._is_said or (self._batches < SAID_AFTER and self._trained_s < SAID_AFTER_S):
            return
        self._is_said = True
        each, share = 1e3 * self._read_s / self._batches, self._waited_s / self._trained_s
        line = f"reading a batch takes {each:.3g} ms, {self.how}; training waits for batches {share:.0%} of its time"
        print(f"{self._name}: {line}", file=sys.stderr, flush=True)
