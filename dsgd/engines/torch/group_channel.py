"""Start an algorithm's collectives and exchanges on a process group, wait for them, and agree by them on the steps of
checkpoints and on the one to resume from.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dsgd.worker import AllReduceMean, Exchange, Request

Wait = Callable[[], Any]  # returns the answer to a request
PERIOD_S = 1.0  # between two sums of wishes


class CommunicationFailed(RuntimeError):
    """An operation of the process group has failed: one line with the rank, the operation and the reason."""


class GroupChannel:
    """Communicate with the ranks of one process group. bytes_sent, bytes_received: bytes of this rank's vectors; an
    all-reduce counts as a ring."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        self.rank, self.nodes = dist.get_rank(group), dist.get_world_size(group)
        self.bytes_sent = self.bytes_received = 0

    def start(self, request: Request, step: int) -> Wait:
        """Start the operation of a request without waiting. Returns the function that waits for its answer.

        step: names the operation in errors."""
        if isinstance(request, AllReduceMean):
            mean = request.vector.clone()  # the algorithm may still read its vector
            return self.start_mean(mean, f"all_reduce_mean at step {step}")
        if isinstance(request, Exchange):
            return self._start_exchange(request, f"exchange at step {step}")
        raise TypeError(f"{type(request).__name__} needs engine=dist: process groups answer lock-step requests alone")

    def start_sum(self, vector: Tensor, name: str) -> Callable[[], Tensor]:
        """Start to sum a vector over all ranks, in place."""
        around = 2 * (self.nodes - 1) * vector.nbytes // self.nodes
        self.bytes_sent, self.bytes_received = self.bytes_sent + around, self.bytes_received + around
        with self.failing(name):
            work = dist.all_reduce(vector, group=self.group, async_op=True)

        def wait() -> Tensor:
            self._wait([work], name)
            return vector

        return wait

    def start_mean(self, vector: Tensor, name: str) -> Callable[[], Tensor]:
        """Start to average a vector over all ranks, in place."""
        wait = self.start_sum(vector, name)
        return lambda: wait().div_(self.nodes)

    def mean(self, vector: Tensor, name: str) -> Tensor:
        """Return the mean of a vector over all ranks, computed in place."""
        return self.start_mean(vector, name)()

    def from_rank(self, rank: int, vector: Tensor, name: str) -> Tensor:
        """Overwrite a vector with one rank's vector."""
        with self.failing(name):
            dist.broadcast(vector, self._global(rank), group=self.group)
        return vector

    def gathered(self, vector: Tensor, name: str) -> list[Tensor]:
        """Return the vectors of all ranks, which have the same shape, in order of rank."""
        vectors = [torch.empty_like(vector) for _ in range(self.nodes)]
        with self.failing(name):
            dist.all_gather(vectors, vector, group=self.group)
        return vectors

    def first_differing(self, text: str, device: torch.device) -> int | None:
        """Return the first rank whose text differs from rank 0's; None if all are equal. device: the group's."""
        digest = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7])
        ranks = self.gathered(torch.tensor([digest], device=device), "a comparison of all ranks")
        return next((rank for rank, other in enumerate(ranks) if not torch.equal(other, ranks[0])), None)

    def gathered_in_first(self, vector: Tensor, name: str) -> list[Tensor]:
        """Return the vectors of all ranks in rank 0, an empty list in others."""
        vectors = [torch.empty_like(vector) for _ in range(self.nodes)] if self.rank == 0 else None
        if not vector.numel():
            return vectors or []
        with self.failing(name):
            dist.gather(vector, vectors, self._global(0), group=self.group)
        return vectors or []

    def bytes_in_first(self, content: bytes, device: torch.device, name: str) -> list[bytes]:
        """Return the bytes of all ranks in rank 0, in order of rank, an empty list in others. One rank sends after the
        other, so rank 0 needs memory on `device` for one of them."""
        sizes = self.gathered(torch.tensor([len(content)], device=device), name)
        contents = [content] if self.rank == 0 else []
        with self.failing(name):
            if self.rank > 0:
                dist.send(
                    torch.frombuffer(bytearray(content), dtype=torch.uint8).to(device), self._global(0), self.group
                )
            for rank in range(1, self.nodes) if self.rank == 0 else ():
                received = torch.empty(int(sizes[rank]), dtype=torch.uint8, device=device)
                dist.recv(received, self._global(rank), self.group)
                contents.append(received.cpu().numpy().tobytes())
        return contents

    def _start_exchange(self, request: Exchange, name: str) -> Wait:
        like = next(iter(request.vectors.values()), None)  # in lock-step all vectors of an exchange are equally long
        if request.sources and like is None:
            raise TypeError(f"{name}: a rank that receives must send, got sources {list(request.sources)} alone")
        received = {source: torch.empty_like(like) for source in request.sources} if like is not None else {}
        self.bytes_sent += sum(vector.nbytes for vector in request.vectors.values())
        self.bytes_received += sum(vector.nbytes for vector in received.values())
        operations = [
            dist.P2POp(operation, vector, self._global(peer), self.group)
            for operation, vectors in ((dist.isend, request.vectors), (dist.irecv, received))
            for peer, vector in vectors.items()
        ]
        with self.failing(name):
            works = dist.batch_isend_irecv(operations) if operations else []

        def wait() -> dict[int, Tensor]:
            self._wait(works, name)
            assert len(operations) >= len(received)  # keeps the vectors that are sent alive until here
            return received

        return wait

    def _global(self, rank: int) -> int:
        return rank if self.group is None else dist.get_global_rank(self.group, rank)

    def _wait(self, works: Sequence[Any], name: str) -> None:
        with self.failing(name):
            for work in works:
                work.wait()

    @contextmanager
    def failing(self, name: str) -> Iterator[None]:
        """Name the operation in an error of the process group."""
        try:
            yield
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:160]
            why = "a rank is dead, later than the timeout of its process group allows, or has made other calls"
            raise CommunicationFailed(f"rank {self.rank}: {name} failed, as {why}: {reason}") from error


