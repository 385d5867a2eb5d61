"""Processes that decode ahead, and the memory through which they hand over 8-bit pixels.

They are started by exec, not by fork: whoever asks for a batch may have threads, sockets and a GPU, none of which a
forked process may keep. The memory has no name, so nothing is left of it whichever way the processes end.
"""

from __future__ import annotations

import heapq
import json
import mmap
import os
import select
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import NoReturn

import numpy as np

from dsgd.data import DataLost
from dsgd.data.images import SIDE
from dsgd.data.images.layout import Source

CHUNK = 8  # images of a request at most
CHUNK_SHAPE = (CHUNK, 3, SIDE, SIDE)
CHUNK_BYTES = CHUNK * 3 * SIDE * SIDE
MESSAGE_BYTES = 1 << 17  # of a request at most: names have 4,096 bytes at most
MEMORY_BYTES = 1 << 30  # at most; what is not used takes none
SLOTS = MEMORY_BYTES // CHUNK_BYTES
PATIENCE_S = 300.0  # for the next pixels: a file system that hangs longer ends the run
LOST_S = 10.0  # from closing the socket to the end of a process
LOOK_S = 0.5  # how often to look whether a process has died
SINGLE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
# Sent to all processes of a job, or by the keyboard: what they mean is for the parent to decide. Ignored first of all,
# since imports take long.
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2]
PROGRAM = """
import signal, sys
for number in {signals}:
    signal.signal(number, signal.SIG_IGN)
sys.path[:] = {path!r}
from dsgd.data.images.worker import serve
serve({channel}, {memory}, {parent}, {decoder!r})
"""

# what stands in for a sample that is broken, by why: another sample; or raises DataLost
Substitute = Callable[[Source, int, str], int]


