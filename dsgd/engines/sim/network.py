"""Ports and messages: every node has one full-duplex port, which its messages share.

The switch between the ports has no limit of its own and buffers what a busy receiver cannot take yet. So a parameter
server saturates, and a ring does not. Messages follow these rules:

- messages that a node sends at one moment share its port equally: k of them, N bytes each, take k N / B;
- later ones wait for earlier ones, at the sender's port and again at the receiver's, first come, first served;
- the first bit travels for the latency a; one undisturbed message takes a + N / B.

Bytes count as they go through a port, evenly from a transfer's first bit to its last one. So no node has ever sent, or
received, more than its port can carry.

With `chunks_per_message` above 1, every chunk of a message queues separately: concurrent messages then share a port
nearly equally, as streams of TCP do, instead of waiting for each other.

A message to NOWHERE has left the network with the sender's port: it was lost (`LossyNetwork`), with the probability of
its pair for any size (`cluster.loss`, `cluster.links.loss`). A lost push is gone. All other messages use connections,
one from each sender to each receiver, which work like TCP. A lost message is sent again a fixed time after it has left
the port, until it arrives. Later messages of the connection wait at the receiver until then. So a loss there costs
time, and no vector is mistaken for another one. Requests and acknowledgements without content are never lost, because
they have no bytes.

Uplinks of islands, links of regions and slow connections form the route between two ports (`Routes`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from dsgd.cluster import Cluster
from dsgd.cluster.compute_trace import Congestion
from dsgd.engines.sim.loop import EventLoop
from dsgd.engines.sim.routes import Connection, Flow, RegionLink, Routes
from dsgd.streams import stream

PortMessage = tuple[int, float, Callable[..., None], tuple]  # receiver, bytes, and action with arguments on arrival
NOWHERE = -1  # the receiver of a message whose action happens when it has left the sender's port


class Network:
    """Deliver messages between ports. bytes_per_s: rate of each node's port, each direction. latency_s: latency of
    messages without a route; routes have their own. receive_bytes_per_s: rates of receiving ports, if they differ."""

    def __init__(
        self,
        loop: EventLoop,
        bytes_per_s: Sequence[float],
        latency_s: float,
        chunks_per_message: int = 1,
        routes: Routes | None = None,
        receive_bytes_per_s: Sequence[float] | None = None,
    ) -> None:
        self._loop = loop
        self._rate = list(bytes_per_s)
        self._receive_rate = list(receive_bytes_per_s or bytes_per_s)
        self._latency_s = latency_s
        self._chunks = chunks_per_message
        self.routes = routes
        self._egress_free = [0.0] * len(bytes_per_s)
        self._ingress_free = [0.0] * len(bytes_per_s)
        self._queued = [0.0] * len(bytes_per_s)  # bytes that a node has given to its port, so far
        self._received = [Flow() for _ in bytes_per_s]
        self._collective = [Flow() for _ in bytes_per_s]  # bytes sent, and as many received
        self.messages = 0  # sent by `send`, requests and acknowledgements without content not counted
        # (node, from, to) in which a port was busy, for a trace
        self.spans: list[tuple[int, float, float]] | None = None

    def bytes_sent(self, time_s: float) -> list[float]:
        """Return the bytes that every node has sent until a time, which must not lie before the last event."""
        # a port that has something to send sends at its rate
        waiting = [
            (free - time_s) * rate if free > time_s else 0.0
            for free, rate in zip(self._egress_free, self._rate, strict=True)
        ]
        sent = [max(0.0, queued - left) for queued, left in zip(self._queued, waiting, strict=True)]
        return [count + flow.until(time_s) for count, flow in zip(sent, self._collective, strict=True)]

    def bytes_received(self, time_s: float) -> list[float]:
        """Return likewise the bytes that every node has received."""
        flows = zip(self._received, self._collective, strict=True)
        return [messages.until(time_s) + collectives.until(time_s) for messages, collectives in flows]

    def send_once(self, sender: int, message: PortMessage, lost: Callable[[], None]) -> None:
        """Send a message that may be lost for good. lost: called instead of its action if it is."""
        self.send(sender, [message])

    def send(self, sender: int, messages: Sequence[PortMessage]) -> None:
        """Send all (receiver, bytes, action, arguments) at once; action(*arguments) is called on arrival."""
        if self._chunks > 1:
            self.messages += len(messages)
            for receiver, size, action, arguments in messages:
                self._send_chunk(sender, receiver, size / self._chunks, self._chunks, action, arguments)
            return
        total = 0.0
        for message in messages:
            total += message[1]
        begin = max(self._loop.now, self._egress_free[sender])
        end = begin + total / self._rate[sender]
        self._egress_free[sender] = end
        self.messages += len(messages)
        self._queued[sender] += total
        if self.spans is not None:
            self._busy(sender, begin, end)
        for receiver, size, action, arguments in messages:
            self._carry(sender, receiver, size, begin, end, action, arguments)

    def _send_chunk(
        self, sender: int, receiver: int, size: float, left: int, action: Callable[..., None], arguments: tuple
    ) -> None:
        """Send one of the `left` remaining chunks, and the next one when it has left the port."""
        begin = max(self._loop.now, self._egress_free[sender])
        end = begin + size / self._rate[sender]
        self._egress_free[sender] = end
        self._queued[sender] += size
        self._busy(sender, begin, end)
        if left > 1:
            self._loop.at(end, self._send_chunk, sender, receiver, size, left - 1, action, arguments)
            action, arguments = _do_nothing, ()  # only the last chunk completes the message
        self._carry(sender, receiver, size, begin, end, action, arguments)

    def _carry(
        self,
        sender: int,
        receiver: int,
        size: float,
        begin: float,
        end: float,
        action: Callable[..., None],
        arguments: tuple,
    ) -> None:
        """Carry a message that leaves the sender's port between two times to the receiver's port."""
        if receiver == NOWHERE:
            self._loop.at(end, action, *arguments)
        elif self.routes is not None and (route := self.routes.between(sender, receiver)) is not None:
            self.routes.send(route, receiver, size, begin, end, self._first_bit, (action, arguments))
        else:
            latency_s = self._latency_s
            self._loop.at(begin + latency_s, self._first_bit, receiver, size, end + latency_s, action, arguments)

    def _first_bit(
        self, receiver: int, size: float, last_bit: float, action: Callable[..., None], arguments: tuple
    ) -> None:
        begin = max(self._loop.now, self._ingress_free[receiver])
        # a port that idles between the bits of a slow sender is not busy
        self._ingress_free[receiver] = free = begin + size / self._receive_rate[receiver]
        end = max(free, last_bit)
        self._received[receiver].add(self._loop.now, begin, end, size)
        if self.spans is not None:
            self._busy(receiver, begin, end)
        self._loop.at(end, action, *arguments)

    def notify(self, sender: int, receiver: int, action: Callable[..., None], *arguments: object) -> None:
        """Schedule action(*arguments) for the arrival of a message without content: a request or acknowledgement."""
        latency_s = self._latency_s
        if self.routes is not None and (route := self.routes.between(sender, receiver)) is not None:
            latency_s = route.latency_s
        self._loop.at(self._loop.now + latency_s, action, *arguments)

    def count(self, node: int, size: float, begin: float, end: float) -> None:
        """Count bytes that a node sends, and as many that it receives, between two times without occupying its port,
        as in collectives."""
        self._collective[node].add(self._loop.now, begin, end, size)

    def occupy(self, node: int, spans: Sequence[tuple[float, float]]) -> None:
        """Note in a trace the times in which a collective keeps a node's port busy."""
        for begin, end in spans:
            self._busy(node, begin, end)

    def _busy(self, node: int, begin: float, end: float) -> None:
        if self.spans is not None and end > begin:
            self.spans.append((node, begin, end))


