"""Islands of nodes: every island has one full-duplex uplink, through which its messages to other islands pass.

A message between islands goes through the sender's port, its island's uplink, the uplink of the receiver's island and
the receiver's port. Each of these has a queue of its own in each direction, first come, first served, and hands a
message on while it is still coming in: an undisturbed one takes a + N / B, with the latency a between islands and the
rate B of the slowest of the four. Whoever waits for an uplink does not block the sender's port. Between the uplinks
there is no limit: two islands do not disturb a third. While an uplink is congested, it goes on with a part of its rate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from dsgd.cluster import Congestion
from dsgd.sim.compute import Pauses
from dsgd.sim.flow import Flow
from dsgd.sim.loop import EventLoop
from dsgd.streams import stream


class Direction:
    """One direction of an uplink. congestion: when it has only a part of its rate, and which."""

    def __init__(self, bytes_per_s: float, congestion: Sequence[tuple[Pauses, float]]) -> None:
        self._rate = bytes_per_s
        self._congestion = congestion
        self._free_s = 0.0

    def through(self, now_s: float, size: float, last_bit_s: float) -> tuple[float, float]:
        """Let a message through whose first bit is here now, behind those before it. Returns when its first and its
        last bit leave. last_bit_s: when the last one is here."""
        begin_s = max(now_s, self._free_s)
        self._free_s = self._finish(begin_s, size)
        return begin_s, max(self._free_s, last_bit_s)

    def _finish(self, now_s: float, size: float) -> float:
        """Return when so many bytes have passed. Calls must come in order of time."""
        while True:
            rate, until_s = self._rate, inf
            for pauses, factor in self._congestion:
                begin_s, end_s = pauses.after(now_s)
                if begin_s <= now_s:
                    rate, until_s = min(rate, self._rate * factor), min(until_s, end_s)
                else:
                    until_s = min(until_s, begin_s)
            if now_s + size / rate <= until_s:
                return now_s + size / rate
            size -= (until_s - now_s) * rate
            now_s = until_s


class Uplinks:
    """Carry messages from the ports of one island to those of another.

    island_of: of every node. bytes_per_s: of an uplink, each direction. latency_s: of a message between islands.
    congestion: of all uplinks. seed: of the run."""

    def __init__(
        self,
        loop: EventLoop,
        island_of: Sequence[int],
        bytes_per_s: float,
        latency_s: float,
        congestion: Sequence[Congestion] = (),
        seed: int = 0,
    ) -> None:
        self.latency_s = latency_s
        self._loop = loop
        self._island_of = list(island_of)
        islands = range(max(island_of) + 1)

        def direction(island: int, way: int) -> Direction:
            streams = (stream("congestion", seed, island, way, index) for index in range(len(congestion)))
            return Direction(
                bytes_per_s, [(Pauses(each, rng), each.factor) for each, rng in zip(congestion, streams, strict=True)]
            )

        self._out = [direction(island, 0) for island in islands]
        self._in = [direction(island, 1) for island in islands]
        self._flows = [Flow() for _ in islands]  # out of each

    def between(self, one: int, other: int) -> bool:
        """Tell whether two nodes are in different islands."""
        return self._island_of[one] != self._island_of[other]

    def bytes_out(self, time_s: float) -> list[float]:
        """Return what has left each island until a time, which must not lie before the last event."""
        return [flow.until(time_s) for flow in self._flows]

    def count(self, size: float, begin_s: float, end_s: float) -> None:
        """Count bytes that leave every island between two times without occupying its uplink, as in collectives."""
        for flow in self._flows:
            flow.add(self._loop.now, begin_s, end_s, size)

    def send(
        self, sender: int, receiver: int, size: float, begin_s: float, end_s: float, arrive: Callable, arguments: tuple
    ) -> None:
        """Carry a message whose first and last bit leave the sender's port at these times.

        arrive: called when the first bit is at the receiver's port, with (receiver, size, time of the last bit,
        *arguments)."""
        self._loop.at(begin_s, self._leave, self._island_of[sender], receiver, size, end_s, arrive, arguments)

    def _leave(
        self, island: int, receiver: int, size: float, last_bit: float, arrive: Callable, arguments: tuple
    ) -> None:
        begin, end = self._out[island].through(self._loop.now, size, last_bit)
        self._flows[island].add(self._loop.now, begin, end, size)
        self._loop.at(begin + self.latency_s, self._enter, receiver, size, end + self.latency_s, arrive, arguments)

    def _enter(self, receiver: int, size: float, last_bit: float, arrive: Callable, arguments: tuple) -> None:
        begin, end = self._in[self._island_of[receiver]].through(self._loop.now, size, last_bit)
        self._loop.at(begin, arrive, receiver, size, end, *arguments)
