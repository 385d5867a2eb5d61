"""Have processes read batches ahead, and put the pieces of each into slots of shared memory.

The processes share one socket, so that an idle one takes each request. They end with the process that started them,
however that ends. The users of a pool say how the processes start and what is in a slot: `read_ahead.py` forks them,
and `images/loader.py` starts a program.
"""

from __future__ import annotations

import heapq
import json
import os
import select
import signal
import socket
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from dsgd.data import DataLost

MESSAGE_BYTES = 1 << 17  # of a request, at most: file names have at most 4,096
LOST_S = 10.0  # from closing the socket to the end of a process
LOOK_S = 0.5  # interval of checks for dead processes
# Signals that reach all processes of a job or terminal are for the parent to handle.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class PoolProcess(Protocol):
    """A process of a pool: the common methods of subprocess.Popen and `dsgd.host.fork.ForkedProcess`."""

    pid: int
    returncode: Any

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def kill(self) -> None: ...


@dataclass(eq=False)
class Chunk:
    """The pieces of a batch in one request. slot: their slot, None before the request is sent. missing: positions in
    the slot without a piece."""

    batch: PendingBatch
    pieces: slice
    missing: list[int]
    slot: int | None = None


class PendingBatch:
    """A batch of pieces that processes are reading. error: reason why it cannot be read."""

    def __init__(self, pieces: int, at_once: int) -> None:
        """at_once: maximum of pieces in a request."""
        borders = [(start, min(start + at_once, pieces)) for start in range(0, pieces, at_once)]
        self.chunks = [Chunk(self, slice(*border), list(range(border[1] - border[0]))) for border in borders]
        self.read: deque[Chunk] = deque()  # chunks whose pieces are in their slots
        self.cancelled = False
        self.error: DataLost | None = None


B = TypeVar("B", bound=PendingBatch)