def _do_nothing() -> None:
    """Ignore the arrival of a chunk that is not the last one."""


@dataclass(eq=False, slots=True)
class Delivery:
    """The action after the arrival of a message and of all earlier ones of its connection."""

    action: Callable[..., None]
    arguments: tuple[Any, ...]
    arrived: bool = False


class LossyNetwork(Network):
    """Lose each message with a probability. lost: number of lost messages. resent: number of repeated sends.

    All losses of a message are drawn from its sender's stream when it is sent for the first time."""

    def __init__(self, *ports: Any, loss: Callable[[int, int], float], retransmit_s: float, seed: int) -> None:
        """ports: arguments of `Network`. loss: maps (sender, receiver) to the probability. retransmit_s: seconds from
        the end of a lost message at the port until it is sent again."""
        super().__init__(*ports)
        self.lost = 0
        self.resent = 0
        self._loss = loss
        self._retransmit_s = retransmit_s
        self._rngs = [stream("loss", seed, port) for port in range(len(self._rate))]
        self._connections: dict[tuple[int, int], deque[Delivery]] = {}  # undelivered messages in the order of sending

    def send_once(self, sender: int, message: PortMessage, lost: Callable[[], None]) -> None:
        if self._rngs[sender].random() < self._loss(sender, message[0]):
            self.lost += 1
            message = (NOWHERE, message[1], lost, ())
        super().send(sender, [message])

    def send(self, sender: int, messages: Sequence[PortMessage]) -> None:
        attempts: list[PortMessage] = []
        for receiver, size, action, arguments in messages:
            delivery = Delivery(action, arguments)
            self._connections.setdefault((sender, receiver), deque()).append(delivery)
            losses = int(self._rngs[sender].geometric(1 - self._loss(sender, receiver))) - 1
            attempts.append(self._attempt(sender, receiver, size, delivery, losses))
        super().send(sender, attempts)

    def _attempt(self, sender: int, receiver: int, size: float, delivery: Delivery, losses: int) -> PortMessage:
        """Return the port message of a message that is lost `losses` times before it arrives."""
        if losses:
            return NOWHERE, size, self._wait, (sender, receiver, size, delivery, losses - 1)
        return receiver, size, self._arrived, (sender, receiver, delivery)

    def _wait(self, *attempt: Any) -> None:
        self._loop.at(self._loop.now + self._retransmit_s, self._send_again, *attempt)

    def _send_again(self, sender: int, receiver: int, size: float, delivery: Delivery, losses: int) -> None:
        self.resent += 1
        super().send(sender, [self._attempt(sender, receiver, size, delivery, losses)])

    def _arrived(self, sender: int, receiver: int, delivery: Delivery) -> None:
        delivery.arrived = True
        waiting = self._connections[sender, receiver]
        while waiting and waiting[0].arrived:
            first = waiting.popleft()
            self._loop.at(self._loop.now, first.action, *first.arguments)


