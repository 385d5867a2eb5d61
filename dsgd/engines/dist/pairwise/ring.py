"""Sum vectors over all workers in a ring: a connection to the right neighbour, and one from the left.

A vector is cut into p chunks. Worker r sends chunk r, then each chunk from the left with its own numbers added, until
chunk r + 1 has passed all workers and is the sum. Then the sums are forwarded once more, to be copied. So each worker
sends one stream of 2 (p - 1) chunks to the right. Byte i of a chunk may leave as soon as byte i of the chunk before has
arrived: a vector moves round the ring while it is added. Each sum is made once, in a fixed order of additions, so it is
bitwise equal in all workers, and in every run.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from queue import Empty, SimpleQueue

import numpy as np
import torch
from torch import Tensor

from dsgd.engines.dist.io_thread import SLICES_PER_WAIT, IoThread, unacknowledged
from dsgd.engines.dist.pairwise.frame_socket import LocalNode, PeerSilent, handshake, unconnected
from dsgd.engines.dist.pairwise.wire import DTYPE_CODES, RING_HEADER, RING_MAGIC, RINGS, as_bytes

SEGMENT_BYTES = 256 << 10  # that are received and added at a time, so that they are still in the cache
MAX_ITEM_BYTES = 8
SUMMED = (torch.float32, torch.float64)
BATCH_BYTES = 1 << 20  # that a waiting worker is woken for: on busy cores each time costs more than the copy
ENDED = select.POLLRDHUP | select.POLLHUP | select.POLLERR
CLOSED = "closed the connection"


class OutgoingChunks:
    """The stream to the right neighbour. ready: bytes that may be sent by now. missing: bytes that have not been
    sent."""

    def __init__(self, header: bytes, chunks: Sequence[memoryview]) -> None:
        """Make the header and the first chunk ready; incoming bytes add to `ready`."""
        self._parts = deque([memoryview(header), *filter(len, chunks)])
        self.ready = len(header) + len(chunks[0])
        self.missing = sum(map(len, self._parts))

    def send(self, sock: socket.socket) -> None:
        """Send the ready bytes. Raises BlockingIOError if the kernel takes none."""
        parts = self._parts
        pieces = [parts[0][: self.ready]]
        if len(parts) > 1 and self.ready > len(parts[0]):
            pieces.append(parts[1][: self.ready - len(parts[0])])
        sent = sock.sendmsg(pieces)
        self.ready -= sent
        self.missing -= sent
        while parts and sent >= len(parts[0]):
            sent -= len(parts.popleft())
        if sent:
            parts[0] = parts[0][sent:]


class IncomingChunks:
    """The stream from the left neighbour: a header, chunks to add to this worker's, then sums to copy.

    missing: bytes that have not arrived. passed_on: received bytes to forward to the right neighbour."""

    def __init__(
        self,
        header_bytes: int,
        check: Callable[[bytes], None],
        added: Sequence[np.ndarray],
        copied: Sequence[memoryview],
        scratch: memoryview,
    ) -> None:
        """check: called with the header. scratch: SEGMENT_BYTES, where chunks are received before they are added."""
        self._header = bytearray()
        self._header_bytes = header_bytes
        self._check = check
        self._added = deque(chunk for chunk in added if len(chunk))
        self._copied = deque(chunk for chunk in copied if len(chunk))
        self._last_bytes = len(copied[-1])  # the only chunk that ends here
        self._payload = self._remaining = sum(chunk.nbytes for chunk in self._added) + sum(map(len, self._copied))
        self._scratch = scratch
        self._filled = 0  # bytes of an incomplete number at the begin of scratch

    @property
    def missing(self) -> int:
        return self._header_bytes - len(self._header) + self._remaining

    @property
    def passed_on(self) -> int:
        return min(self._payload - self._remaining - self._filled, self._payload - self._last_bytes)

    def batch(self, limit: int, chunks: int) -> int:
        """Return the number of bytes worth waiting for, at most `limit`. chunks: number of chunks in the stream.

        On average over the ring, one mean chunk, less the bytes of an incomplete number, is in flight between two
        neighbours. If all waited for more, they would wait for each other. So all wait for half of that."""
        if len(self._header) < self._header_bytes:
            return 1
        return max(1, min(limit, self._remaining, self._payload // chunks // 2 - MAX_ITEM_BYTES))

    def receive(self, sock: socket.socket) -> None:
        """Receive the available part of the header or of the next chunk. Raises BlockingIOError if there is none,
        EOFError at the end of the connection."""
        if len(self._header) < self._header_bytes:
            self._receive_header(sock)
        elif self._added:
            self._receive_and_add(sock)
        else:
            chunk = self._copied.popleft()
            count = 0
            try:
                count = self._received(sock.recv_into(chunk))
            finally:
                if count < len(chunk):
                    self._copied.appendleft(chunk[count:])

    def _receive_header(self, sock: socket.socket) -> None:
        received = sock.recv(self._header_bytes - len(self._header))
        if not received:
            raise EOFError
        self._header += received
        if len(self._header) == self._header_bytes:
            self._check(bytes(self._header))

    def _receive_and_add(self, sock: socket.socket) -> None:
        target, filled, scratch = self._added[0], self._filled, self._scratch
        count = self._received(sock.recv_into(scratch[filled : min(SEGMENT_BYTES, target.nbytes)]))
        numbers, self._filled = divmod(filled + count, target.itemsize)
        whole = filled + count - self._filled
        np.add(np.frombuffer(scratch, target.dtype, numbers), target[:numbers], out=target[:numbers])
        scratch[: self._filled] = scratch[whole : whole + self._filled]
        if numbers == len(target):
            self._added.popleft()
        else:
            self._added[0] = target[numbers:]

    def _received(self, count: int) -> int:
        if not count:
            raise EOFError
        self._remaining -= count
        return count


class RingBroken(Exception):
    """A sum over all workers fails, and so will all after it. peer: the neighbour that is the reason."""

    def __init__(self, peer: int, what: str) -> None:
        super().__init__(peer, what)
        self.peer = peer
        self.what = what

    def __str__(self) -> str:
        return f"worker {self.peer} {self.what}"


class RingEntrance:
    """Keep the connection of the left neighbour, one for each ring, until it is asked for."""

    def __init__(self) -> None:
        self._places = set(RINGS)
        self._entered: dict[int, SimpleQueue[socket.socket]] = {number: SimpleQueue() for number in RINGS}

    def has_place(self, number: int) -> bool:
        return number in self._places

    def enter(self, number: int, sock: socket.socket) -> None:
        """Take in the connection for a ring that still has a place. One thread calls this."""
        self._places.remove(number)
        self._entered[number].put(sock)

    def wait(self, number: int, timeout_s: float) -> socket.socket | None:
        """Return the connection; None if it is not made within timeout_s, counted in slices (frame_socket.py)."""
        for _ in range(SLICES_PER_WAIT):
            with contextlib.suppress(Empty):
                return self._entered[number].get(timeout=timeout_s / SLICES_PER_WAIT)
        return None

    def close(self) -> None:
        """Close the connections that have not been taken."""
        for entered in self._entered.values():
            with contextlib.suppress(Empty):
                entered.get_nowait().close()


class SumRing:
    """A worker's place in a ring of p >= 2 workers. Serves one thread at a time."""

    def __init__(self, rank: int, nodes: int, left: socket.socket, right: socket.socket, timeout_s: float) -> None:
        """left, right: sockets connected to the neighbours; `close` closes them. timeout_s: maximum time without a
        moved byte in an operation."""
        self._rank = rank
        self._nodes = nodes
        self._left = (rank - 1) % nodes
        self._right = (rank + 1) % nodes
        self._from_left = left
        self._to_right = right
        self._timeout_s = timeout_s
        self._batch = 1  # of the last wait
        self._scratch = memoryview(bytearray(SEGMENT_BYTES))
        self._operations = 0
        self._broken: RingBroken | None = None
        for sock in (left, right):
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def all_reduce(self, v: Tensor) -> None:
        """Replace v [n], contiguous float32 or float64 on the CPU, by its sum over all workers.

        All workers must make the same calls in the same order. Raises RingBroken when a neighbour has gone, or was
        silent for timeout_s, or makes another call; then v is undefined, and the others fail too."""
        if v.ndim != 1 or v.dtype not in SUMMED or v.device.type != "cpu" or not v.is_contiguous():
            raise ValueError(
                "v must be a contiguous vector of float32 or float64 on the CPU, "
                f"got {v.dtype} on {v.device} of shape {tuple(v.shape)}, strides {v.stride()}"
            )
        if self._broken is not None:
            raise self._broken
        try:
            self._move(*self._streams(v))
        except RingBroken as error:
            self._broken = error
            self.shutdown()  # the neighbours need not wait any longer
            raise
        self._operations += 1

    def _streams(self, v: Tensor) -> tuple[OutgoingChunks, IncomingChunks]:
        p, memory, numbers, item = self._nodes, as_bytes(v), v.detach().numpy(), v.itemsize
        ranges = list(pairwise(len(v) * k // p for k in range(p + 1)))
        order = [ranges[(self._rank - j) % p] for j in range(2 * p - 1)]  # from the right end to the left
        chunks = [memory[begin * item : end * item] for begin, end in order]
        header = RING_HEADER.pack(RING_MAGIC, DTYPE_CODES[v.dtype], self._operations, len(v))
        return OutgoingChunks(header, chunks[:-1]), IncomingChunks(
            len(header),
            partial(self._check_header, header),
            [numbers[begin:end] for begin, end in order[1:p]],
            chunks[p:],
            self._scratch,
        )

    def _check_header(self, sent: bytes, received: bytes) -> None:
        """Raise RingBroken unless the left neighbour makes the same call."""
        if received == sent:
            return
        if not received.startswith(RING_MAGIC):
            raise RingBroken(self._left, "sent what is no all-reduce")
        calls = []
        for header in (received, sent):
            _, code, number, length = RING_HEADER.unpack(header)
            dtype = next((str(known) for known, its in DTYPE_CODES.items() if its == code), "no dtype")
            calls.append(f"all-reduce {number} of {length} numbers of {dtype}")
        raise RingBroken(self._left, f"makes another call: {calls[0]}, expected {calls[1]}")

    def _move(self, outgoing: OutgoingChunks, incoming: IncomingChunks) -> None:
        """Send and receive both streams to their ends."""
        waited_s, queued, passed_on = 0.0, 0, 0
        # The own header is sent first, then incoming bytes are read first: so both see that their calls differ.
        self._tried(self._right, lambda: outgoing.send(self._to_right))
        while outgoing.missing or incoming.missing:
            moved = incoming.missing > 0 and self._tried(self._left, lambda: incoming.receive(self._from_left))
            outgoing.ready += incoming.passed_on - passed_on
            passed_on = incoming.passed_on
            if outgoing.ready and self._tried(self._right, lambda: outgoing.send(self._to_right)):
                moved = True
            if moved:
                waited_s = 0.0
                continue
            if waited_s >= self._timeout_s:
                peer, did = (self._left, "sent") if incoming.missing else (self._right, "took")
                raise RingBroken(peer, f"{did} no byte for {self._timeout_s:g} s")
            if not self._wait(outgoing, incoming):
                before, queued = queued, unacknowledged(self._to_right)
                waited_s = 0.0 if queued < before else waited_s + self._timeout_s / SLICES_PER_WAIT

    def _tried(self, peer: int, move: Callable[[], None]) -> bool:
        """Return whether bytes could be moved at once. Raises RingBroken at the end of the peer's connection."""
        try:
            move()
        except BlockingIOError:
            return False
        except (EOFError, ConnectionError) as error:
            raise RingBroken(peer, CLOSED) from error
        except OSError as error:
            raise RingBroken(peer, f"cannot be reached: {(error.strerror or str(error)).lower()}") from error
        return True

    def _wait(self, outgoing: OutgoingChunks, incoming: IncomingChunks) -> bool:
        """Wait until bytes can be moved, at most for a slice. Returns whether they can."""
        poll = select.poll()
        if incoming.missing:
            batch = incoming.batch(BATCH_BYTES, 2 * (self._nodes - 1))
            if batch != self._batch:
                self._from_left.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, batch)
                self._batch = batch
            poll.register(self._from_left, select.POLLIN)
        if outgoing.missing:  # a neighbour that has everything may go
            poll.register(self._to_right, select.POLLRDHUP | (select.POLLOUT if outgoing.ready else 0))
        ready = dict(poll.poll(self._timeout_s / SLICES_PER_WAIT * 1e3))
        if ready.get(self._to_right.fileno(), 0) & ENDED and self._from_left.fileno() not in ready:
            raise RingBroken(self._right, CLOSED)
        return bool(ready)

    def shutdown(self) -> None:
        """End both connections, which wakes the thread that waits here. Any thread may call."""
        for sock in (self._from_left, self._to_right):
            with contextlib.suppress(OSError):  # the neighbour was faster
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give the sockets back, after the present operation."""
        self.shutdown()
        self._from_left.close()
        self._to_right.close()


def join_ring(node: LocalNode, io: IoThread, number: int, right: tuple[str, int], entrance: RingEntrance) -> SumRing:
    """Connect to the right neighbour, at address `right`, and wait for the left one, each up to the node's timeout_s.
    Raises RingBroken."""
    settings, rank, timeout_s = node.settings, node.rank, node.timeout_s
    nodes = settings.nodes
    if nodes < 2:
        raise ValueError(f"a ring needs at least 2 nodes, got {nodes}")
    peer = (rank + 1) % nodes
    try:
        sock = io.run(_enter(node, settings.encode_hello(rank, peer, number), right))
    except (OSError, PeerSilent) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise RingBroken(peer, f"cannot be reached: {reason}") from error
    left = entrance.wait(number, timeout_s)
    if left is None:
        sock.close()
        raise RingBroken((rank - 1) % nodes, f"has not connected for {timeout_s:g} s")
    return SumRing(rank, nodes, left, sock, timeout_s)


async def _enter(node: LocalNode, hello: bytes, right: tuple[str, int]) -> socket.socket:
    link, where = unconnected(right, node.slice_s)
    try:
        await link.connect(where, node.timeout_s)
        await handshake(link, hello, node.timeout_s)
    except BaseException:
        link.close()
        raise
    return link.detach()