class SlotPool(Generic[B]):
    """The processes of a pool, their slots, and the batches that they read, also ahead of requests. Used by one thread
    at a time, and not after a fork.

    kind: name of the processes, in errors. patience_s: limit for the next answer. outstanding: pieces of batches
    submitted, and neither collected nor cancelled. ahead: target for outstanding pieces, so that no process waits."""

    kind = ""
    patience_s = 0.0

    def __init__(
        self, processes: int, slots: int, at_once: int, batch_of: Callable[[int, int], B], more: int = 0
    ) -> None:
        """at_once: maximum of pieces in a slot. batch_of: maps (rank, step) to the training batch. more: outstanding
        pieces of training in addition to `ahead`."""
        self.owner = os.getpid()
        self.outstanding, self.ahead = 0, 2 * processes * at_once
        self._batch_of, self._more = batch_of, more
        self._reserve = 2 * processes  # slots that work ahead must leave
        self._steps: dict[int, deque[tuple[int, B]]] = {}  # read ahead, by rank, in the order of steps
        self._free = list(range(slots))  # the lowest are used again first: memory grows with the slots in use
        self._waiting: deque[Chunk] = deque()
        self._working: dict[int, Chunk] = {}  # by slot
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._link.setblocking(False)
        self.processes: list[PoolProcess] = []
        # ends the processes; also called when the pool is dropped, and at exit
        self.close = weakref.finalize(self, _end, self._link, self.processes, self.owner)
        with theirs:
            for _ in range(processes):
                self.processes.append(self._start(theirs))

    def _start(self, theirs: socket.socket) -> PoolProcess:
        """Start a process, which is given its end of the socket."""
        raise NotImplementedError

    def _contents(self, chunk: Chunk) -> dict[str, Any]:
        """Return the contents of a request, apart from its slot."""
        raise NotImplementedError

    def _answered(self, chunk: Chunk, answer: dict[str, Any]) -> None:
        """Process the answer to a request, and set `chunk.missing` to the pieces to request again. Raises DataLost if
        the batch cannot be read."""
        raise NotImplementedError

    def submit(self, batch: B) -> B:
        """Begin to read a batch."""
        self._waiting.extend(batch.chunks)
        self.outstanding += sum(map(_size, batch.chunks))
        self._send()
        return batch

    def of_step(self, rank: int, step: int) -> B:
        """Return a submitted training batch, and submit the following ones as far as slots are free: (rank, step) is
        assumed to be followed by (rank, step + 1)."""
        ahead = self._steps.setdefault(rank, deque())
        while ahead and ahead[0][0] != step:
            self.cancel(ahead.popleft()[1])
        batch = ahead.popleft()[1] if ahead else self.submit(self._batch_of(rank, step))
        following = step + 1 + len(ahead)
        while not ahead or self.outstanding < self.ahead + self._more:
            later = self._batch_of(rank, following)
            if len(self._free) < len(self._waiting) + len(later.chunks) + self._reserve:
                break
            ahead.append((following, self.submit(later)))
            following += 1
        return batch

    def in_order(self, batches: Iterable[B], more: int) -> Iterator[B]:
        """Yield batches, submitted ahead while fewer than `ahead` + `more` pieces are outstanding. Batches that are not
        yielded are cancelled."""
        pending: deque[B] = deque()
        try:
            for batch in batches:
                pending.append(self.submit(batch))
                while len(pending) > 1 and self.outstanding >= self.ahead + more:
                    yield pending.popleft()
            while pending:
                yield pending.popleft()
        finally:
            for batch in pending if self.close.alive else ():
                self.cancel(batch)

    def collect(self, batch: B) -> Iterator[Chunk]:
        """Yield the chunks of a batch as they arrive. A slot is valid until the next chunk is requested. Raises
        DataLost for a batch that cannot be read, if a process dies, or if nothing arrives for `patience_s`."""
        for _ in batch.chunks:
            deadline = time.monotonic() + self.patience_s
            while not batch.read:
                if batch.error is not None:
                    self.cancel(batch)
                    raise batch.error
                self._receive(deadline)
            chunk = batch.read.popleft()
            yield chunk
            self._release(chunk)

    def cancel(self, batch: B) -> None:
        """Drop the chunks of a batch that are not collected."""
        batch.cancelled = True
        dropped = [chunk for chunk in self._waiting if chunk.batch is batch]
        self._waiting = deque(chunk for chunk in self._waiting if chunk.batch is not batch)
        for chunk in [*batch.read, *dropped]:
            self._release(chunk)
        batch.read.clear()

    def _release(self, chunk: Chunk) -> None:
        self.outstanding -= _size(chunk)
        if chunk.slot is not None:
            heapq.heappush(self._free, chunk.slot)
        self._send()

    def _send(self) -> None:
        """Send waiting requests, as far as slots are free and the socket takes them. Never blocks: the processes may
        be blocked until their answers are taken."""
        while self._waiting:
            chunk = self._waiting[0]
            if chunk.slot is None:
                if not self._free:
                    return
                chunk.slot = heapq.heappop(self._free)
            try:
                self._link.send(json.dumps({"slot": chunk.slot, **self._contents(chunk)}).encode())
            except BlockingIOError:
                return
            except ConnectionError:
                self._lost()
            self._working[chunk.slot] = self._waiting.popleft()

    def _receive(self, deadline: float) -> None:
        """Wait for answers for at most LOOK_S, and take all that are there. Raises DataLost if a process has died, or
        at the deadline."""
        self._send()
        readable, _, _ = select.select([self._link], [], [], LOOK_S)
        if not readable:
            self._look()
            if time.monotonic() > deadline:
                raise DataLost(
                    f"data: nothing from {len(self.processes)} {self.kind} processes for {self.patience_s:g} s"
                )
        while readable:
            try:
                message = self._link.recv(MESSAGE_BYTES)
            except BlockingIOError:
                return
            except ConnectionError:
                message = b""
            if not message:
                self._lost()
            answer = json.loads(message)
            self._take_in(self._working.pop(answer["slot"]), answer)

    def _take_in(self, chunk: Chunk, answer: dict[str, Any]) -> None:
        batch, chunk.missing = chunk.batch, []
        if not batch.cancelled and batch.error is None:
            try:
                self._answered(chunk, answer)
            except DataLost as error:
                batch.error = error
        if batch.cancelled or batch.error is not None:
            self._release(chunk)
        elif chunk.missing:  # into the same slot, which already has the others
            self._waiting.appendleft(chunk)
        else:
            batch.read.append(chunk)

    def _look(self) -> None:
        """Raise DataLost if a process has died."""
        for process in self.processes:
            if (status := process.poll()) is not None:
                how = f"signal {-status}" if status < 0 else f"status {status}"
                raise DataLost(f"data: {self.kind} process {process.pid} ended by {how}")

    def _lost(self) -> NoReturn:
        """Raise DataLost: all processes have closed their side."""
        for process in self.processes:
            process.wait(LOST_S)
        self._look()
        raise AssertionError("unreachable: they have ended")


def answer_requests(link: socket.socket, parent: int, answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer requests in a process of a pool, until the parent is gone. answer: does the work, returns the answer."""
    with link:
        link.settimeout(2 * LOOK_S)
        while os.getppid() == parent:
            try:
                message = link.recv(MESSAGE_BYTES)
            except TimeoutError:
                continue
            except ConnectionResetError:  # closed, with answers that were not taken
                return
            if not message:  # closed
                return
            request = json.loads(message)
            reply = json.dumps({"slot": request["slot"], **answer(request)}).encode()
            while os.getppid() == parent:
                try:
                    link.send(reply)
                    break
                except TimeoutError:
                    continue
                except OSError:  # closed
                    return


def _size(chunk: Chunk) -> int:
    return chunk.pieces.stop - chunk.pieces.start


def _end(link: socket.socket, processes: Sequence[PoolProcess], owner: int) -> None:
    link.close()
    for process in processes:
        if os.getpid() == owner:
            process.kill()  # it has nothing to release
        else:  # this process was forked from their parent, and must not wait for them
            process.returncode = 0
    for process in processes:
        process.wait()
