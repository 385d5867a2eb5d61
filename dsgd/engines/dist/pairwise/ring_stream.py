"""The bytes of one all-reduce as a worker of a ring sends and receives them: a header, then chunks of the vector."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

SEGMENT_BYTES = 256 << 10  # that are received and added at a time, so that they are still in the cache
MAX_ITEM_BYTES = 8


class OutgoingChunks:
    """The stream to the right neighbour. ready: bytes that may be sent by now. missing: bytes that have not been
    sent."""

    def __init__(self, header: bytes, chunks: Sequence[memoryview]) -> None:
        """Make the header and the first chunk ready; what comes in adds to `ready`."""
        self._parts = deque([memoryview(header), *filter(len, chunks)])
        self.ready = len(header) + len(chunks[0])
        self.missing = sum(map(len, self._parts))

    def send(self, sock: socket.socket) -> None:
        """Send what is ready. Raises BlockingIOError where the kernel takes nothing."""
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
    """The stream from the left neighbour: a header, chunks to add to one's own, then sums to copy.

    missing: bytes that have not come. passed_on: bytes that have come and are for the right neighbour, too."""

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
        """Return how many bytes are worth waiting for, at most `limit`. chunks: in the stream.

        A mean chunk, less what is kept of an incomplete number, is on its way between two neighbours, in the mean over
        the ring. If all waited for more, they would wait for each other; so all wait for half of that."""
        if len(self._header) < self._header_bytes:
            return 1
        return max(1, min(limit, self._remaining, self._payload // chunks // 2 - MAX_ITEM_BYTES))

    def receive(self, sock: socket.socket) -> None:
        """Receive what has come of the header or of the next chunk. Raises BlockingIOError where nothing has, EOFError
        at the end of the connection."""
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
