"""The pairwise plane: pull, push, exchange and call between the processes of one run, over TCP.

Every node listens on one port. What it asks of a peer goes through a channel of its own (channel.py), what peers ask of
it is answered by a thread per peer (serving.py, answers.py), so no request waits for a training loop. Callers never
do input or output: they get futures, whose callbacks run in a thread of the plane and must be short.

The numbers travel from tensor to tensor without a copy in between. Bytes on the wire: see wire.py.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dsgd.processes.pairwise.answers import Answers, Operation
from dsgd.processes.pairwise.channel import Channel, Request, Unreachable
from dsgd.processes.pairwise.exchanges import Exchanges
from dsgd.processes.pairwise.published import Buffers
from dsgd.processes.pairwise.serving import Server
from dsgd.processes.pairwise.wire import MAX_NAME_BYTES, MAX_SCALARS, SLICES, Frame, Kind, Run, Status

__all__ = ["Plane", "Pulled", "Unreachable"]

KEPT = 8  # received vectors whose memory is used again


@dataclass(frozen=True, slots=True, eq=False)
class Pulled:
    """vector: [d], what the peer published last. steps: its steps then. peer_steps: its steps now."""

    vector: Tensor
    steps: int
    peer_steps: int


class Plane:
    """One node's end of the plane. `with` closes it."""

    port: int
    bytes_sent: int

    def __init__(self, rank: int, nodes: int, address: str, token: bytes, dimension: int, dtype: torch.dtype,
                 timeout_s: float, patience_s: float, log: Callable[[str], None]) -> None:  # fmt: skip
        """Listen on a free port of `address`, on no other address, for the other nodes of this run.

        nodes: workers and servers together. token: 16 to 32 bytes that all nodes of the run and nobody else know.
        dimension: d, the most numbers that one vector has. timeout_s: how long no byte may move in an exchange or a
        call. patience_s: the same for pull and push, and how often a node that did not answer is tried again.
        """
        run = Run(token, nodes, dimension, dtype)
        if not 0 <= rank < nodes:
            raise ValueError(f"rank must be in [0, nodes={nodes}), got {rank}")
        if timeout_s <= 0 or patience_s <= 0:
            raise ValueError(f"timeout_s and patience_s must be > 0, got {timeout_s:g} and {patience_s:g}")
        self._rank, self._run, self._timeout_s, self._patience_s = rank, run, timeout_s, patience_s
        self._counting = threading.Lock()
        self.bytes_sent = 0
        self._numbering = threading.Lock()  # guards _numbers, and keeps exchanges in the order of their numbers
        self._numbers: Counter[int] = Counter()  # exchanges with each target
        self._closing = threading.Lock()
        self._closed = False
        slice_s = min(timeout_s, patience_s) / SLICES
        buffers = Buffers(dtype, KEPT)
        self._exchanges = Exchanges(timeout_s, lambda source: self._server.received(source), self._ping, log)
        self._answers = Answers(rank, run, buffers, self._exchanges, timeout_s, patience_s, self._count, log)
        self._server = Server(rank, run, address, slice_s, self._answers.serve, self._exchanges.connected, log)
        self.port = self._server.port
        self._channels = {
            peer: Channel(peer, rank, run, buffers, slice_s, patience_s, self._count, log)
            for peer in range(nodes)
            if peer != rank
        }

    def __enter__(self) -> Plane:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # what this node tells

    def connect(self, addresses: Sequence[tuple[str, int] | None]) -> None:
        """The nodes' addresses by rank; None where one is not known yet. Connections are made when first needed."""
        if len(addresses) != self._run.nodes:
            raise ValueError(f"addresses must name all {self._run.nodes} nodes, got {len(addresses)}")
        for rank, channel in self._channels.items():
            channel.relocate(addresses[rank])

    def relocate(self, rank: int, address: tuple[str, int]) -> None:
        """A node has been started again, at this address. Its exchanges are not taken up again: their count is lost."""
        self._channel(rank).relocate(address)

    def serve(self, operation: Operation) -> None:
        """Answer calls with operation(rank, name, part, scalars) -> (answer, staleness), one at a time. The answer must
        not be changed any more. Its exceptions become the caller's RuntimeError."""
        self._answers.operation = operation

    def publish(self, x: Tensor, steps: int) -> None:
        """Make a copy of x what peers pull. Before the first one they wait, for half of their patience."""
        self._run.check(x)
        self._answers.published.publish(x, steps)

    def set_steps(self, steps: int) -> None:
        """The steps made by now, for `Pulled.peer_steps`."""
        self._answers.steps = steps

    def inbox(self) -> list[tuple[Tensor, int, int]]:
        """Take what was pushed here: (vector, sender, the sender's steps) in order of arrival."""
        return self._answers.inbox.take()

    # what this node asks

    def pull(self, peer: int) -> Future[Pulled]:
        """What the peer published last. Fails with Unreachable."""

        def answer(frame: Frame, content: Tensor | str | None) -> Pulled:
            if frame.status == Status.NOTHING:
                raise Unreachable(peer, "it has published nothing yet")
            assert isinstance(content, Tensor)
            return Pulled(content, frame.steps, frame.second)

        return self._ask(peer, Frame(Kind.PULL), None, self._patience_s, answer)

    def push(self, peer: int, vector: Tensor, steps: int) -> Future[bool]:
        """True when the vector is in the peer's inbox, False when there was no room. Fails with Unreachable."""
        self._run.check(vector)
        frame = Frame(Kind.PUSH, steps=steps)
        return self._ask(peer, frame, vector, self._patience_s, lambda frame, content: frame.status == Status.OK)

    def exchange(
        self, vector: Tensor, steps: int, targets: Sequence[int], sources: Sequence[int]
    ) -> Future[dict[int, Tensor]]:
        """Send the vector to all targets at once; {source: its vector} when one from each source is there.

        The n-th vector of a pair meets the n-th exchange that names it. Fails with Unreachable, naming the node waited
        for or the target that is lost; vectors that came before count.
        """
        self._run.check(vector)
        channels = {target: self._channel(target) for target in targets}
        for source in sources:
            self._channel(source)
        with self._numbering:
            exchange = self._exchanges.begin(sources)
            for target, channel in channels.items():
                frame = Frame(Kind.EXCHANGE, steps=steps, second=self._numbers[target])
                self._numbers[target] += 1
                channel.submit(
                    Request(
                        frame,
                        vector,
                        self._timeout_s,
                        done=lambda frame, content: None,
                        failed=lambda error: self._exchanges.unsent(exchange, error),
                    )
                )
        return exchange.future

    def call(
        self, server: int, operation: str, part: Tensor | None, scalars: tuple[float, ...]
    ) -> Future[tuple[Tensor | None, int]]:
        """(answer, staleness) of an operation on a server. Fails with Unreachable, or RuntimeError where it raised."""
        if part is not None:
            self._run.check(part)
        if not operation.isascii() or len(operation) > MAX_NAME_BYTES:
            raise ValueError(f"operation must be at most {MAX_NAME_BYTES} ASCII characters, got {operation!r}")
        if len(scalars) > MAX_SCALARS:
            raise ValueError(f"scalars must be at most {MAX_SCALARS}, got {len(scalars)}")

        def answer(frame: Frame, content: Tensor | str | None) -> tuple[Tensor | None, int]:
            if isinstance(content, str):
                raise RuntimeError(content)
            return content, frame.steps

        return self._ask(server, Frame(Kind.CALL, name=operation, scalars=scalars), part, self._timeout_s, answer)

    def _ask(self, peer: int, frame: Frame, vector: Tensor | None, patience_s: float,
             answer: Callable[[Frame, Tensor | str | None], Any]) -> Future[Any]:  # fmt: skip
        """answer: the future's result, or the exception it raises."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()

        def done(frame: Frame, content: Tensor | str | None) -> None:
            try:
                result = answer(frame, content)
            except (Unreachable, RuntimeError) as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self._channel(peer).submit(Request(frame, vector, patience_s, done, future.set_exception))
        return future

    def _ping(self, peer: int, answered: Callable[[Unreachable | None], None]) -> None:
        request = Request(Frame(Kind.PING), None, self._timeout_s, lambda frame, content: answered(None), answered)
        self._channels[peer].submit(request)

    def _channel(self, peer: int) -> Channel:
        if peer not in self._channels:
            raise ValueError(f"peer must be another rank in [0, {self._run.nodes}), got {peer} on rank {self._rank}")
        return self._channels[peer]

    def _count(self, payload_bytes: int) -> None:
        with self._counting:
            self.bytes_sent += payload_bytes

    def close(self) -> None:
        """End every thread and socket within about patience_s: for so long vectors of exchanges that are still on their
        way are sent, since a neighbour may wait for them. All else that is pending fails with Unreachable."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._exchanges.close()
            self._answers.published.close()
            for channel in self._channels.values():
                channel.finish()
            deadline = time.monotonic() + self._patience_s
            for channel in self._channels.values():
                channel.join(max(0.0, deadline - time.monotonic()))
            for channel in self._channels.values():
                channel.abort()
            for channel in self._channels.values():
                channel.join(self._patience_s)
            self._server.close(self._patience_s)
            self._exchanges.join(self._patience_s)
