"""Fork processes that read batches of a user's samples, and take the batches from shared memory.

They are forked, not started by exec: a user's sets are shared with them, as with every process of a run, and are not
loaded once more. So they have to be forked while this process has one thread.
"""

from __future__ import annotations

import math
import mmap
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dsgd.data import DataLost
from dsgd.data.slot_pool import SIGNALS, SlotPool, answer_requests
from dsgd.host.fork import ForkedProcess, fork
from dsgd.host.signals import end_with_parent
from dsgd.host.title import set_title

MEMORY_BYTES = 1 << 30  # of address space, unless few batches take more; pages that are not used take no memory
SLOTS = 4096  # at most
ALIGNED = 64  # bytes

ReadBatch = tuple[Tensor, Tensor]


@dataclass(eq=False)
class PendingRead:
    """A batch that is being read. contents: of the request. tried: it is read twice, to see whether that gives the same
    bits. answer: once it is there."""

    contents: dict[str, Any]
    tried: bool = False
    slot: int | None = None
    answer: dict[str, Any] = field(default_factory=dict)
    cancelled: bool = False


class ReadingPool(SlotPool[PendingRead]):
    """The reading processes of this process."""

    kind = "reading"
    patience_s = math.inf  # as where samples are read in the process that trains

    def __init__(
        self,
        processes: int,
        read: Callable[[dict[str, Any]], ReadBatch],
        most: int,
        input_shape: Sequence[int],
        dtype: torch.dtype,
    ) -> None:
        """read: reads the batch of a request, in a reading process; raises DataLost. most: samples of a batch."""
        self.outstanding = 0  # batches submitted, and neither taken nor cancelled
        self.ahead = 2 * processes  # batches to have outstanding, so that no process waits
        self._read, self._shape, self._dtype = read, tuple(input_shape), dtype
        needed = most * (torch.int64.itemsize + math.prod(input_shape) * dtype.itemsize)
        self._slot_bytes = -(-needed // ALIGNED) * ALIGNED
        slots = max(2 * self.ahead, min(SLOTS, MEMORY_BYTES // self._slot_bytes))
        self._memory = mmap.mmap(-1, slots * self._slot_bytes)  # without a name: nothing is left of it
        super().__init__(processes, slots, self._start)

    def has_room(self) -> bool:
        """Return whether there are slots for a batch that is read ahead."""
        return len(self._free) > len(self._waiting) + self.ahead

    def submit(self, pending: PendingRead) -> PendingRead:
        """Begin to read a batch."""
        self.outstanding += 1
        self._waiting.append(pending)
        self._send()
        return pending

    def take(self, pending: PendingRead) -> ReadBatch:
        """Wait for a batch and return it. Raises DataLost, also if a process dies."""
        while not pending.answer:
            self._receive(math.inf)
        try:
            if (error := pending.answer.get("error")) is not None:
                raise DataLost(error)
            assert pending.slot is not None
            inputs, labels = self._slot(pending.slot, pending.answer["rows"])
            return inputs.clone(), labels.clone()
        finally:
            self._drop(pending)

    def cancel(self, pending: PendingRead) -> None:
        """Drop a batch that will not be taken."""
        pending.cancelled = True
        if pending in self._waiting:
            self._waiting.remove(pending)
            self._drop(pending)
        elif pending.answer:
            self._drop(pending)

    def _drop(self, pending: PendingRead) -> None:
        self.outstanding -= 1
        self._give_back(pending.slot)

    def _contents(self, item: PendingRead) -> dict[str, Any]:
        return {"tried": item.tried, **item.contents}

    def _answered(self, item: PendingRead, answer: dict[str, Any]) -> None:
        item.answer = answer
        if item.cancelled:
            self._drop(item)

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
        """Read a batch into its slot; return the number of its samples, the seconds that it took, and whether reading
        it once more gave the same bits; or the error."""
        try:
            began = time.perf_counter()
            batch = self._read(request)
            seconds, same = time.perf_counter() - began, True
            if request["tried"]:
                began = time.perf_counter()  # the first time may have opened files, and imported what is needed
                same = all(map(torch.equal, batch, self._read(request)))
                seconds = time.perf_counter() - began
        except DataLost as error:
            return {"error": str(error)}
        for target, source in zip(self._slot(request["slot"], len(batch[1])), batch, strict=True):
            target.copy_(source)
        return {"rows": len(batch[1]), "seconds": seconds, "same": same}
