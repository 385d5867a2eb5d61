"""Sums of vectors over all workers, and the thread that averages vectors with them.

Workers with their own accelerators form a process group of its backend, on CUDA NCCL. Others form a ring of the plane's
connections (pairwise/ring.py), through the host's memory if they share a device. With `engine.collectives=torch` they
form a process group of UCC, if torch was built with it, or of gloo. Each serves one thread: operations of two threads
would mix silently. So there are two: one for the compute thread's gradients, and one for the vectors of `Averaging`.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import Store

from dsgd.engines.dist.pairwise.plane import Plane
from dsgd.engines.dist.pairwise.ring import RingBroken, SumRing
from dsgd.engines.dist.pairwise.wire import RINGS
from dsgd.engines.dist.worker.device_vectors import DeviceThread

SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface


class CannotGoOn(ConnectionError):
    """Raised when something that the algorithm needs will not arrive: a peer is dead, or was silent for longer than the
    time limit. peer: the node it was expected from, if known."""

    def __init__(self, text: str, peer: int | None = None) -> None:
        super().__init__(text)
        self.peer = peer


class Summation(Protocol):
    """Sums vectors over all workers, which must make the same calls in the same order. Serves one thread."""

    def sum(self, v: Tensor, what: str) -> None:
        """Replace v [n] by its sum over all workers, bitwise equal in all of them. Raises CannotGoOn, one line that
        names the operation by `what`."""
        ...

    def begin(self, v: Tensor, what: str) -> Callable[[], None]:
        """Begin the sum, after earlier ones. Returns a function that waits for the end; either may raise."""
        ...

    def close(self) -> None:
        """Release connections and threads, after the operations in progress."""
        ...


@dataclass(frozen=True)
class Groups:
    """The summations of a worker. With one worker there are none, and a mean is its input.

    gradients: summation of the compute thread. vectors: summation of the thread of `Averaging`."""

    rank: int
    nodes: int
    gradients: Summation | None = None
    vectors: Summation | None = None

    def close(self) -> None:
        for group in (self.gradients, self.vectors):
            if group is not None:
                group.close()


class RingSummation:
    """Implements `Summation` by a ring, for vectors on `device`."""

    def __init__(self, rank: int, ring: SumRing, device: torch.device) -> None:
        self._rank = rank
        self._ring = ring
        self._thread = DeviceThread(device, "ring")

    def sum(self, v: Tensor, what: str) -> None:
        at_host = v.to("cpu")
        with _ring_errors(self._rank, what):
            self._ring.all_reduce(at_host)
        if at_host is not v:
            v.copy_(at_host)

    def begin(self, v: Tensor, what: str) -> Callable[[], None]:
        return self._thread.submit(self.sum, v, what).result

    def close(self) -> None:
        self._ring.shutdown()
        self._thread.close()
        self._ring.close()


class GroupSummation:
    """Implements `Summation` by a process group of torch."""

    def __init__(self, rank: int, group: dist.ProcessGroup) -> None:
        self._rank = rank
        self._group = group

    def sum(self, v: Tensor, what: str) -> None:
        self.begin(v, what)()

    def begin(self, v: Tensor, what: str) -> Callable[[], None]:
        with _torch_errors(self._rank, what):
            work = dist.all_reduce(v, group=self._group, async_op=True)
        assert work is not None  # None is for processes outside the group

        def wait() -> None:
            with _torch_errors(self._rank, what):
                work.wait()

        return wait

    def close(self) -> None:
        if dist.is_initialized():  # else the other summation has closed all groups
            with suppress(RuntimeError):  # a dead peer cannot take part
                dist.destroy_process_group()


def join_rings(plane: Plane, rank: int, nodes: int, right: tuple[str, int], device: torch.device) -> Groups:
    """Join the rings of all workers; waits for both neighbours, up to the plane's timeout_s. right: address of the next
    rank's plane. device: device of the vectors. Raises CannotGoOn."""
    if nodes == 1:
        return Groups(rank, nodes)
    with _ring_errors(rank, f"meeting {nodes} workers"):
        gradients, vectors = (RingSummation(rank, plane.ring(number, right), device) for number in RINGS)
    return Groups(rank, nodes, gradients, vectors)


