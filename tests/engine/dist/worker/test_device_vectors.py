"""Messages of vectors on a device: those of the plane, with copies between, which are made on a CPU as well."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest
import torch
from torch import Tensor

from dsgd.engines.dist.pairwise.channel import Unreachable
from dsgd.engines.dist.pairwise.plane import Plane
from dsgd.engines.dist.worker.device_vectors import DeviceVectors
from tests.support.planes import HOST, plane

CPU = torch.device("cpu")
LIMIT_S = 60.0


@pytest.fixture
def pair() -> Iterator[tuple[list[Plane], list[DeviceVectors]]]:
    with ExitStack() as stack:
        yield connected(stack, 2)


def connected(stack: ExitStack, count: int) -> tuple[list[Plane], list[DeviceVectors]]:
    planes = [stack.enter_context(plane(rank, count)) for rank in range(count)]
    for own in planes:
        own.connect([(HOST, other.port) for other in planes])
    return planes, [stack.enter_context(closing(DeviceVectors(own, CPU))) for own in planes]


def vector(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def test_what_is_published_is_a_copy_of_that_moment(pair: tuple[list[Plane], list[DeviceVectors]]) -> None:
    _, (a, b) = pair
    x = vector(1.0, 2.0)
    for steps in range(50):
        a.publish(x, steps)
        x += 1
    a.publish(x, 50)
    x.zero_()
    while (pulled := b.pull(0).result(LIMIT_S)).steps < 50:
        assert pulled.vector.tolist() == [1.0 + pulled.steps, 2.0 + pulled.steps]
    assert pulled.vector.tolist() == [51.0, 52.0]


def test_a_publication_that_fails_is_an_error_of_the_next(pair: tuple[list[Plane], list[DeviceVectors]]) -> None:
    _, (a, _) = pair
    a.publish(torch.zeros(99, dtype=torch.float64), 0)
    with pytest.raises(ValueError, match="at most 32 numbers"):
        a.publish(vector(1.0), 1)


def test_a_pushed_vector_arrives_with_its_sender_and_its_steps(pair: tuple[list[Plane], list[DeviceVectors]]) -> None:
    _, (a, b) = pair
    assert a.push(1, vector(3.0), 7).result(LIMIT_S)
    ((received, sender, steps),) = b.inbox()
    assert (received.tolist(), sender, steps) == ([3.0], 0, 7)


def test_exchanges_that_overlap_belong_together_in_the_order_of_the_calls(
    pair: tuple[list[Plane], list[DeviceVectors]],
) -> None:
    """Also with somebody whose vectors are on the host."""
    (_, plain), (a, _) = pair
    ours = [a.exchange({1: vector(float(n))}, n, [1]) for n in range(20)]
    theirs = [plain.exchange({0: vector(float(-n))}, n, [0]) for n in range(20)]
    assert [future.result(LIMIT_S)[1].tolist() for future in ours] == [[-n] for n in range(20)]
    assert [future.result(LIMIT_S)[0].tolist() for future in theirs] == [[n] for n in range(20)]


def test_each_target_of_an_exchange_gets_its_own_vector() -> None:
    with ExitStack() as stack:
        _, (a, b, c) = connected(stack, 3)
        same = vector(7.0)
        sent = [a.exchange({1: vector(1.0), 2: vector(2.0)}, 0, []), a.exchange({1: same, 2: same}, 1, [])]
        received = [[own.exchange({}, step, [0]).result(LIMIT_S)[0].tolist() for step in range(2)] for own in (b, c)]
        assert received == [[[1.0], [7.0]], [[2.0], [7.0]]]
        assert [future.result(LIMIT_S) for future in sent] == [{}, {}]


def test_an_answer_and_what_was_asked_with_are_vectors_of_the_devices(
    pair: tuple[list[Plane], list[DeviceVectors]],
) -> None:
    _, (a, b) = pair
    a.answer_with(lambda v, limit_s: None if v.tolist() == [0.0] else (v + 1, 7))
    answered = b.ask(0, vector(3.0), 5).result(LIMIT_S)
    assert (answered.vector.tolist(), answered.steps) == ([4.0], 7)
    with pytest.raises(Unreachable):
        b.ask(0, vector(0.0), 5).result(LIMIT_S)


@pytest.mark.parametrize(("part", "gives"), [(None, True), (vector(2.0, 3.0), False)])
def test_a_call_takes_and_gives_a_vector_or_none(
    part: Tensor | None, gives: bool, pair: tuple[list[Plane], list[DeviceVectors]]
) -> None:
    (_, server), (a, _) = pair
    seen: list[object] = []

    def answer(rank: int, name: str, given: Tensor | None, scalars: tuple[float, ...]) -> tuple[Tensor | None, int]:
        seen.append((rank, name, None if given is None else given.tolist(), scalars))
        return vector(5.0) if gives else None, 4

    server.serve(answer)
    found, staleness = a.call(1, "move", part, (0.5,)).result(LIMIT_S)
    assert seen == [(0, "move", None if part is None else [2.0, 3.0], (0.5,))]
    assert (None if found is None else found.tolist(), staleness) == ([5.0] if gives else None, 4)


def test_a_lost_peer_is_the_error_of_every_message(pair: tuple[list[Plane], list[DeviceVectors]]) -> None:
    (_, other), (a, _) = pair
    other.close()
    x = vector(1.0)
    calls = [a.call(1, "move", x, ()), a.call(1, "read", None, ())]
    for future in [a.pull(1), a.push(1, x, 0), a.ask(1, x, 0), a.exchange({1: x}, 0, [1]), *calls]:
        with pytest.raises(Unreachable):
            future.result(LIMIT_S)