def network_of(cluster: Cluster, loop: EventLoop, nodes: int, ports: int, seed: int) -> Network:
    """Make the network of `nodes` workers.

    ports: number of ports: workers, then servers and a star's centre. seed: seed of the run."""
    rates = [cluster.bytes_per_s(node, nodes) for node in range(ports)]
    receiving = None
    if cluster.receive_bandwidth is not None:
        receiving = [cluster.receive_bytes_per_s(node, nodes) for node in range(ports)]
    matrix, routes = cluster.link_matrix, None
    if cluster.islands > 1 or matrix is not None or cluster.limits_connections:
        routes = _routes(cluster, loop, nodes, rates, receiving or rates, seed)
    parts = (loop, rates, cluster.latency_s, cluster.chunks_per_message, routes, receiving)
    if not cluster.loss and not (matrix is not None and matrix.lossy):
        return Network(*parts)

    def loss(sender: int, receiver: int) -> float:
        here, there = cluster.region(sender, nodes), cluster.region(receiver, nodes)
        return cluster.loss if matrix is None or here == there else max(cluster.loss, matrix.loss[here][there])

    return LossyNetwork(*parts, loss=loss, retransmit_s=cluster.retransmit_s, seed=seed)


def _routes(
    cluster: Cluster, loop: EventLoop, nodes: int, rates: list[float], receiving: list[float], seed: int
) -> Routes:
    """Return the routes between the ports. rates, receiving: rates of every port in both directions."""
    region_of = [cluster.region(node, nodes) for node in range(len(rates))]
    matrix, links = cluster.link_matrix, {}
    if matrix is not None:
        k = range(len(matrix.regions))
        links = {
            (i, j): RegionLink(matrix.latency_s[i][j], cluster.link_bytes_per_s(i, j), cluster.link_congestion(i, j))
            for i in k
            for j in k
            if i != j
        }

    def connection(sender: int, receiver: int, latency_s: float) -> Connection | None:
        line = min(rates[sender], receiving[receiver], cluster.between(region_of[sender], region_of[receiver])[1])
        rate, turns = cluster.connection_bytes_per_s(latency_s, line), cluster.first_turns(latency_s, line)
        return Connection(rate, turns=turns, pause_s=cluster.retransmit_s) if turns or rate < inf else None

    congestion = [] if matrix is not None else [Congestion.from_entry(entry) for entry in cluster.congestion]
    return Routes(
        loop,
        region_of,
        cluster.uplink_bytes_per_s,
        cluster.latency_between_islands_s,
        congestion,
        seed,
        links,
        cluster.latency_s,
        connection if cluster.limits_connections else None,
    )
