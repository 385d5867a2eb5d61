"""Have one worker send vectors that several workers would submit identically, as after an all-reduce, and keep vectors
in files if memory is full."""

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

REMEMBERED = 8  # number of vectors of each worker that are compared with others'; earlier ones are sent again

Vectors = dict[str, Tensor]

LEAST_BYTES = 1 << 20  # of a vector in a file


class Spool:
    """Vectors beyond the limit are pages of unnamed files, which the system writes to disk if memory is scarce. A file
    is removed with its vector, or with this process. Any thread may drop vectors; one thread requests them."""

    def __init__(self, folder: Path, limit: int, log: Callable[[str], None]) -> None:
        """folder: folder for the files. limit: bytes of all vectors in memory."""
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
    """One vector of a mark or checkpoint. arrived: reference to the vector; None: it is in flight. waiters: (vectors of
    another node's offer, name of this vector there)."""

    arrived: weakref.ref[Tensor] | None = None
    waiters: list[tuple[Vectors, str]] = field(default_factory=list)


@dataclass(frozen=True)
class _Offer:
    """The offer of a node. wanted: vectors that it must send, by name. others: names of vectors that it need not send.
    held: vectors that have already arrived."""

    key: str
    wanted: Mapping[str, _Shared]
    others: Sequence[str]
    held: Vectors


class SharedVectors:
    """Before a worker sends a snapshot, it offers the digests of its vectors. It then sends only the vectors that no
    other worker has sent or is sending.

    For lock-step methods, which fail if a worker is lost before its snapshot arrives, so every vector in flight
    arrives. The snapshots of a node become complete in the order in which it sent them."""

    def __init__(self, workers: int) -> None:
        self._limit = REMEMBERED * workers
        self._known: OrderedDict[tuple[str, str, str], _Shared] = OrderedDict()  # by key, name and digest
        self._offers: dict[int, _Offer] = {}  # by node
        self._waiting: dict[int, deque[tuple[Message, Vectors, _Offer]]] = {}  # by node, in the order of their arrival

    def offer(self, node: int, key: str, digests: Mapping[str, str]) -> list[str]:
        """Return the names of the vectors that a node must send in its next snapshot. key: key of that snapshot.
        digests: {name: digest}."""
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
        """Accept a snapshot, and yield the snapshots that are complete now, with their nodes. Raises BadFrame if it
        lacks a wanted vector. `same` in the message: names of the other vectors."""
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
        """Yield the complete snapshots of a node, up to the first that waits for a vector."""
        waiting = self._waiting[node]
        while waiting and len(waiting[0][2].held) == len(waiting[0][2].others):
            message, vectors, offer = waiting.popleft()
            yield node, message, vectors | offer.held
        if not waiting:
            del self._waiting[node]
