"""Pull, push, ask, exchange and call between the processes of one run.

Every node listens on one port. Its requests to a peer go through a channel (channel.py); requests of peers are answered
by a server (server.py). Both are coroutines in one thread, for any number of peers, so none waits for a training loop.
Callers never do input or output: they get futures, whose callbacks run in the plane's thread and must be short.

Vectors are sent from and received into the memory of tensors, without a copy. Bytes on the wire: see wire.py. The same
port lets the left neighbour into a ring, for sums over all nodes (ring.py).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dsgd.engines.dist.io_thread import IoThread, tasks_ended
from dsgd.engines.dist.pairwise.channel import CLOSED, Channel, PeerRequest, Unreachable
from dsgd.engines.dist.pairwise.exchanges import Exchanges
from dsgd.engines.dist.pairwise.frame_socket import LocalNode, VectorPool
from dsgd.engines.dist.pairwise.process_memory import permit_reading
from dsgd.engines.dist.pairwise.ring import RingEntrance, SumRing, join_ring
from dsgd.engines.dist.pairwise.server import Answer, Answered, PeerListener, PeerOperation, Responder
from dsgd.engines.dist.pairwise.wire import MAX_NAME_BYTES, MAX_SCALARS, Frame, Kind, PlaneSettings, Status

POOL_SIZE = 8  # received vectors whose memory is used again


@dataclass(frozen=True, slots=True, eq=False)
class Pulled:
    """The answer to a pull or an ask. vector: [d], published last by the peer, or its answer. steps: its steps then.
    peer_steps: its steps now."""

    vector: Tensor
    steps: int
    peer_steps: int


class Plane:
    """Exchange vectors with the other nodes of a run. `with` closes it."""

    def __init__(self, rank: int, nodes: int, address: str, token: bytes, dimension: int, dtype: torch.dtype,
                 timeout_s: float, patience_s: float, log: Callable[[str], None],
                 attach: bool = False, pinned: bool = False) -> None:  # fmt: skip
        """Listen on a free port of `address`, on no other address, for the other nodes of this run.

        nodes: workers and servers together. token: 16 to 32 bytes that only the nodes of this run know. dimension: d,
        the limit on a vector's length. timeout_s: maximum time without a moved byte in an exchange or a call.
        patience_s: the same for pull, push and ask, and the interval of retries to a node that did not answer. attach:
        read large vectors in the memory of this host's nodes, if the system allows it (attach.py). pinned: receive into
        page-locked memory, for a GPU."""
        settings = PlaneSettings(token, nodes, dimension, dtype)
        if not 0 <= rank < nodes:
            raise ValueError(f"rank must be in [0, nodes={nodes}), got {rank}")
        if timeout_s <= 0 or patience_s <= 0:
            raise ValueError(f"timeout_s and patience_s must be > 0, got {timeout_s:g} and {patience_s:g}")
        self.bytes_sent = self.bytes_received = 0
        self._sequences: Counter[int] = Counter()  # exchanges with each target
        self._closing = threading.Lock()
        self._closed = False
        pool = VectorPool(dtype, POOL_SIZE, pinned)
        counted = self._sent, self._received
        self._node = node = LocalNode(rank, settings, pool, timeout_s, patience_s, *counted, log, attach)
        if attach:
            permit_reading()
        self._exchanges = Exchanges(timeout_s, lambda source: self._listener.received(source), self._ping, log)
        self._responder = Responder(node, self._exchanges)
        self._entrance = RingEntrance()
        self._listener = PeerListener(node, address, self._responder, self._exchanges, self._entrance)
        self.port = self._listener.port
        self._channels = {peer: Channel(peer, node) for peer in range(nodes) if peer != rank}
        self._io = IoThread("dsgd plane")
        self._io.call(self._listener.start)

    def __enter__(self) -> Plane:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # State that peers see

    def connect(self, addresses: Sequence[tuple[str, int] | None]) -> None:
        """Set the nodes' addresses, by rank; None: not yet known. Connections are made when first needed."""
        if len(addresses) != self._node.settings.nodes:
            raise ValueError(f"addresses must name all {self._node.settings.nodes} nodes, got {len(addresses)}")
        self._io.run(self._relocate({rank: addresses[rank] for rank in self._channels}))

    async def _relocate(self, addresses: Mapping[int, tuple[str, int] | None]) -> None:
        for rank, address in addresses.items():
            self._channels[rank].relocate(address)

    def serve(self, operation: PeerOperation) -> None:
        """Answer calls with operation(rank, name, part, scalars) -> (answer, staleness), one at a time. The answer
        must not be changed afterwards. Exceptions become the caller's RuntimeError."""
        self._responder.operation = operation

    def answer_with(self, answer: Answer) -> None:
        """Answer asks with answer(vector, limit_s) -> (answer, steps of this node), or None if it cannot within limit_s
        seconds. It is called in a separate thread, and may wait. The answer must not be changed afterwards."""
        self._responder.answer = answer

    def publish(self, x: Tensor, steps: int) -> None:
        """Let peers pull a copy of x. Until the first publish a pull waits, for half of patience_s."""
        self._node.settings.check_vector(x)
        if self._responder.publish(x, steps):
            self._io.call(self._responder.answer_early_pulls)

    def set_steps(self, steps: int) -> None:
        """Set the steps made so far, for `Pulled.peer_steps`."""
        self._responder.steps = steps

    def inbox(self) -> list[tuple[Tensor, int, int]]:
        """Remove and return the vectors pushed here: (vector, sender, the sender's steps) in order of arrival."""
        return self._responder.take_inbox()

    # Requests to peers

    def pull(self, peer: int) -> Future[Pulled]:
        """Fetch the vector that the peer published last. Fails with Unreachable."""
        return self._fetch(peer, Frame(Kind.PULL), None, "it has published nothing yet")

    def push(self, peer: int, vector: Tensor, steps: int) -> Future[bool]:
        """Put the vector into the peer's inbox; the result is False when that is full. Fails with Unreachable."""
        self._node.settings.check_vector(vector)
        frame = Frame(Kind.PUSH, steps=steps)
        return self._ask(peer, frame, vector, self._node.patience_s, lambda frame, content: frame.status == Status.OK)

    def ask(self, peer: int, vector: Tensor, steps: int) -> Future[Pulled]:
        """Fetch the peer's answer to the vector. Fails with Unreachable."""
        self._node.settings.check_vector(vector)
        return self._fetch(peer, Frame(Kind.ASK, steps=steps), vector, "it is busy")

    def exchange(self, vectors: Mapping[int, Tensor], steps: int, sources: Sequence[int]) -> Future[dict[int, Tensor]]:
        """Send each target its vector, {target: vector}, and receive one from each source: {source: vector}.

        The n-th vector that a source sends here belongs to the n-th exchange that names the source. Fails with
        Unreachable if a target or a missing source is lost; vectors from before the failure count."""
        for vector in vectors.values():
            self._node.settings.check_vector(vector)
        for peer in (*vectors, *sources):
            self._channel(peer)
        future: Future[dict[int, Tensor]] = Future()
        future.set_running_or_notify_cancel()
        if not sources:
            future.set_result({})
        if not self._io.call(lambda: self._begin(future, vectors, steps, sources)) and sources:
            future.set_exception(Unreachable(sources[0], CLOSED))
        return future

    def _begin(
        self, future: Future[dict[int, Tensor]], vectors: Mapping[int, Tensor], steps: int, sources: Sequence[int]
    ) -> None:
        exchange = self._exchanges.begin(sources, future)
        for target, vector in vectors.items():
            frame = Frame(Kind.EXCHANGE, steps=steps, sequence=self._sequences[target])
            self._sequences[target] += 1
            failed = partial(self._exchanges.target_lost, exchange)
            self._channels[target].submit(PeerRequest(frame, vector, self._node.timeout_s, failed=failed))

    def call(self, server: int, operation: str, part: Tensor | None, scalars: tuple[float, ...]) -> Future[Answered]:
        """Run an operation on a server: (answer, staleness). Fails with Unreachable, or RuntimeError if it raised."""
        if part is not None:
            self._node.settings.check_vector(part)
        if not operation.isascii() or len(operation) > MAX_NAME_BYTES:
            raise ValueError(f"operation must be at most {MAX_NAME_BYTES} ASCII characters, got {operation!r}")
        if len(scalars) > MAX_SCALARS:
            raise ValueError(f"scalars must be at most {MAX_SCALARS}, got {len(scalars)}")

        def answer(frame: Frame, content: Tensor | str | None) -> Answered:
            if isinstance(content, str):
                raise RuntimeError(content)
            return content, frame.steps

        return self._ask(server, Frame(Kind.CALL, name=operation, scalars=scalars), part, self._node.timeout_s, answer)

    def ring(self, number: int, right: tuple[str, int]) -> SumRing:
        """Join ring `number` of all nodes; waits for both neighbours. right: address of the next rank. `close` leaves
        the ring to its owner. Raises RingBroken."""
        return join_ring(self._node, self._io, number, right, self._entrance)

    def _fetch(self, peer: int, frame: Frame, vector: Tensor | None, why_nothing: str) -> Future[Pulled]:
        """Send a request that a vector answers. why_nothing: reason for an error if the peer has no vector."""

        def answer(frame: Frame, content: Tensor | str | None) -> Pulled:
            if frame.status == Status.NOTHING:
                raise Unreachable(peer, why_nothing)
            assert isinstance(content, Tensor)
            return Pulled(content, frame.steps, frame.sequence)

        return self._ask(peer, frame, vector, self._node.patience_s, answer)

    def _ask(self, peer: int, frame: Frame, vector: Tensor | None, patience_s: float,
             answer: Callable[[Frame, Tensor | str | None], Any]) -> Future[Any]:  # fmt: skip
        """Send a request. answer: makes the future's result of the answering frame, or raises its exception."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()

        def done(frame: Frame, content: Tensor | str | None) -> None:
            try:
                result = answer(frame, content)
            except (Unreachable, RuntimeError) as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        channel = self._channel(peer)
        reason = channel.refusal(frame.kind)  # known here already if the peer is away: then the caller does not wait
        request = PeerRequest(frame, vector, patience_s, done, future.set_exception)
        if reason is not None or not self._io.call(lambda: channel.submit(request)):
            future.set_exception(Unreachable(peer, reason or CLOSED))
        return future

    def _ping(self, peer: int, answered: Callable[[Unreachable | None], None]) -> None:
        request = PeerRequest(
            Frame(Kind.PING), None, self._node.timeout_s, lambda frame, content: answered(None), answered
        )
        self._channels[peer].submit(request)

    def _channel(self, peer: int) -> Channel:
        if peer not in self._channels:
            raise ValueError(
                f"peer must be another rank in [0, {self._node.settings.nodes}), got {peer} on rank {self._node.rank}"
            )
        return self._channels[peer]

    def _sent(self, payload_bytes: int) -> None:
        self.bytes_sent += payload_bytes

    def _received(self, payload_bytes: int) -> None:
        self.bytes_received += payload_bytes

    def close(self) -> None:
        """End the threads and every socket within about patience_s. Until then the vectors of exchanges are still sent,
        since a neighbour may wait for them; everything else that is pending fails with Unreachable."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._io.run(self._end())
            self._io.close()
            self._responder.close()
            self._entrance.close()

    async def _end(self) -> None:
        self._exchanges.close()
        self._responder.answer_early_pulls()
        tasks = {channel.task for channel in self._channels.values() if channel.task is not None}
        for abort in (False, True):
            for channel in self._channels.values():
                channel.close(abort)
            await tasks_ended(tasks, self._node.patience_s)
        await self._listener.close(self._node.patience_s)
        if self._exchanges.task is not None:
            await tasks_ended([self._exchanges.task], self._node.patience_s)
