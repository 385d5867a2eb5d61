"""Have batches of a user's samples read before they are asked for, where that changes no bit, and say what it costs."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import torch

from dsgd.data.reading_pool import PendingRead, ReadBatch, ReadingPool

WORTH_S = 1e-3  # of reading a batch: below it, to ask another process takes about as long
SAID_AFTER, SAID_AFTER_S = 20, 10.0  # batches or seconds, whichever comes first
HERE = "in the process that trains"
OTHERS = "its samples depend on more than the global random numbers of torch, NumPy and Python"


@dataclass(frozen=True)
class TrainingRead:
    """The batch of a worker at its own step."""

    rank: int
    step: int


@dataclass(frozen=True)
class EvaluationRead:
    """A batch of an evaluation. begin: its place among the samples. indices: in the set."""

    test: bool
    begin: int
    indices: Sequence[int]


Read = TrainingRead | EvaluationRead


class BatchesAhead:
    """Serves the batches that `read` gives, from processes that read ahead on the assumption that (rank, step) is
    followed by (rank, step + 1); any other order gives the same batches, more slowly. One thread at a time.

    The first batch is read twice, by one of the processes: if its bits differ, or it takes no time worth mentioning,
    the processes end, and this one reads."""

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
        """name: of the data. batch_size: of training. most: samples of a batch of training or evaluation."""
        self._read, self._batch_size = read, batch_size
        self._pool: ReadingPool | None = ReadingPool(
            processes, lambda request: read(_as_read(request)), most, input_shape, dtype
        )
        self.owner = self._pool.owner
        self._is_tried = False
        self._ahead: dict[int, deque[tuple[int, PendingRead]]] = {}  # by rank, in the order of steps
        self._cost = ReadingCost(name, f"ahead in {processes} process{'es' * (processes > 1)}")

    def batch(self, read: TrainingRead) -> ReadBatch:
        """Return a batch of training, and have those that follow read, as far as there is room. Raises DataLost."""
        began = perf_counter()
        if not self._is_tried:
            return self._first(read)
        if self._pool is None:
            batch = self._read(read)
            self._cost.count(perf_counter() - began, perf_counter() - began)
            return batch
        pending = self._pending(self._pool, read)
        batch = self._pool.take(pending)
        self._cost.count(pending.answer["seconds"], perf_counter() - began)
        return batch

    def evaluation(self, reads: Iterable[EvaluationRead]) -> Iterator[ReadBatch]:
        """Yield the batches of an evaluation. Raises DataLost."""
        self._cost.pause()
        left = iter(reads)
        if not self._is_tried and (read := next(left, None)) is not None:
            yield self._first(read)
        yield from map(self._read, left) if self._pool is None else _in_order(self._pool, left)

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.close()
        self._pool = None
        self._ahead.clear()

    def _first(self, read: Read) -> ReadBatch:
        """Return the first batch that is asked for, and decide who reads those that follow."""
        assert self._pool is not None
        pending = _pending(read, tried=True)
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

    def _pending(self, pool: ReadingPool, read: TrainingRead) -> PendingRead:
        """Return the batch, submitted, and submit those that follow."""
        rank, step = read.rank, read.step
        ahead = self._ahead.setdefault(rank, deque())
        while ahead and ahead[0][0] != step:
            pool.cancel(ahead.popleft()[1])
        pending = ahead.popleft()[1] if ahead else pool.submit(_pending(read))
        following = step + 1 + len(ahead)
        while (not ahead or pool.outstanding < pool.ahead) and pool.has_room():
            ahead.append((following, pool.submit(_pending(TrainingRead(rank, following)))))
            following += 1
        return pending


class ReadingCost:
    """Says once, when some batches of training have been read, what they cost.

    name: of the data. how: they are read."""

    def __init__(self, name: str, how: str) -> None:
        self._name, self.how = name, how
        self._before: float | None = None  # when the batch before it was there
        self._batches, self._read_s, self._waited_s, self._trained_s = 0, 0.0, 0.0, 0.0
        self._is_said = False

    def pause(self) -> None:
        """Leave out the time from the last batch to the next one."""
        self._before = None

    def count(self, read_s: float, waited_s: float) -> None:
        """Count a batch. read_s: that reading it took, wherever. waited_s: that the process that trains gave for it."""
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


def _in_order(pool: ReadingPool, reads: Iterable[Read]) -> Iterator[ReadBatch]:
    batches: deque[PendingRead] = deque()
    try:
        for read in reads:
            batches.append(pool.submit(_pending(read)))
            if len(batches) > len(pool.processes):
                yield pool.take(batches.popleft())
        while batches:
            yield pool.take(batches.popleft())
    finally:
        for pending in batches if pool.close.alive else ():
            pool.cancel(pending)


def _pending(read: Read, tried: bool = False) -> PendingRead:
    return PendingRead(asdict(read), tried)


def _as_read(contents: dict[str, Any]) -> Read:
    if "rank" in contents:
        return TrainingRead(contents["rank"], contents["step"])
    return EvaluationRead(contents["test"], contents["begin"], contents["indices"])
