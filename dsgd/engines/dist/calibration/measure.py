"""Measure the parameters of the cluster model: the times of gradients, and the latency and bandwidth of links."""

from __future__ import annotations

import math
import socket
import statistics
import struct
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass

LINK_SILENCE_S = 30.0  # without a byte from the other end
CHUNK_BYTES = 2**16  # handed to the socket at once
TRANSFER_ROUNDS = 3
RATE_ATTEMPTS = 6  # each with twice the time of the one before

_ASK = struct.Struct("<Bq")  # operation, bytes; little endian
_PING, _TO, _FROM, _BOTH, _END = range(5)
_RESULT = struct.Struct("<ddd")


@dataclass(frozen=True)
class Jitter:
    """The distribution of a worker's gradient times, in the terms of the cluster model."""

    mean_s: float  # of all times
    cv: float  # standard deviation over the mean, without the pauses
    distribution: str  # gamma | lognormal
    samples: int
    pauses: int  # outliers among the times


@dataclass(frozen=True)
class MeasuredLink:
    """The latency and the payload rates of a TCP stream between two processes."""

    latency_s: float  # of a small message, one way
    bytes_per_s: float  # in one direction while the other is idle; the lower of the two
    duplex_bytes_per_s: float  # in each direction while both are busy; the lower of the two


def fit_jitter(times: Sequence[float]) -> Jitter:
    """Fit the jitter of gradient times [s]: mean, coefficient of variation, and the likelier distribution.

    The mean is over all times, because it is the cost of a step in the long run. The coefficient of variation excludes
    pauses: times more than 6 robust standard deviations above the median, on a log scale. With more than one pause in
    20 times, all times count.

    Raises ValueError without times or if one is not positive."""
    if not times or not all(math.isfinite(t) and t > 0 for t in times):
        raise ValueError(f"gradient times must be positive numbers and at least one, got {list(times)[:5]}")
    mean = statistics.fmean(times)
    logs = [math.log(t) for t in times]
    middle = statistics.median(logs)
    spread = 1.4826 * statistics.median(abs(log - middle) for log in logs)  # of a normal: its standard deviation
    kept = [t for t, log in zip(times, logs, strict=True) if spread == 0 or log <= middle + 6 * spread]
    if 20 * (len(times) - len(kept)) > len(times):
        kept = list(times)
    kept_mean = statistics.fmean(kept)
    cv = statistics.stdev(kept) / kept_mean if len(kept) > 1 else 0.0
    factors = [t / kept_mean for t in kept]
    lognormal = cv > 1e-6 and _lognormal(factors, cv) > _gamma(factors, cv)
    return Jitter(mean, cv, "lognormal" if lognormal else "gamma", len(times), len(times) - len(kept))


def _gamma(factors: Sequence[float], cv: float) -> float:
    """Return the log-likelihood of numbers with mean 1 under the gamma distribution of this cv."""
    shape = cv**-2
    constant = shape * math.log(shape) - math.lgamma(shape)
    return sum(constant + (shape - 1) * math.log(x) - shape * x for x in factors)


def _lognormal(factors: Sequence[float], cv: float) -> float:
    """Return the log-likelihood of numbers with mean 1 under the lognormal distribution of this cv."""
    variance = math.log1p(cv**2)
    constant = -math.log(2 * math.pi * variance) / 2
    return sum(constant - math.log(x) - (math.log(x) + variance / 2) ** 2 / (2 * variance) for x in factors)


