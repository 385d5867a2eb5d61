"""What an exchange promises beside its vectors, which `test_plane_fuzz.py` has: an error that names the lost node."""

from __future__ import annotations

from tests.support.planes import HOST, LIMIT_S, constant, failure, plane, planes, until, value


def test_two_large_vectors_pass_each_other() -> None:
    """16 MB each way: far more than both kernels keep, so each must receive while it sends."""
    length = 2 << 20
    with planes(2, length) as (a, b):
        futures = [a.exchange({1: constant(1, length)}, 0, [1]), b.exchange({0: constant(2, length)}, 0, [0])]
        assert value(futures[0].result(LIMIT_S)[1]) == 2
        assert value(futures[1].result(LIMIT_S)[0]) == 1


def test_an_exchange_without_sources_is_answered_at_once() -> None:
    with planes(2) as (a, _):
        assert a.exchange({1: constant(1)}, 0, []).result(0) == {}
        assert a.exchange({}, 0, []).result(0) == {}


def test_a_neighbour_that_ends_after_its_last_exchange_has_sent_its_vector() -> None:
    length = 1 << 20
    with plane(0, 2, length) as a:
        b = plane(1, 2, length)
        a.connect([None, (HOST, b.port)])
        b.connect([(HOST, a.port), None])
        for k in range(3):
            b.exchange({0: constant(k, length)}, k, [])
        b.close()
        futures = [a.exchange({}, k, [1]) for k in range(4)]
        assert [value(future.result(LIMIT_S)[1]) for future in futures[:3]] == [0, 1, 2]
        assert failure(futures[3]).rank == 1


def test_a_source_that_dies_fails_the_exchange_at_once_and_what_came_before_counts() -> None:
    with planes(3) as (a, b, c):
        b.exchange({0: constant(1)}, 0, [])
        c.exchange({0: constant(2)}, 0, [])
        assert set(a.exchange({}, 0, [1, 2]).result(LIMIT_S)) == {1, 2}
        waiting = a.exchange({}, 1, [1, 2])
        c.exchange({0: constant(2)}, 1, [])
        b.close()
        assert failure(waiting).rank == 1
        c.exchange({0: constant(3)}, 2, [])
        # the vector of the failed exchange meets no later one
        assert value(a.exchange({}, 2, [2]).result(LIMIT_S)[2]) == 3


def test_a_source_that_was_never_there_fails_the_exchange_even_when_nothing_is_sent_to_it() -> None:
    with planes(2) as (a, b):
        b.close()
        error = failure(a.exchange({}, 0, [1]))
        assert (error.rank, error.reason) == (1, "connection refused")


def test_a_dead_target_fails_the_exchange_that_waits_for_others() -> None:
    with planes(3) as (a, b, _):
        b.close()
        assert failure(a.exchange({1: constant(1)}, 0, [2])).rank == 1


def test_a_silent_source_is_named_after_the_time_limit() -> None:
    with planes(3, timeout_s=2.0) as (a, b, _):
        b.exchange({0: constant(1)}, 0, [])
        until(lambda: b.bytes_sent == 64)
        error = failure(a.exchange(dict.fromkeys([1, 2], constant(0)), 0, [1, 2]))
        assert (error.rank, error.reason) == (2, "no byte of its vector for 2 s")
