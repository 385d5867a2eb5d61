"""Have vectors that workers hand in alike, as after an all-reduce, sent by one of them, and keep vectors in files where
memory has no room."""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from dsgd.engines.dist.frames import BadFrame, Message

REMEMBERED = 8  # vectors of each worker that others may have alike; those before are sent again

Vectors = dict[str, Tensor]

LEAST_BYTES = 1 << 20  # of a vector in a file


class Spool:
    """Vectors beyond the limit are pages of files without a name, which the system writes out where memory is scarce. A
    file is gone with its vector, or with this process. Any thread may drop vectors; one asks for them."""

    def __init__(self, folder: Path, limit: int, log: Callable[[str], None]) -> None:
        """folder: of the files. limit: bytes of all vectors in memory."""
        self._folder = folder
        self._limit = limit
        self._log = log
        self._lock = threading.RLock()  # a collection of garbage may free vectors anywhere
        self._held = 0  # bytes of the vectors in memory
        self._has_failed = False

    def empty(self, length: int, dtype: torch.dtype) -> Tensor:
        """Return a vector [length] of this type, with any contents."""
        nbytes = length * dtype.itemsize
        if self._held + nbytes > self._limit and nbytes >= LEAST_BYTES and not self._has_failed:
            try:
                return self._in_file(nbytes).view(dtype)
            except OSError as error:
                self._has_failed = True
                self._log(f"models wait in memory, not in {self._folder}: {error.strerror}")
        vector = torch.empty(length, dtype=dtype)
        with self._lock:
            self._held += nbytes
        weakref.finalize(vector, self._free, nbytes)
        return vector

    def _free(self, nbytes: int) -> None:
        with self._lock:
            self._held -= nbytes

    def _in_file(self, nbytes: int) -> Tensor:
        """Return a tensor of bytes. Raises OSError if there is no room for them."""
        with tempfile.TemporaryFile(dir=self._folder) as file:
            os.posix_fallocate(file.fileno(), 0, nbytes)  # a page without room on the disk would end the process
            return torch.frombuffer(mmap.mmap(file.fileno(), nbytes), dtype=torch.uint8)


@dataclass(eq=False)
class _Shared:
    """One vector of a mark or checkpoint. arrived: the vector, while anybody keeps it; None: it is on its way. waiters:
    what other nodes are held for, and its name there."""

    arrived: weakref.ref[Tensor] | None = None
    waiters: list[tuple[Vectors, str]] = field(default_factory=list)


@dataclass(frozen=True)
class _Offer:
    """What a node has offered. wanted: names of the vectors that it is to send. held: others that are here already."""

    key: str
    wanted: Mapping[str, _Shared]
    others: Sequence[str]
    held: Vectors


class SharedVectors:
    """Before a worker sends a snapshot, it offers the digests of its vectors. It then sends those that no other worker
    has sent or is sending.

    For methods in lock-step, whose run fails if a worker is lost before its snapshot has come: what is on its way
    arrives. The snapshots of a node are whole in the order in which it sent them."""

    def __init__(self, workers: int) -> None:
        self._limit = REMEMBERED * workers
        self._known: OrderedDict[tuple[str, str, str], _Shared] = OrderedDict()  # by key, name and digest
        self._offers: dict[int, _Offer] = {}  # by node
        self._waiting: dict[int, deque[tuple[Message, Vectors, _Offer]]] = {}  # by node, in the order of their arrival

    def offer(self, node: int, key: str, digests: Mapping[str, str]) -> list[str]:
        """Return the names of the vectors that a node is to send in its next snapshot. key: of that. digests: by
        name."""
        wanted: dict[str, _Shared] = {}
        held: Vectors = {}
        for name, digest in digests.items():
            known = self._known.get((key, name, digest))
            vector = known.arrived() if known is not None and known.arrived is not None else None
            if known is None or (known.arrived is not None and vector is None):  # not here yet, or gone
                self._known[key, name, digest] = wanted[name] = _Shared()
            elif vector is not None:
                held[name] = vector
            else:
                known.waiters.append((held, name))
        while len(self._known) > self._limit:
            self._known.popitem(last=False)
        self._offers[node] = _Offer(key, wanted, [name for name in digests if name not in wanted], held)
        return list(wanted)

    def receive(self, node: int, message: Message, vectors: Vectors) -> Iterator[tuple[int, Message, Vectors]]:
        """Take a snapshot, and yield those that are whole now, with their nodes. Raises BadFrame if it lacks a vector
        that was wanted. `same` in the message: names of those that were not."""
        same = message.pop("same", [])
        offer = self._offers.pop(node, None)
        if offer is None or offer.key != message["key"]:
            offer = _Offer(message["key"], {}, [], {})
        if sorted(same) != sorted(offer.others) or not offer.wanted.keys() <= vectors.keys():
            raise BadFrame("a snapshot lacked a vector that was wanted")
        for name, shared in offer.wanted.items():
            shared.arrived = weakref.ref(vectors[name])
            for held, missing in shared.waiters:
                held[missing] = vectors[name]
            shared.waiters.clear()
        self._waiting.setdefault(node, deque()).append((message, vectors, offer))
        for other in list(self._waiting):
            yield from self._whole(other)

    def _whole(self, node: int) -> Iterator[tuple[int, Message, Vectors]]:
        """Yield the snapshots of a node that wait for nothing, up to the first that does."""
        waiting = self._waiting[node]
        while waiting and len(waiting[0][2].held) == len(waiting[0][2].others):
            message, vectors, offer = waiting.popleft()
            yield node, message, vectors | offer.held
        if not waiting:
            del self._waiting[node]