class Job:
    """Images that are wanted as one batch. samples: [b], positions in source; broken ones are replaced here while
    the job runs. draws: seed, rank and step, or None for the pixels of evaluation."""

    def __init__(self, source: Source, samples: np.ndarray, draws: tuple[int, int, int] | None) -> None:
        self.source = source
        self.samples = samples
        self.draws = None if draws is None else (*draws, len(samples))
        self.chunks = -(-len(samples) // CHUNK)
        self.finished: deque[tuple[slice, int]] = deque()  # rows, and the slot where their pixels are
        self.given_up = False
        self.error: DataLost | None = None


class Chunk:
    """A part of a job on its way. rows: of the batch. slot: where its pixels go, None before it has been sent.
    missing: positions in it that have no pixels yet."""

    def __init__(self, job: Job, rows: slice) -> None:
        self.job = job
        self.rows = rows
        self.slot: int | None = None
        self.missing = list(range(rows.stop - rows.start))


class Pool:
    """`processes` decoding processes of this process. To be used by one thread at a time, and not after a fork."""

    def __init__(self, processes: int, decoder: str, substitute: Substitute) -> None:
        self.owner = os.getpid()
        self.outstanding = 0  # images that have been submitted, and neither given out nor given up
        self.ahead = 2 * processes * CHUNK  # images to have outstanding, so that no process waits
        self._substitute = substitute
        self._reserve = 2 * processes  # slots that work done in advance must leave
        self._free = list(range(SLOTS))  # the lowest are used again first: memory grows with what is needed at once
        self._waiting: deque[Chunk] = deque()
        self._working: dict[int, Chunk] = {}  # by slot
        memory = os.memfd_create("dsgd images")
        try:
            os.ftruncate(memory, SLOTS * CHUNK_BYTES)
            self._pixels = np.frombuffer(mmap.mmap(memory, 0), np.uint8).reshape(SLOTS, *CHUNK_SHAPE)
            self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._link.setblocking(False)
            with theirs:
                self.processes = [self._start(theirs.fileno(), memory, decoder) for _ in range(processes)]
        finally:
            os.close(memory)
        self._end = weakref.finalize(self, _end, self._link, self.processes, self.owner)

    def _start(self, channel: int, memory: int, decoder: str) -> subprocess.Popen[bytes]:
        program = PROGRAM.format(
            signals=list(map(int, SIGNALS)),
            path=sys.path,
            channel=channel,
            memory=memory,
            parent=self.owner,
            decoder=decoder,
        )
        return subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.DEVNULL,
            pass_fds=(channel, memory),
            env=os.environ | SINGLE,
        )

    def close(self) -> None:
        """End the processes."""
        self._end()

    def submit(self, job: Job, in_advance: bool) -> bool:
        """Begin with a job. in_advance: only if there is room; returns whether there was."""
        if in_advance and len(self._free) < len(self._waiting) + job.chunks + self._reserve:
            return False
        rows = len(job.samples)
        self._waiting.extend(Chunk(job, slice(start, min(start + CHUNK, rows))) for start in range(0, rows, CHUNK))
        self.outstanding += rows
        self._send()
        return True

    def take(self, job: Job) -> Iterator[tuple[slice, np.ndarray]]:
        """(rows of the batch, their pixels [k, 3, 224, 224] uint8) until the job is complete, each only to be read
        before the next. Raises DataLost for what `substitute` raised, or if a process died or nothing came
        for long."""
        given = 0
        while given < job.chunks:
            deadline = time.monotonic() + PATIENCE_S
            while not job.finished:
                if job.error is not None:
                    self.give_up(job)
                    raise job.error
                self._receive(deadline)
            rows, slot = job.finished.popleft()
            yield rows, self._pixels[slot, : rows.stop - rows.start]
            self._release(slot, rows)
            given += 1

    def give_up(self, job: Job) -> None:
        """The job is not wanted any more."""
        job.given_up = True
        dropped = [chunk for chunk in self._waiting if chunk.job is job]
        self._waiting = deque(chunk for chunk in self._waiting if chunk.job is not job)
        for rows, slot in [*job.finished, *((chunk.rows, chunk.slot) for chunk in dropped)]:
            self._release(slot, rows)
        job.finished.clear()

    def _release(self, slot: int | None, rows: slice) -> None:
        if slot is not None:
            heapq.heappush(self._free, slot)
        self.outstanding -= rows.stop - rows.start
        self._send()

    def _send(self) -> None:
        """Pass on what is waiting, as far as there are slots and the socket takes it. Never waits: the processes may be
        waiting for us to take their answers."""
        while self._waiting:
            chunk = self._waiting[0]
            if chunk.slot is None:
                if not self._free:
                    return
                chunk.slot = heapq.heappop(self._free)
            try:
                self._link.send(self._request(chunk))
            except BlockingIOError:
                return
            except ConnectionError:
                self._lost()
            self._working[chunk.slot] = self._waiting.popleft()

    def _request(self, chunk: Chunk) -> bytes:
        job = chunk.job
        rows = [chunk.rows.start + position for position in chunk.missing]
        places = [job.source.place(int(job.samples[row])) for row in rows]
        images = [(*which, *place) for *which, place in zip(chunk.missing, rows, places, strict=True)]
        return json.dumps({"slot": chunk.slot, "images": images, "draws": job.draws}).encode()

    def _receive(self, deadline: float) -> None:
        """Wait for an answer, a little while, and take all that are there."""
        self._send()
        readable, _, _ = select.select([self._link], [], [], LOOK_S)
        if not readable:
            self._look()
            if time.monotonic() > deadline:
                raise DataLost(f"data: nothing from {len(self.processes)} decoding processes for {PATIENCE_S:g} s")
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
            self._answered(self._working.pop(answer["slot"]), answer["broken"])

    def _answered(self, chunk: Chunk, broken: list[tuple[int, str]]) -> None:
        job = chunk.job
        wanted = not job.given_up and job.error is None
        if broken and wanted:
            try:
                for position, reason in broken:
                    row = chunk.rows.start + position
                    job.samples[row] = self._substitute(job.source, int(job.samples[row]), reason)
            except DataLost as error:
                job.error = error
            else:  # into the same slot, where the others are already
                chunk.missing = [position for position, _ in broken]
                self._waiting.appendleft(chunk)
        elif wanted:
            assert chunk.slot is not None
            job.finished.append((chunk.rows, chunk.slot))
        if job.given_up or job.error is not None:
            self._release(chunk.slot, chunk.rows)

    def _look(self) -> None:
        """Raise DataLost if a process has died."""
        for process in self.processes:
            if (status := process.poll()) is not None:
                how = f"signal {-status}" if status < 0 else f"status {status}"
                raise DataLost(f"data: decoding process {process.pid} ended by {how}")

    def _lost(self) -> NoReturn:
        """All processes have closed their side."""
        for process in self.processes:
            process.wait(LOST_S)
        self._look()
        raise AssertionError("unreachable: they have ended")


def _end(link: socket.socket, processes: list[subprocess.Popen[bytes]], owner: int) -> None:
    link.close()
    if os.getpid() == owner:
        for process in processes:
            process.kill()  # it holds nothing
        for process in processes:
            process.wait()
