"""Ports and messages: every node has one full-duplex port, which its messages share.

The switch between the ports has no limit of its own and buffers what a busy receiver cannot take yet. So a parameter
server saturates, and a ring does not:

- messages that a node sends at one moment share its port equally: k of them, N bytes each, take k N / B;
- later ones wait for earlier ones, at the sender's port and again at the receiver's, first come, first served;
- the first bit travels for the latency a; one undisturbed message takes a + N / B.

With `chunks_per_message` above 1 every chunk of a message queues at the ports by itself: messages that are under way at
the same time then share a port, nearly equally, as streams of TCP do, instead of waiting for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dsgd.sim.loop import EventLoop


class Network:
    """Deliver messages between ports. bytes_per_s: of each node's port, each direction. latency_s: of every message."""

    def __init__(
        self, loop: EventLoop, bytes_per_s: Sequence[float], latency_s: float, chunks_per_message: int = 1
    ) -> None:
        self._loop = loop
        self._rate = list(bytes_per_s)
        self._latency_s = latency_s
        self._chunks = chunks_per_message
        self._egress_free = [0.0] * len(bytes_per_s)
        self._ingress_free = [0.0] * len(bytes_per_s)
        self.bytes_sent = [0.0] * len(bytes_per_s)
        self.messages = 0  # sent by `send`, requests and acknowledgements without content not counted
        # (node, from, to) in which a port was busy, for a trace
        self.spans: list[tuple[int, float, float]] | None = None

    def send(self, sender: int, messages: Sequence[tuple[int, float, Callable[..., None], tuple]]) -> None:
        """Send all (receiver, bytes, action, arguments) at once; action(*arguments) is called on arrival."""
        if self._chunks > 1:
            self.messages += len(messages)
            for receiver, size, action, arguments in messages:
                self._send_chunk(sender, receiver, size / self._chunks, self._chunks, action, arguments)
            return
        total = 0.0
        for message in messages:
            total += message[1]
        loop, latency_s = self._loop, self._latency_s
        begin = max(loop.now, self._egress_free[sender])
        end = begin + total / self._rate[sender]
        self._egress_free[sender] = end
        self.messages += len(messages)
        self.bytes_sent[sender] += total
        if self.spans is not None:
            self._busy(sender, begin, end)
        for receiver, size, action, arguments in messages:
            loop.at(begin + latency_s, self._first_bit, receiver, size, end + latency_s, action, arguments)

    def _send_chunk(
        self, sender: int, receiver: int, size: float, left: int, action: Callable[..., None], arguments: tuple
    ) -> None:
        """Send one of the `left` remaining chunks, and the next one when it has left the port."""
        begin = max(self._loop.now, self._egress_free[sender])
        end = begin + size / self._rate[sender]
        self._egress_free[sender] = end
        self.count(sender, size, begin, end)
        if left > 1:
            self._loop.at(end, self._send_chunk, sender, receiver, size, left - 1, action, arguments)
            action, arguments = _do_nothing, ()  # only the last chunk completes the message
        last_bit = end + self._latency_s
        self._loop.at(begin + self._latency_s, self._first_bit, receiver, size, last_bit, action, arguments)

    def _first_bit(
        self, receiver: int, size: float, last_bit: float, action: Callable[..., None], arguments: tuple
    ) -> None:
        begin = max(self._loop.now, self._ingress_free[receiver])
        # a port that stands idle between the bits of a slow sender is not busy with them
        self._ingress_free[receiver] = free = begin + size / self._rate[receiver]
        end = max(free, last_bit)
        if self.spans is not None:
            self._busy(receiver, begin, end)
        self._loop.at(end, action, *arguments)

    def after_latency(self, action: Callable[..., None], *arguments: object) -> None:
        """Schedule action(*arguments) for the arrival of a message without content: a request or acknowledgement."""
        self._loop.at(self._loop.now + self._latency_s, action, *arguments)

    def count(self, sender: int, size: float, begin: float, end: float) -> None:
        """Count bytes that a node sends between two times without occupying its port, as collectives do."""
        self.bytes_sent[sender] += size
        self._busy(sender, begin, end)

    def _busy(self, node: int, begin: float, end: float) -> None:
        if self.spans is not None and end > begin:
            self.spans.append((node, begin, end))


def _do_nothing() -> None:
    """Ignore the arrival of a chunk that is not the last one."""
