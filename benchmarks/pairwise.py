"""How fast a vector moves between two processes of this machine: the pairwise plane beside plain sockets and gloo.

    python benchmarks/pairwise.py [--numbers 11689512] [--rounds 15]

exchange: both send and both receive at once. pull: one way, asked for by the receiver. GB/s is of the payload in one
direction, in medians over rounds that take the ways in turn; the ratio is to the plain sockets of the same run. The
plain sockets receive into one buffer again and again; the others may not, since their receivers keep what they got.
In place: large vectors are read in the memory of the other process (engine.transport=auto).
crc32: what a checksum of the vectors would cost, of the one that is sent and of the one that comes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import statistics
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from dsgd.engines.dist.pairwise.plane import Plane
from dsgd.engines.dist.pairwise.wire import as_bytes

WIDTHS = (10, 16, 10, 8, 8)
HOST, TOKEN = "127.0.0.1", b"a benchmark's key"
PATIENCE_S = 60.0
Ways = dict[tuple[str, str], Callable[[], None]]


def plain_socket_ways(rank: int, x: Tensor, control: socket.socket) -> Ways:
    """sendall and recv_into. The exchange has a thread that sends and, like the plane, a connection for each direction:
    one for both is slower."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        control.sendall(listening.getsockname()[1].to_bytes(2, "big"))
        port = int.from_bytes(control.recv(2, socket.MSG_WAITALL), "big")
        outgoing = socket.create_connection(("127.0.0.1", port))
        incoming, _ = listening.accept()
    for sock in (outgoing, incoming):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sent, received = x.numpy().data.cast("B"), torch.zeros_like(x).numpy().data.cast("B")

    def receive(sock: socket.socket) -> None:
        view = received
        while len(view):
            view = view[sock.recv_into(view) :]

    def exchange() -> None:
        sending = threading.Thread(target=outgoing.sendall, args=(sent,))
        sending.start()
        receive(incoming)
        sending.join()

    def pull() -> None:
        if rank == 0:
            outgoing.sendall(b"?")
            receive(outgoing)
        else:
            incoming.recv(1)
            incoming.sendall(sent)

    return {("exchange", "plain sockets"): exchange, ("pull", "plain sockets"): pull}


def gloo_ways(rank: int, x: Tensor) -> Ways:
    other = 1 - rank

    def exchange() -> None:
        received = torch.empty_like(x)
        for work in [dist.isend(x, other), dist.irecv(received, other)]:
            assert work is not None
            work.wait()

    def pull() -> None:
        if rank == 0:
            dist.recv(torch.empty_like(x), other)
        else:
            dist.send(x, other)

    return {("exchange", "gloo"): exchange, ("pull", "gloo"): pull}


def plane_ways(rank: int, x: Tensor, plane: Plane, control: socket.socket, name: str) -> Ways:
    control.sendall(plane.port.to_bytes(2, "big"))
    port = int.from_bytes(control.recv(2, socket.MSG_WAITALL), "big")
    addresses: list[tuple[str, int] | None] = [None, None]
    addresses[1 - rank] = (HOST, port)
    plane.publish(x, 0)
    plane.connect(addresses)

    def exchange() -> None:
        plane.exchange({1 - rank: x}, 0, [1 - rank]).result(PATIENCE_S)

    def exchange_with_checksum() -> None:
        zlib.crc32(as_bytes(x))
        received = plane.exchange({1 - rank: x}, 0, [1 - rank]).result(PATIENCE_S)
        zlib.crc32(as_bytes(received[1 - rank]))

    def pull() -> None:
        if rank == 0:
            plane.pull(1).result(PATIENCE_S)

    checked: Ways = {} if "in place" in name else {("exchange", "plane + crc32"): exchange_with_checksum}
    return {("exchange", name): exchange, ("pull", name): pull, **checked}


@contextlib.contextmanager
def all_ways(rank: int, x: Tensor, control: socket.socket, store: str) -> Iterator[Ways]:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=timedelta(seconds=PATIENCE_S)
    )
    with (
        Plane(rank, 2, HOST, TOKEN, len(x), x.dtype, PATIENCE_S, PATIENCE_S, print) as plane,
        Plane(rank, 2, HOST, TOKEN, len(x), x.dtype, PATIENCE_S, PATIENCE_S, print, attach=True) as in_place,
    ):
        ways = plain_socket_ways(rank, x, control) | gloo_ways(rank, x)
        ways |= plane_ways(rank, x, plane, control, "plane") | plane_ways(rank, x, in_place, control, "plane, in place")
        yield ways
    dist.destroy_process_group()


def measure(rank: int, numbers: int, rounds: int, control: socket.socket, store: str) -> dict[tuple[str, str], float]:
    """Median seconds of each way, by this rank's clock; the first round warms up and does not count."""
    torch.set_num_threads(1)
    x = torch.ones(numbers)
    with all_ways(rank, x, control, store) as ways:
        seconds: dict[tuple[str, str], list[float]] = {way: [] for way in ways}
        for _ in range(rounds + 1):
            for way, run in ways.items():
                control.sendall(b"!")  # both are ready
                control.recv(1)
                begin = time.perf_counter()
                run()
                seconds[way].append(time.perf_counter() - begin)
        control.sendall(b"!")
        control.recv(1)
    return {way: statistics.median(values[1:]) for way, values in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--numbers", type=int, default=11_689_512, help="float32, the default is ResNet-18's")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        mine, theirs = socket.socketpair()
        child = os.fork()
        if child == 0:
            measure(1, options.numbers, options.rounds, theirs, store)
            os._exit(0)
        theirs.close()
        medians = measure(0, options.numbers, options.rounds, mine, store)
        os.waitpid(child, 0)
    megabytes = options.numbers * 4 / 1e6
    print(f"{megabytes:.1f} MB between two processes on loopback, median of {options.rounds} rounds")
    headings = ("pattern", "way", "ms", "GB/s", "ratio")
    print(" ".join(f"{heading:>{width}}" for heading, width in zip(headings, WIDTHS, strict=True)))
    for (pattern, way), seconds in sorted(medians.items()):
        ratio = medians[pattern, "plain sockets"] / seconds
        cells = (pattern, way, f"{seconds * 1e3:.1f}", f"{megabytes / 1e3 / seconds:.2f}", f"{ratio:.2f}")
        print(" ".join(f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS, strict=True)))


if __name__ == "__main__":
    main()
