"""Process groups of the workers, and the thread that all-reduces vectors.

A process group serves one thread: operations of two threads on one group mix silently. So there is one group for the
gradients that the compute thread reduces, and one for the vectors of `Averaging`.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import Store

SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface


class CollectiveFailed(ConnectionError):
    """Raised when a collective fails: a peer is dead, or was silent for longer than the time limit."""


@dataclass(frozen=True)
class Groups:
    """The process groups of a worker. With one worker there are none, and all-reduce returns its input.

    gradients: for the compute thread. vectors: for the thread of `Averaging`.
    """

    rank: int
    nodes: int
    gradients: dist.ProcessGroup | None = None
    vectors: dist.ProcessGroup | None = None


def join_groups(
    store: Store, rank: int, nodes: int, backend: Literal["gloo", "nccl"], timeout_s: float, address: str
) -> Groups:
    """Form the process groups; waits for all workers, up to timeout_s.

    store: new for every start of all workers (or a new `PrefixStore`). address: IPv4 address of the interface that
    carries the traffic, unless GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME names another one. Raises CollectiveFailed;
    ValueError if no interface has the address.
    """
    if nodes == 1:
        return Groups(rank, nodes)
    variable = f"{backend.upper()}_SOCKET_IFNAME"
    if not os.environ.get(variable):
        os.environ[variable] = interface_of(address)
    if backend == "nccl":
        os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"  # after the time limit wait() raises, not the process
    limit = timedelta(seconds=timeout_s)
    try:
        with collective(rank, f"meeting {nodes} workers"):
            dist.init_process_group(backend, store=store, rank=rank, world_size=nodes, timeout=limit)
            vectors = dist.new_group(backend=backend, timeout=limit)
    except CollectiveFailed:
        if dist.is_initialized():
            with suppress(RuntimeError):  # a dead peer cannot take part; there is nothing left to save
                dist.destroy_process_group()
        raise
    assert isinstance(vectors, dist.ProcessGroup)  # a number stands for processes outside the group
    return Groups(rank, nodes, dist.group.WORLD, vectors)


@contextmanager
def collective(rank: int, what: str) -> Iterator[None]:
    """Turn the backend's errors into CollectiveFailed, one line that names the worker and the operation."""
    try:
        yield
    except RuntimeError as error:
        text = str(error).partition("\n")[0]
        text = re.sub(r"^\[[^\]]*\] ", "", text).partition(". This is typically")[0]  # source file; guesses at causes
        raise CollectiveFailed(f"worker {rank}: {what} failed: {text}") from error


def interface_of(address: str) -> str:
    """Return the name of the network interface with this IPv4 address. Raises ValueError if there is none."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as query:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(query.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:  # an interface without an IPv4 address
                continue
            found[socket.inet_ntoa(answer[20:24])] = name
    if address not in found:
        have = ", ".join(f"{name} {at}" for at, name in found.items())
        raise ValueError(f"address must be the IPv4 address of an interface here ({have}), got {address}")
    return found[address]


class Averaging:
    """Averages vectors over all workers, in a thread of its own. All workers must make the same calls in the same
    order."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="averaging")

    def all_reduce_mean(self, v: Tensor) -> Future[Tensor]:
        """Average v [d], float32 or float64, over all workers; the mean is bitwise equal in all of them. v must not
        change until the future is done. The future may raise CollectiveFailed."""
        return self._thread.submit(self._mean, v)

    def close(self) -> None:
        """End the thread. Calls that have not begun are cancelled; one that has is waited for, up to the time limit."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _mean(self, v: Tensor) -> Tensor:
        groups = self._groups
        if groups.nodes == 1:
            return v
        total = v.clone()
        with collective(groups.rank, f"all-reduce of {v.numel()} numbers"):
            dist.all_reduce(total, group=groups.vectors)
        total.div_(groups.nodes)
        finish(total.device)
        return total


def finish(device: torch.device) -> None:
    """Wait for this thread's work on the device, so that other threads and the CPU may use the results."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
