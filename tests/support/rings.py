"""Rings for the tests: workers in threads of one process, or in a process of their own."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from dsgd.engines.dist.pairwise.ring import RingBroken, SumRing
from tests.support.planes import HOST, LIMIT_S

T = TypeVar("T")


def socketpairs(nodes: int) -> list[tuple[socket.socket, socket.socket]]:
    """For each worker its connections from the left and to the right, over TCP."""
    lefts, rights = [], []
    with socket.create_server((HOST, 0)) as listening:
        for _ in range(nodes):
            rights.append(socket.create_connection(listening.getsockname()))
            lefts.append(listening.accept()[0])
    return [(lefts[rank - 1], rights[rank]) for rank in range(nodes)]


@contextlib.contextmanager
def rings(nodes: int, timeout_s: float = LIMIT_S) -> Iterator[list[SumRing]]:
    made = [SumRing(rank, nodes, left, right, timeout_s) for rank, (left, right) in enumerate(socketpairs(nodes))]
    try:
        yield made
    finally:
        for each in made:
            each.close()


def at_once(calls: Sequence[Callable[[], T]]) -> list[Future[T]]:
    """Make each call in a thread of its own, and wait for all."""
    with ThreadPoolExecutor(len(calls)) as threads:
        return [threads.submit(call) for call in calls]


def reduce_all(of: Sequence[SumRing], vectors: Sequence[Tensor]) -> None:
    for done in at_once([partial(r.all_reduce, v) for r, v in zip(of, vectors, strict=True)]):
        done.result()


def broken(future: Future[None]) -> RingBroken:
    error = future.exception(LIMIT_S)
    assert isinstance(error, RingBroken), error
    return error


def vectors_of(nodes: int, length: int, dtype: torch.dtype, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(length, dtype=dtype, generator=generator) for _ in range(nodes)]


def in_order(vectors: Sequence[Tensor]) -> np.ndarray:
    """The sum as the ring makes it: chunk k by workers k, k + 1, ... in turn."""
    arrays = [v.numpy() for v in vectors]
    p, total = len(arrays), arrays[0].copy()
    for k in range(p):
        part = slice(len(total) * k // p, len(total) * (k + 1) // p)
        total[part] = arrays[k][part]
        for after in range(1, p):
            total[part] += arrays[(k + after) % p][part]
    return total


def child(of: Callable[[], None]) -> int:
    """Fork a process that does this, and has no other end."""
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            of()
        os._exit(0)
    return pid