def join_groups(store: Store, rank: int, nodes: int, timeout_s: float, address: str, device: torch.device) -> Groups:
    """Form process groups of all workers, and use them once, which connects them; waits for all, up to timeout_s.

    store: new for every start of all workers. address: IPv4 address of the interface that carries the traffic, unless
    NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME names another one. device: device of this worker's vectors. Raises
    CannotGoOn; ValueError if no interface has the address."""
    if nodes == 1:
        return Groups(rank, nodes)
    backend = group_backend(device)
    if backend == "nccl" and not os.environ.get("NCCL_SOCKET_IFNAME"):
        os.environ["NCCL_SOCKET_IFNAME"] = f"={interface_of(address)}"  # without the sign every name that begins so
    if backend == "gloo" and not os.environ.get("GLOO_SOCKET_IFNAME"):
        os.environ["GLOO_SOCKET_IFNAME"] = interface_of(address)
    os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"  # after the time limit wait() raises, not the process
    limit = timedelta(seconds=timeout_s)
    try:
        with _torch_errors(rank, f"meeting {nodes} workers"):
            dist.init_process_group(backend, store=store, rank=rank, world_size=nodes, timeout=limit)
            vectors = dist.new_group(backend=backend, timeout=limit)
        assert isinstance(vectors, dist.ProcessGroup)  # a number stands for processes outside the group
        assert dist.group.WORLD is not None
        summations = [GroupSummation(rank, group) for group in (dist.group.WORLD, vectors)]
        for summation in summations:
            summation.sum(torch.zeros(1, device=device), "the first all-reduce")
    except CannotGoOn:
        if dist.is_initialized():
            with suppress(RuntimeError):  # a dead peer cannot take part, and no data would be lost
                dist.destroy_process_group()
        raise
    return Groups(rank, nodes, *summations)


def group_backend(device: torch.device) -> str:
    """Return the backend of process groups for vectors on this device: on CPUs UCC, if torch was built with it, or
    gloo; the accelerator's own, on CUDA NCCL."""
    if device.type == "cpu":
        return "ucc" if dist.is_ucc_available() else "gloo"
    return dist.get_default_backend_for_device(device)


@contextmanager
def _ring_errors(rank: int, what: str) -> Iterator[None]:
    """Turn a ring's errors into CannotGoOn, one line that names the worker and the operation."""
    try:
        yield
    except RingBroken as error:
        raise CannotGoOn(f"worker {rank}: {what} failed: {error}", error.peer) from error


@contextmanager
def _torch_errors(rank: int, what: str) -> Iterator[None]:
    """Turn torch's errors into CannotGoOn, one line that names the worker and the operation."""
    try:
        yield
    except RuntimeError as error:
        raise CannotGoOn(f"worker {rank}: {what} failed: {in_one_line(str(error))}") from error


def in_one_line(text: str) -> str:
    """Return the first line of an error of torch.distributed, and the last, in which NCCL names the cause."""
    first, *others = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    first = re.sub(r"^\[[^\]]*\] ", "", first).partition(". This is typically")[0]  # source file; guesses at causes
    return f"{first}: {others[-1]}" if others else first


def interface_of(address: str) -> str:
    """Return the name of the network interface with this IPv4 address. Raises ValueError without such an interface."""
    interfaces = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as query:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(query.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:  # an interface without an IPv4 address
                continue
            interfaces[socket.inet_ntoa(answer[20:24])] = name
    if address not in interfaces:
        have = ", ".join(f"{name} {at}" for at, name in interfaces.items())
        raise ValueError(f"address must be the IPv4 address of an interface here ({have}), got {address}")
    return interfaces[address]


class Averaging:
    """Averages vectors on `device` over all workers, during gradients. All workers must make the same calls in the same
    order."""

    def __init__(self, groups: Groups, device: torch.device) -> None:
        self._groups = groups
        self._thread = DeviceThread(device, "averaging")

    def all_reduce_mean(self, v: Tensor, count: int | None = None) -> Future[Tensor]:
        """Average v [d], float32 or float64, over all workers; bitwise equal in all of them. v must not change until
        the future is done. count: number of workers that give a vector, if the others give zeros; None: all do. The
        future may raise CannotGoOn."""
        return self._thread.submit(self._mean, v, count)

    def close(self) -> None:
        """End the thread. Waiting calls are cancelled; a running call is waited for, up to the time limit."""
        self._thread.close()

    def _mean(self, v: Tensor, count: int | None) -> Tensor:
        groups = self._groups
        if groups.vectors is None:
            return v
        total = v.clone()
        groups.vectors.sum(total, f"all-reduce of {v.numel()} numbers")
        return total.div_(groups.nodes if count is None else count)


def finish_work(device: torch.device) -> None:
    """Wait for this thread's work on the device, so that other threads and the CPU may use the results."""
    if device.type != "cpu":
        torch.accelerator.current_stream(device).synchronize()