class Order(Enum):
    """The common action of all ranks at the end of a cycle."""

    CONTINUE = "continue"
    STORE = "store"
    STORE_AND_STOP = "store and stop"


class CheckpointOrders:
    """Decide, identically in all ranks, after which cycles they store their states.

    Once a period, all ranks start a sum of their wishes after the same step. They read it one period later, when it has
    arrived, so no rank waits for another that is less than a period behind. Rank 0 measures the time of a step and sets
    the steps of the next period: at most twice as many as before, so fast first steps do not fix a long period for slow
    ones.

    channel: a process group for these sums alone. every_s: seconds between checkpoints, the first one immediately;
    None: only before a stop. steps: first step of the run."""

    def __init__(
        self, channel: GroupChannel, device: torch.device, every_s: float | None, steps: int, resumed: bool
    ) -> None:
        self._channel, self._device, self._every_s = channel, device, every_s
        self._stored_at = time.monotonic() if resumed else -math.inf
        self._latest, self._next = (steps, time.monotonic()), steps
        self._sum: Wait | None = None

    def at_end_of_cycle(self, steps: int, stop: bool) -> Order:
        """Return the order for the state after `steps` steps. stop: this rank wants the run to end. Every rank makes
        the same calls."""
        if steps < self._next:
            return Order.CONTINUE
        stops, stores, period = (0, 0, 1) if self._sum is None else self._sum().tolist()
        self._next = steps + max(int(period), 1)
        if stores or stops:
            self._stored_at = time.monotonic()
        if not stops:
            self._sum = self._start_sum(steps, stop)
        return Order.STORE_AND_STOP if stops else Order.STORE if stores else Order.CONTINUE

    def _start_sum(self, steps: int, stop: bool) -> Wait:
        """Start to sum the wishes of all ranks. Rank 0 adds whether a checkpoint is due, and the next period."""
        now, (steps_before, before) = time.monotonic(), self._latest
        self._latest = steps, now
        is_due = self._every_s is not None and now - self._stored_at >= self._every_s
        period = (steps - steps_before) * min(PERIOD_S / max(now - before, 1e-9), 2)
        wishes = [stop, is_due, period] if self._channel.rank == 0 else [stop, 0, 0]
        vector = torch.tensor(wishes, dtype=torch.float64, device=self._device)
        return self._channel.start_sum(vector, f"the sum of wishes for a checkpoint at step {steps}")


def check_one_checkpoint(channel: GroupChannel, header: Mapping[str, Any] | None, device: torch.device) -> None:
    """Raise ValueError, in all ranks, unless all resume from the same checkpoint, or all start.

    header: header of the checkpoint that this rank has read. Afterwards rank 0 may replace the checkpoint."""
    text = "" if header is None else json.dumps([header["lines"], header["wall_s"]])
    if (other := channel.first_differing(text, device)) is not None:
        rule = "resume must be the same checkpoint on every rank, in a folder that all of them see"
        raise ValueError(f"{rule}, got another on rank {other} than on rank 0")
