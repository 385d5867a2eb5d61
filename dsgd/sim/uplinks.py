"""Islands of nodes: every island has one full-duplex uplink, through which its messages to other islands pass.

A message between islands goes through the sender's port, its island's uplink, the uplink of the receiver's island and
the receiver's port. Each of these has a queue of its own in each direction, first come, first served, and hands a
message on while it is still coming in: an undisturbed one takes a + N / B, with the latency a between islands and the
rate B of the slowest of the four. Whoever waits for an uplink does not block the sender's port. Between the uplinks
there is no limit: two islands do not disturb a third.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dsgd.sim.flow import Flow
from dsgd.sim.loop import EventLoop


class Uplinks:
    """Carry messages from the ports of one island to those of another.

    island_of: of every node. bytes_per_s: of an uplink, each direction. latency_s: of a message between islands."""

    def __init__(self, loop: EventLoop, island_of: Sequence[int], bytes_per_s: float, latency_s: float) -> None:
        self.latency_s = latency_s
        self._loop = loop
        self._island_of = list(island_of)
        self._rate = bytes_per_s
        islands = max(island_of) + 1
        self._out_free = [0.0] * islands
        self._in_free = [0.0] * islands
        self._out = [Flow() for _ in range(islands)]

    def between(self, one: int, other: int) -> bool:
        """Tell whether two nodes are in different islands."""
        return self._island_of[one] != self._island_of[other]

    def bytes_out(self, time_s: float) -> list[float]:
        """Return what has left each island until a time, which must not lie before the last event."""
        return [flow.until(time_s) for flow in self._out]

    def count(self, size: float, begin_s: float, end_s: float) -> None:
        """Count bytes that leave every island between two times without occupying its uplink, as in collectives."""
        for flow in self._out:
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
        begin, end = self._through(self._out_free, island, size, last_bit)
        self._out[island].add(self._loop.now, begin, end, size)
        self._loop.at(begin + self.latency_s, self._enter, receiver, size, end + self.latency_s, arrive, arguments)

    def _enter(self, receiver: int, size: float, last_bit: float, arrive: Callable, arguments: tuple) -> None:
        begin, end = self._through(self._in_free, self._island_of[receiver], size, last_bit)
        self._loop.at(begin, arrive, receiver, size, end, *arguments)

    def _through(self, free: list[float], island: int, size: float, last_bit: float) -> tuple[float, float]:
        """Take one direction of an uplink for a message whose first bit is here. Returns when its first and its last
        bit leave."""
        begin = max(self._loop.now, free[island])
        free[island] = begin + size / self._rate
        return begin, max(free[island], last_bit)
