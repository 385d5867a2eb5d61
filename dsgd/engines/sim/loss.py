"""Lost messages (`cluster.loss`, `cluster.links.loss`): each with the probability of its pair, whatever its size.

A lost message has gone through its sender's port, and reaches neither its route nor the receiver. What may be lost, a
push, is gone. Everything else goes over connections, one from each sender to each receiver, which work like TCP: a lost
message is sent again a fixed time after it has left the port, as often as it takes, and the messages that were sent
after it wait at the receiver until it has come. So a loss there costs time, and no vector is mistaken for another one.

Requests and acknowledgements without content are never lost, as they have no bytes either.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from dsgd.engines.sim.loop import EventLoop
from dsgd.engines.sim.network import NOWHERE, Network, PortMessage
from dsgd.engines.sim.routes import Routes
from dsgd.streams import stream


class Delivery:
    """What happens when a message has arrived, and all those sent before it on its connection."""

    __slots__ = ("action", "arguments", "arrived")

    def __init__(self, action: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self.action = action
        self.arguments = arguments
        self.arrived = False


class LossyNetwork(Network):
    """Lose each message with a probability. lost: how many are gone. resent: how often one was sent again.

    What becomes of a message is drawn from its sender's own stream when it is sent for the first time."""

    def __init__(
        self,
        loop: EventLoop,
        bytes_per_s: Sequence[float],
        latency_s: float,
        chunks_per_message: int,
        routes: Routes | None,
        receive_bytes_per_s: Sequence[float] | None,
        loss: Callable[[int, int], float],
        retransmit_s: float,
        seed: int,
    ) -> None:
        """loss: the probability, of sender and receiver. retransmit_s: from when a lost message has left the port
        until it is sent again."""
        super().__init__(loop, bytes_per_s, latency_s, chunks_per_message, routes, receive_bytes_per_s)
        self.lost = 0
        self.resent = 0
        self._loss = loss
        self._retransmit_s = retransmit_s
        self._rngs = [stream("loss", seed, port) for port in range(len(bytes_per_s))]
        self._connections: dict[tuple[int, int], deque[Delivery]] = {}  # what has not been delivered, as it was sent

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
        """Return what the network is to send for a message that is lost so many times before it arrives."""
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
