"""Forward the packets of a network's links after a delay, as long cables would.

`tests/support/network.py` starts it on its bridge:

    python -I delay_line.py finish INTERFACE           # the host's end of a link: to be done first
    python -I delay_line.py SECONDS INTERFACE ...      # the other ends, which are not ports of a bridge

Linux has netem for this, but not every kernel has netem.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import socket
import struct
import sys
import time
from collections import deque

ALL_PROTOCOLS = 3
SOL_PACKET, PACKET_IGNORE_OUTGOING = 263, 23
SO_RCVBUFFORCE, SO_SNDBUFFORCE = 33, 32
BUFFER_BYTES = 64 << 20  # what a link at 10 Gbit/s holds in 50 ms
FRAME_BYTES = 1 << 16
SIOCETHTOOL, ETHTOOL_STXCSUM = 0x8946, 0x17


def finish_checksums(interface: str) -> None:
    """Have packets' checksums computed before they leave this interface, and none larger than its MTU."""
    value = (ctypes.c_uint32 * 2)(ETHTOOL_STXCSUM, 0)
    request = struct.pack("16sP16x", interface.encode(), ctypes.addressof(value))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCETHTOOL, request)


def forward(delay_s: float, interfaces: list[str]) -> None:
    """Pass each frame on to the interface of its receiver, delay_s later. Never returns."""
    ports = [_port(name) for name in interfaces]
    ways: dict[bytes, socket.socket] = {}  # by hardware address, as seen on frames
    under_way: deque[tuple[float, socket.socket, bytes]] = deque()  # the delay is one, so the first is due first
    while True:
        wait_s = None if not under_way else max(0.0, under_way[0][0] - time.monotonic())
        for port in select.select(ports, [], [], wait_s)[0]:
            due_s = time.monotonic() + delay_s
            with contextlib.suppress(OSError):  # nothing more there, or its link went down
                while True:
                    frame = port.recv(FRAME_BYTES)
                    ways[frame[6:12]] = port
                    under_way.append((due_s, port, frame))
        while under_way and under_way[0][0] <= time.monotonic():
            _, source, frame = under_way.popleft()
            there = ways.get(frame[:6])
            for port in [there] if there is not None else [port for port in ports if port is not source]:
                with contextlib.suppress(OSError):  # its link is down, or the shaper's queue is full: it is lost
                    port.send(frame)


def _port(interface: str) -> socket.socket:
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
    port.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
    port.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, BUFFER_BYTES)
    port.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    port.bind((interface, 0))
    port.setblocking(False)
    return port


if __name__ == "__main__":
    if sys.argv[1] == "finish":
        sys.exit(finish_checksums(sys.argv[2]))
    with contextlib.suppress(PermissionError):  # late packets would be a longer cable
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    forward(float(sys.argv[1]), sys.argv[2:])
