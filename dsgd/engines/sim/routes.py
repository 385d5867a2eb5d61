"""Routes: the pipes of a message between the ports of its sender and its receiver.

A route has up to four pipes in sequence: the connection of the pair, if a window or a limit slows it; the uplink of the
sender's region; the link between the regions; and the uplink of the receiver's region. Each pipe has a queue in each
direction, first come, first served, and forwards a message while it still arrives. An undisturbed message takes a + N /
B, with the latency a of its route and the rate B of the slowest pipe or port. A message that waits for a pipe does not
block the sender's port. Between the uplinks there is no limit: two regions do not disturb a third. Congested uplinks or
links have a part of their rate.

`cluster.islands` are regions with uplinks; `cluster.links` are regions with a link for each pair.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from dsgd.cluster.compute_trace import Congestion
from dsgd.engines.sim.loop import EventLoop
from dsgd.engines.sim.node import Pauses
from dsgd.streams import stream


@dataclass(eq=False, slots=True)
class Flow:
    """Count the bytes that go through a port or leave a region, evenly from a transfer's first bit to its last one.
    Transfers may overlap."""

    _passed: float = 0.0  # bytes of transfers that are known to have ended
    # begin and end in seconds, bytes; mostly one or two of them, for which a deque would be ten times as large
    _passing: list[tuple[float, float, float]] = field(default_factory=list)

    def add(self, now_s: float, begin_s: float, end_s: float, size: float) -> None:
        """Add a transfer between two times, and forget transfers that have ended."""
        passing = self._passing
        while passing and passing[0][1] <= now_s:
            self._passed += passing.pop(0)[2]
        passing.append((begin_s, end_s, size))

    def until(self, time_s: float) -> float:
        """Return the bytes until a time, which must not lie before the last transfer was added."""
        total = self._passed
        for begin_s, end_s, size in self._passing:
            if end_s <= time_s:
                total += size
            elif begin_s < time_s:
                total += size * ((time_s - begin_s) / (end_s - begin_s))
        return total


@dataclass(eq=False)
class Pipe:
    """One direction of a connection, uplink or link."""

    _rate: float  # bytes/s
    _congestion: Sequence[tuple[Pauses, float]] = ()  # when it has only a part of its rate, and which
    _free_s: float = 0.0

    def through(self, now_s: float, size: float, last_bit_s: float) -> tuple[float, float]:
        """Let a message through, behind earlier ones, whose first bit arrives now. Returns the times at which its first
        and its last bit leave. last_bit_s: arrival of the last bit."""
        begin_s = max(now_s, self._free_s)
        self._free_s = self._finish(begin_s, size)
        return begin_s, max(self._free_s, last_bit_s)

    def _finish(self, now_s: float, size: float) -> float:
        """Return the time at which `size` bytes have passed. Calls must be in order of time."""
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


@dataclass(eq=False)
class Connection(Pipe):
    """The connections from one port to another. turns: bytes and seconds of each round trip before they have their
    rate, at the beginning and after pause_s of silence (RFC 5681, 4.1)."""

    turns: Sequence[tuple[float, float]] = ()
    pause_s: float = 0.0
    _sent: float = 0.0  # bytes since they began
    _silent_s: float = 0.0  # when the last bit left

    def through(self, now_s: float, size: float, last_bit_s: float) -> tuple[float, float]:
        if now_s > self._silent_s + self.pause_s:
            self._sent = 0.0
        first_s, self._silent_s = super().through(now_s, size, last_bit_s)
        return first_s, self._silent_s

    def _finish(self, now_s: float, size: float) -> float:
        begin, end, passed = self._sent, self._sent + size, 0.0
        self._sent = end
        for n_bytes, seconds in self.turns:
            share = max(0.0, min(end, passed + n_bytes) - max(begin, passed)) / n_bytes
            now_s += share * seconds
            size -= share * n_bytes
            passed += n_bytes
        return super()._finish(now_s, max(0.0, size))


@dataclass(frozen=True, slots=True)
class RegionLink:
    """The link from one region to another. congestion: its phases of congestion, each with its number among all."""

    latency_s: float
    bytes_per_s: float
    congestion: Sequence[tuple[int, Congestion]] = ()


@dataclass(frozen=True, slots=True)
class Route:
    """The route of one sender's messages to one receiver. flow: counts bytes that leave the region; None within a
    region."""

    latency_s: float
    pipes: Sequence[Pipe]
    flow: Flow | None


class Routes:
    """Carry messages from port to port where more than the ports is on their way.

    region_of: region of each port. uplink_bytes_per_s: rate of a region's uplink in each direction; None: no uplinks.
    latency_s: latency of a message between regions without a link. congestion: congestion of all uplinks. seed: seed of
    the run. links: links by (from, to). latency_within_s: latency of a message within a region. connection: function of
    sender, receiver and latency that makes the connections of a pair; None: connections without limits."""

    def __init__(
        self,
        loop: EventLoop,
        region_of: Sequence[int],
        uplink_bytes_per_s: float | None,
        latency_s: float,
        congestion: Sequence[Congestion] = (),
        seed: int = 0,
        links: Mapping[tuple[int, int], RegionLink] | None = None,
        latency_within_s: float = 0.0,
        connection: Callable[[int, int, float], Connection | None] | None = None,
    ) -> None:
        self.regions = max(region_of) + 1
        self._loop = loop
        self._region_of = list(region_of)
        self._latency_s = latency_s
        self._latency_within_s = latency_within_s
        self._connection = connection
        self._routes: dict[tuple[int, int], Route | None] = {}

        def pipe(bytes_per_s: float, congestion: Sequence[tuple[int, Congestion]], *key: int) -> Pipe:
            streams = [stream("congestion", seed, *key, index) for index, _ in congestion]
            pauses = [(Pauses(each, rng), each.factor) for (_, each), rng in zip(congestion, streams, strict=True)]
            return Pipe(bytes_per_s, pauses)

        numbered = list(enumerate(congestion))
        uplinks = [] if uplink_bytes_per_s is None else [uplink_bytes_per_s] * self.regions
        self._out = [pipe(rate, numbered, region, 0) for region, rate in enumerate(uplinks)]
        self._in = [pipe(rate, numbered, region, 1) for region, rate in enumerate(uplinks)]
        self._links = {
            pair: (link.latency_s, pipe(link.bytes_per_s, link.congestion, *pair, 2))
            for pair, link in (links or {}).items()
        }
        self._flows = [Flow() for _ in range(self.regions)]  # out of each

    def between(self, sender: int, receiver: int) -> Route | None:
        """Return the route from one port to another, None if it has only the ports."""
        try:
            return self._routes[sender, receiver]
        except KeyError:
            return self._routes.setdefault((sender, receiver), self._made(sender, receiver))

    def _made(self, sender: int, receiver: int) -> Route | None:
        here, there = self._region_of[sender], self._region_of[receiver]
        within = here == there
        link_s, link = self._links.get((here, there), (self._latency_s, None))
        latency_s = self._latency_within_s if within else link_s
        pipes: list[Pipe] = []
        if self._connection is not None and (connection := self._connection(sender, receiver, latency_s)) is not None:
            pipes.append(connection)
        if within:
            return Route(latency_s, pipes, None) if pipes else None
        pipes += [*self._out[here : here + 1], *([link] if link else []), *self._in[there : there + 1]]
        return Route(latency_s, pipes, self._flows[here])

    def bytes_out(self, time_s: float) -> list[float]:
        """Return the bytes that have left each region until a time, which must not lie before the last event."""
        return [flow.until(time_s) for flow in self._flows]

    def count(self, ports: Sequence[int], size: float, begin_s: float, end_s: float) -> None:
        """Count bytes that leave each region of some ports between two times without occupying a pipe, as in
        collectives; none where all are of one region."""
        regions = {self._region_of[port] for port in ports}
        for region in regions if len(regions) > 1 else ():
            self._flows[region].add(self._loop.now, begin_s, end_s, size)

    def send(
        self, route: Route, receiver: int, size: float, begin_s: float, end_s: float, arrive: Callable, arguments: tuple
    ) -> None:
        """Carry a message whose first and last bit leave the sender's port at these times.

        arrive: called when the first bit is at the receiver's port, with (receiver, size, time of the last bit,
        *arguments)."""
        self._loop.at(begin_s, self._pass, route, 0, receiver, size, end_s, arrive, arguments)

    def _pass(
        self,
        route: Route,
        position: int,
        receiver: int,
        size: float,
        last_bit: float,
        arrive: Callable,
        arguments: tuple,
    ) -> None:
        """Pass the pipe at this position of the route. The first pipe adds the latency of the whole route."""
        begin, end = route.pipes[position].through(self._loop.now, size, last_bit)
        if position == 0:
            if route.flow is not None:
                route.flow.add(self._loop.now, begin, end, size)
            begin, end = begin + route.latency_s, end + route.latency_s
        if position + 1 < len(route.pipes):
            self._loop.at(begin, self._pass, route, position + 1, receiver, size, end, arrive, arguments)
        else:
            self._loop.at(begin, arrive, receiver, size, end, *arguments)