def measure_link(sock: socket.socket, initiator: bool, seconds: float = 1.5) -> MeasuredLink:
    """Measure a connected TCP socket. Both ends must call it, one as the initiator; both return the same.

    Latency: half the median round trip of one byte, with the time that either end needs to wake up.
    Bandwidth: the slope of time against size between a large transfer, of about `seconds`, and a quarter of it, medians
    of three each. So latency, slow start and the burst that a shaper allows cancel out. All takes about 12 * `seconds`;
    more if a busy machine makes the smaller transfer the slower one, which is tried again with twice the time.

    Raises ConnectionError or TimeoutError if the other end closes or is silent for 30 s, RuntimeError in the initiator
    if no time was enough. Leaves the socket open, with a timeout of 30 s."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.settimeout(LINK_SILENCE_S)
    with ThreadPoolExecutor(1, "measure-link") as sender:  # sends while this thread receives
        return _ask(sock, sender, seconds) if initiator else _answer(sock, sender)


def _ask(sock: socket.socket, sender: ThreadPoolExecutor, seconds: float) -> MeasuredLink:
    def timed(kind: int, size: int) -> float:
        """Return the seconds until the other end confirms that it has received or sent `size` bytes, or both."""
        begin = time.perf_counter()
        sock.sendall(_ASK.pack(kind, size))
        sending = sender.submit(_send, sock, size) if kind in (_TO, _BOTH) else None
        _receive(sock, (size if kind in (_FROM, _BOTH) else 0) + 1)
        took = time.perf_counter() - begin
        if sending is not None:
            sending.result()
        return took

    def rate(kind: int, seconds: float = seconds, attempts: int = RATE_ATTEMPTS) -> float:
        size = CHUNK_BYTES
        while (took := timed(kind, size)) < seconds / 10:
            size *= 2
        large = max(4, int(size / took * seconds))
        small = large // 4
        longer, shorter = (statistics.median(timed(kind, n) for _ in range(TRANSFER_ROUNDS)) for n in (large, small))
        if longer > shorter:
            return (large - small) / (longer - shorter)
        if attempts > 1:
            return rate(kind, 2 * seconds, attempts - 1)
        raise RuntimeError(
            f"link: {large} bytes took {longer:.2g} s and {small} {shorter:.2g} s, {RATE_ATTEMPTS} times likewise; "
            "give it more time"
        )

    trips: list[float] = []
    deadline = time.perf_counter() + max(seconds, 0.1)
    while len(trips) < 10 or (len(trips) < 500 and time.perf_counter() < deadline):
        trips.append(timed(_PING, 0))
    link = MeasuredLink(statistics.median(trips) / 2, min(rate(_TO), rate(_FROM)), rate(_BOTH))
    sock.sendall(_ASK.pack(_END, 0) + _RESULT.pack(*astuple(link)))
    return link


def _answer(sock: socket.socket, sender: ThreadPoolExecutor) -> MeasuredLink:
    while True:
        kind, size = _ASK.unpack(_receive(sock, _ASK.size))
        if kind == _END:
            return MeasuredLink(*_RESULT.unpack(_receive(sock, _RESULT.size)))
        if kind not in (_PING, _TO, _FROM, _BOTH) or size < 0:
            raise ConnectionError(f"link: the other end asks for {kind} of {size} bytes, which is no measurement")
        sending = sender.submit(_send, sock, size) if kind in (_FROM, _BOTH) else None
        _receive(sock, size if kind in (_TO, _BOTH) else 0)
        if sending is not None:
            sending.result()
        sock.sendall(b".")


def _send(sock: socket.socket, size: int) -> None:
    chunk = memoryview(bytes(CHUNK_BYTES))
    for begin in range(0, size, CHUNK_BYTES):
        sock.sendall(chunk[: min(CHUNK_BYTES, size - begin)])


def _receive(sock: socket.socket, size: int) -> bytes:
    """Receive `size` bytes; returns the last 64 KiB or fewer of them."""
    buffer = bytearray(CHUNK_BYTES)
    filled = 0
    while size:
        filled = 0
        want = size % CHUNK_BYTES or CHUNK_BYTES  # the odd part first, then whole chunks
        while filled < want:
            got = sock.recv_into(memoryview(buffer)[filled:want])
            if not got:
                raise ConnectionError("link: the other end closed the connection before the measurement was over")
            filled += got
        size -= want
    return bytes(buffer[:filled])
