"""Have vectors that workers hand in alike, as after an all-reduce, sent by one of them."""

from __future__ import annotations

import weakref
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from dsgd.engines.dist.frames import BadFrame, Message

REMEMBERED = 8  # vectors of each worker that others may have alike; those before are sent again

Vectors = dict[str, Tensor]


@dataclass(eq=False)
class _Shared:
    """One vector of a mark or checkpoint. arrived: the vector, while anybody keeps it; None: it is on its way. waiters:
    what other nodes are held for, and its name there."""

    arrived: weakref.ref[Tensor] | None = None
    waiters: list[tuple[Vectors, str]] = field(default_factory=list)

    @property
    def is_gone(self) -> bool:
        return self.arrived is not None and self.arrived() is None


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
            if known is None or known.is_gone:
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
