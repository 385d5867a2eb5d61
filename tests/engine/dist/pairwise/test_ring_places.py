"""Rings through the ports of planes: who gets a place, and what strangers there can do."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Sequence
from functools import partial

import pytest
import torch

from dsgd.engines.dist.pairwise.plane import Plane
from dsgd.engines.dist.pairwise.ring import RingBroken, SumRing
from dsgd.engines.dist.pairwise.wire import HelloReply
from tests.support.planes import HOST, LIMIT_S, open_sockets, own_threads, plane, settings_of
from tests.support.rings import at_once, reduce_all


@contextlib.contextmanager
def joined(nodes: int, number: int = 1, timeout_s: float = LIMIT_S) -> Iterator[tuple[list[Plane], list[SumRing]]]:
    with contextlib.ExitStack() as stack:
        of = [stack.enter_context(plane(rank, nodes, timeout_s=timeout_s)) for rank in range(nodes)]
        yield of, [stack.enter_context(contextlib.closing(ring)) for ring in join(of, number)]


def join(of: Sequence[Plane], number: int) -> list[SumRing]:
    rights = [(HOST, of[(rank + 1) % len(of)].port) for rank in range(len(of))]
    found = at_once([partial(each.ring, number, right) for each, right in zip(of, rights, strict=True)])
    return [done.result() for done in found]


def test_two_rings_through_one_port_do_not_mix() -> None:
    nodes = 3
    before = open_sockets()
    with joined(nodes) as (of, first):
        second = join(of, 2)

        def sums(ring: SumRing, value: float) -> None:
            for _ in range(20):
                v = torch.full((50_000,), value)
                ring.all_reduce(v)
                assert bool((v == nodes * value).all())

        calls = [partial(sums, ring, value) for made, value in ((first, 1.0), (second, 2.0)) for ring in made]
        for done in at_once(calls):
            done.result()
        for ring in second:
            ring.close()
    assert own_threads() == []
    assert open_sockets() == before


def test_a_place_in_a_ring_is_given_once_and_to_the_left_neighbour() -> None:
    """Not if it is taken, not to another neighbour, and not in a ring that there is not."""
    with joined(3) as (of, made):
        for rank, number in ((2, 1), (1, 2), (2, 9)):
            with socket.create_connection((HOST, of[0].port), LIMIT_S) as sock:
                sock.sendall(settings_of(3).encode_hello(rank, 0, number))
                assert sock.recv(1) == bytes([HelloReply.NO_PLACE])
                assert sock.recv(1) == b""
        vectors = [torch.ones(10) for _ in made]
        reduce_all(made, vectors)
        assert all(bool((v == 3).all()) for v in vectors)


def test_a_right_neighbour_that_is_not_there_is_named() -> None:
    with plane(0, 3) as own, socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
        free.close()
        with pytest.raises(RingBroken, match=r"^worker 1 cannot be reached: connection refused$") as caught:
            own.ring(1, (HOST, port))
        assert caught.value.peer == 1


def test_a_left_neighbour_that_does_not_come_is_named() -> None:
    with plane(0, 3, timeout_s=0.3) as own, plane(1, 3) as right:
        with pytest.raises(RingBroken, match=r"^worker 2 has not connected for 0\.3 s$") as caught:
            own.ring(1, (HOST, right.port))
        assert caught.value.peer == 2
