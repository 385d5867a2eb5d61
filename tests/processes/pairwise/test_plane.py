"""What pull, push, exchange and call promise, between planes on 127.0.0.1 and between real processes."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from dsgd.processes.pairwise.exchanges import Exchanges
from dsgd.processes.pairwise.plane import Plane, Unreachable
from dsgd.processes.pairwise.wire import HEADER, Frame, Kind, Status, as_bytes
from tests.support.planes import (
    HOST,
    LIMIT_S,
    by_hand,
    constant,
    impostor,
    open_sockets,
    own_threads,
    plane,
    planes,
    settings_of,
    until,
    value,
)


def failure(future: Future[Any]) -> Unreachable:
    error = future.exception(LIMIT_S)
    assert isinstance(error, Unreachable), error
    return error


# pull


def test_a_pull_gets_the_last_published_vector_its_steps_and_the_steps_by_now() -> None:
    with planes(2) as (a, b):
        b.publish(constant(5), 7)
        b.publish(constant(6), 8)
        b.set_steps(9)
        pulled = a.pull(1).result(LIMIT_S)
        assert (value(pulled.vector), pulled.steps, pulled.peer_steps) == (6, 8, 9)


def test_what_is_published_is_a_copy_and_what_is_pulled_stays_as_it_is() -> None:
    with planes(2) as (a, b):
        x = constant(1)
        b.publish(x, 1)
        x.fill_(2)
        kept = [a.pull(1).result(LIMIT_S).vector for _ in range(20)]
        view = kept.pop()[2:5]
        for step in range(3, 30):
            b.publish(constant(step), step)
            assert value(a.pull(1).result(LIMIT_S).vector) == step
        assert {value(vector) for vector in [*kept, view]} == {1}


def test_no_pulled_vector_is_torn_however_fast_its_maker_publishes() -> None:
    length = 100_000
    with planes(4, length) as all_planes:
        over = threading.Event()

        def publish() -> None:
            x = constant(0, length)
            while not over.is_set():
                x.add_(1)
                all_planes[0].publish(x, int(x[0]))

        writer = threading.Thread(target=publish)
        writer.start()
        for _ in range(60):
            for pulled in [reader.pull(0) for reader in all_planes[1:]]:
                got = pulled.result(LIMIT_S)
                assert value(got.vector) == got.steps
        over.set()
        writer.join()


def test_a_pull_waits_for_the_first_vector() -> None:
    with plane(0, 2) as a, plane(1, 2) as b:
        a.connect([None, (HOST, b.port)])
        pulled = a.pull(1)
        time.sleep(0.05)
        assert not pulled.done()
        b.publish(constant(3), 0)
        assert value(pulled.result(LIMIT_S).vector) == 3


def test_who_publishes_nothing_is_no_dead_node() -> None:
    with plane(0, 2, patience_s=1.0) as a, plane(1, 2, patience_s=1.0) as b:
        a.connect([None, (HOST, b.port)])
        assert failure(a.pull(1)).reason == "it has published nothing yet"
        assert a.push(1, constant(1), 1).result(LIMIT_S)


def test_a_closed_port_is_unreachable_at_once_and_says_why() -> None:
    with socket.create_server((HOST, 0)) as listening:
        port = listening.getsockname()[1]
    with plane(0, 3) as a:
        a.connect([None, None, (HOST, port)])
        error = failure(a.pull(2))
        assert (error.rank, error.reason) == (2, "connection refused")
        assert str(error) == "worker 2 cannot be reached: connection refused"
        assert failure(a.push(2, constant(1), 0)).rank == 2
        assert failure(a.call(2, "fetch", None, ())).reason == "connection refused"
        assert failure(a.pull(1)).reason == "its address is not known"


def test_a_dead_node_is_reachable_again_where_it_was_started_anew() -> None:
    with plane(0, 2) as a:
        with plane(1, 2) as b:
            b.publish(constant(1), 0)
            a.connect([None, (HOST, b.port)])
            assert value(a.pull(1).result(LIMIT_S).vector) == 1
        failure(a.pull(1))
        failure(a.pull(1))
        with plane(1, 2) as again:
            again.publish(constant(2), 0)
            a.relocate(1, (HOST, again.port))
            assert value(a.pull(1).result(LIMIT_S).vector) == 2


def test_a_lost_connection_is_made_again_without_help() -> None:
    def fall_silent(sock: socket.socket) -> None:
        sock.recv(HEADER.size, socket.MSG_WAITALL)

    with plane(1, 2) as b, plane(0, 2, patience_s=0.2) as a, impostor(fall_silent) as port:
        b.publish(constant(4), 0)
        a.connect([None, (HOST, port)])
        failure(a.pull(1))
        a.relocate(1, (HOST, b.port))
        until(lambda: (pulled := a.pull(1)).exception(LIMIT_S) is None and value(pulled.result().vector) == 4)


def half_an_answer(then: Callable[[socket.socket], None]) -> Callable[[socket.socket], None]:
    def behave(sock: socket.socket) -> None:
        sock.recv(HEADER.size, socket.MSG_WAITALL)
        sock.sendall(HEADER.pack(Kind.PULL, 0, 0, 0, 0, 0, 64) + bytes(30))
        then(sock)

    return behave


def test_half_an_answer_and_then_silence_is_unreachable() -> None:
    with plane(0, 2, patience_s=0.2) as a, impostor(half_an_answer(lambda sock: (sock.recv(1), None)[1])) as port:
        a.connect([None, (HOST, port)])
        assert failure(a.pull(1)).reason == "no byte for 0.2 s"


def test_half_an_answer_and_then_the_end_is_unreachable_at_once() -> None:
    with plane(0, 2) as a, impostor(half_an_answer(lambda sock: None)) as port:
        a.connect([None, (HOST, port)])
        assert failure(a.pull(1)).reason.startswith("connection")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((Kind.PULL, Status.OK, 72), "a payload of 72 bytes, at most 64"),
        ((Kind.PULL, Status.OK, -1), "pull ok of -1 bytes to pull"),
        ((Kind.PULL, Status.NOTHING, 8), "pull nothing of 8 bytes to pull"),
        ((Kind.PULL, Status.FAILED, 8), "pull failed of 8 bytes to pull"),
        ((Kind.PUSH, Status.OK, -1), "push ok of -1 bytes to pull"),
    ],
)
def test_an_answer_that_breaks_the_protocol_is_unreachable_and_logged(
    answer: tuple[Kind, Status, int], reason: str
) -> None:
    lines: list[str] = []

    def behave(sock: socket.socket) -> None:
        sock.recv(HEADER.size, socket.MSG_WAITALL)
        kind, status, payload = answer
        sock.sendall(HEADER.pack(kind, status, 0, 0, 0, 0, payload))

    with plane(0, 2, log=lines.append) as a, impostor(behave) as port:
        a.connect([None, (HOST, port)])
        assert reason in failure(a.pull(1)).reason
    assert any(reason in line.lower() for line in lines)


@contextmanager
def slow_relay(port: int, pause_s: float, chunk: int) -> Iterator[int]:
    """A network that delivers `chunk` bytes every `pause_s` in both directions."""
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
        listening.bind((HOST, 0))
        listening.listen()
        ends: list[socket.socket] = []

        def forward(source: socket.socket, target: socket.socket) -> None:
            try:
                while data := source.recv(chunk):
                    target.sendall(data)
                    time.sleep(pause_s)
                target.shutdown(socket.SHUT_WR)
            except OSError:
                return

        def work() -> None:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            server = socket.create_connection((HOST, port))
            ends.extend([client, server])
            back = threading.Thread(target=forward, args=(server, client))
            back.start()
            forward(client, server)
            back.join()

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            for end in ends:
                end.close()
            thread.join(LIMIT_S)


def test_a_slow_network_that_still_delivers_does_not_fail() -> None:
    """A megabyte takes longer than the patience both ways; a pushed one is in the kernel long before it arrives."""
    length = 1 << 17
    with plane(1, 2, length) as b, slow_relay(b.port, 0.02, 1 << 14) as port, plane(0, 2, length, patience_s=1.0) as a:
        b.publish(constant(3, length), 0)
        a.connect([None, (HOST, port)])
        begin = time.monotonic()
        assert a.push(1, constant(2, length), 0).result(LIMIT_S)
        assert value(a.pull(1).result(LIMIT_S).vector) == 3
        assert value(b.inbox()[0][0]) == 2
        assert time.monotonic() - begin > 2.0  # else this test has tested nothing


def test_a_slow_reader_keeps_nobody_waiting() -> None:
    length = 1 << 20  # more than the kernel keeps
    with planes(4, length) as (a, _, c, d):
        sock, link = by_hand(a, own_rank=1, asked=0, nodes=4, dimension=length)
        link.send(Frame(Kind.PULL), None, LIMIT_S)
        for step in range(1, 6):
            a.publish(constant(step, length), step)
            assert [value(p.pull(0).result(LIMIT_S).vector) for p in (c, d)] == [step, step]
        # the slow one reads at last, and gets one whole vector
        steps = link.receive(settings_of(4, length), LIMIT_S).steps
        vector = constant(-1, length)
        link.read_into(as_bytes(vector), LIMIT_S)
        assert value(vector) == steps
        sock.close()


# push


def test_pushed_vectors_lie_in_the_inbox_in_order_with_their_sender_and_its_steps() -> None:
    with planes(3) as (a, b, c):
        for step in range(2):
            assert a.push(2, constant(10 + step), step).result(LIMIT_S)
            assert b.push(2, constant(20 + step), step).result(LIMIT_S)
        got = [(value(vector), sender, steps) for vector, sender, steps in c.inbox()]
        assert got == [(10, 0, 0), (20, 1, 0), (11, 0, 1), (21, 1, 1)]
        assert c.inbox() == []


def test_a_full_inbox_is_busy_until_it_is_emptied() -> None:
    with planes(2) as (a, b):
        assert [a.push(1, constant(i), i).result(LIMIT_S) for i in range(6)] == [True] * 4 + [False] * 2
        assert [steps for _, _, steps in b.inbox()] == [0, 1, 2, 3]
        assert a.push(1, constant(9), 9).result(LIMIT_S)
        assert [steps for _, _, steps in b.inbox()] == [9]


def test_a_sender_that_dies_in_the_midst_of_a_vector_takes_no_place_in_the_inbox() -> None:
    with planes(2) as (a, b):
        for _ in range(6):
            sock, link = by_hand(b, own_rank=0, asked=1, nodes=2)
            link.write(HEADER.pack(Kind.PUSH, 0, 0, 0, 0, 0, 64) + bytes(10), memoryview(b""), LIMIT_S)
            sock.close()
        assert [a.push(1, constant(i), i).result(LIMIT_S) for i in range(4)] == [True] * 4


# exchange

GRAPHS: dict[str, Callable[[int, int], tuple[list[int], list[int]]]] = {  # (rank, round) -> targets, sources; of 4
    "ring": lambda i, k: ([(i + 1) % 4, (i - 1) % 4], [(i - 1) % 4, (i + 1) % 4]),
    "complete": lambda i, k: ([j for j in range(4) if j != i], [j for j in range(4) if j != i]),
    "directed ring": lambda i, k: ([(i + 1) % 4], [(i - 1) % 4]),
    "star": lambda i, k: ([1, 2, 3], [1, 2, 3]) if i == 0 else ([0], [0]),
    "one peer, another each round": lambda i, k: ([i ^ (1 + k % 3)], [i ^ (1 + k % 3)]),
    "one peer, directed": lambda i, k: ([(i + 1 + k % 3) % 4], [(i - 1 - k % 3) % 4]),
    "some only send": lambda i, k: ([2, 3], []) if i < 2 else ([], [0, 1]),
}


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("at_once", [False, True], ids=["one after the other", "all at once"])
def test_an_exchange_brings_each_source_s_vector_of_that_round(name: str, at_once: bool) -> None:
    rounds = 25
    with planes(4) as all_planes:

        def work(rank: int) -> None:
            delays = random.Random(rank)
            pending: list[Future[dict[int, Tensor]]] = []
            for k in range(rounds):
                targets, sources = GRAPHS[name](rank, k)
                pending.append(all_planes[rank].exchange(constant(100 * rank + k), k, targets, sources))
                if not at_once:
                    pending[-1].exception(LIMIT_S)
                    time.sleep(delays.random() * 0.002)
            for k, future in enumerate(pending):
                received = {source: value(vector) for source, vector in future.result(LIMIT_S).items()}
                assert received == {source: 100 * source + k for source in GRAPHS[name](rank, k)[1]}
            finished.append(rank)

        finished: list[int] = []
        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
        assert sorted(finished) == [0, 1, 2, 3]


def test_two_large_vectors_pass_each_other() -> None:
    """64 MB each way: far more than both kernels keep, so each must receive while it sends."""
    length = 8 << 20
    with planes(2, length) as (a, b):
        futures = [a.exchange(constant(1, length), 0, [1], [1]), b.exchange(constant(2, length), 0, [0], [0])]
        assert value(futures[0].result(LIMIT_S)[1]) == 2
        assert value(futures[1].result(LIMIT_S)[0]) == 1


def test_an_exchange_without_sources_is_answered_at_once() -> None:
    with planes(2) as (a, _):
        assert a.exchange(constant(1), 0, [1], []).result(0) == {}
        assert a.exchange(constant(1), 0, [], []).result(0) == {}


def test_a_neighbour_that_ends_after_its_last_exchange_has_sent_its_vector() -> None:
    length = 1 << 20
    with plane(0, 2, length) as a:
        b = plane(1, 2, length)
        a.connect([None, (HOST, b.port)])
        b.connect([(HOST, a.port), None])
        for k in range(3):
            b.exchange(constant(k, length), k, [0], [])
        b.close()
        futures = [a.exchange(constant(9, length), k, [], [1]) for k in range(4)]
        assert [value(future.result(LIMIT_S)[1]) for future in futures[:3]] == [0, 1, 2]
        assert failure(futures[3]).rank == 1


def test_a_source_that_dies_fails_the_exchange_at_once_and_what_came_before_counts() -> None:
    with planes(3) as (a, b, c):
        b.exchange(constant(1), 0, [0], [])
        c.exchange(constant(2), 0, [0], [])
        assert set(a.exchange(constant(0), 0, [], [1, 2]).result(LIMIT_S)) == {1, 2}
        waiting = a.exchange(constant(0), 1, [], [1, 2])
        c.exchange(constant(2), 1, [0], [])
        b.close()
        assert failure(waiting).rank == 1
        c.exchange(constant(3), 2, [0], [])
        # the vector of the failed exchange meets no later one
        assert value(a.exchange(constant(0), 2, [], [2]).result(LIMIT_S)[2]) == 3


def test_a_source_that_was_never_there_fails_the_exchange_when_it_is_a_target_too() -> None:
    with planes(2) as (a, b):
        b.close()
        assert failure(a.exchange(constant(1), 0, [1], [1])).rank == 1


def test_a_source_that_was_never_there_fails_the_exchange_even_when_nothing_is_sent_to_it() -> None:
    with planes(2) as (a, b):
        b.close()
        error = failure(a.exchange(constant(1), 0, [], [1]))
        assert (error.rank, error.reason) == (1, "connection refused")


def test_a_source_that_dies_before_it_ever_connected_fails_the_exchange() -> None:
    with planes(2) as (a, b):
        waiting = a.exchange(constant(1), 0, [1], [1])
        a.pull(1).result(LIMIT_S)  # now b is known to live
        b.close()
        assert failure(waiting).rank == 1


def test_a_vector_that_comes_after_its_exchange_has_failed_is_forgotten() -> None:
    exchanges = Exchanges(0.05, lambda source: 0, lambda source, answered: answered(None), print)
    assert failure(exchanges.begin([1]).future).rank == 1
    late = constant(1)
    seen = weakref.ref(late)
    exchanges.arrived(1, 0, late)
    del late
    assert seen() is None
    exchanges.close()
    exchanges.join(LIMIT_S)


def test_a_dead_target_fails_the_exchange_that_waits_for_others() -> None:
    with planes(3) as (a, b, _):
        b.close()
        assert failure(a.exchange(constant(1), 0, [1], [2])).rank == 1


def test_a_silent_source_is_named_after_the_time_limit() -> None:
    with planes(3, timeout_s=2.0) as (a, b, _):
        b.exchange(constant(1), 0, [0], [])
        until(lambda: b.bytes_sent == 64)
        error = failure(a.exchange(constant(0), 0, [1, 2], [1, 2]))
        assert (error.rank, error.reason) == (2, "no byte of its vector for 2 s")


# call


def test_calls_of_all_workers_are_atomic_and_answered_with_their_staleness() -> None:
    """A read, a pause and a write: two at once would lose a count."""
    count = constant(0, 4)

    def operation(rank: int, name: str, part: Tensor | None, scalars: tuple[float, ...]) -> tuple[Tensor | None, int]:
        assert part is not None
        assert (name, scalars) == ("add", (2.0, -0.5))
        before = count.clone()
        time.sleep(0.0005)
        count.copy_(before + part)
        return count.clone(), rank

    with planes(4) as all_planes:
        all_planes[3].serve(operation)
        calls = [(r, all_planes[r].call(3, "add", constant(1, 4), (2.0, -0.5))) for _ in range(20) for r in range(3)]
        answers = []
        for rank, future in calls:
            answer, staleness = future.result(LIMIT_S)
            assert answer is not None
            assert staleness == rank
            answers.append(value(answer))
        assert sorted(answers) == list(range(1, 61))


def test_a_call_may_carry_and_bring_nothing() -> None:
    with planes(2) as (a, b):
        b.serve(lambda rank, name, part, scalars: (part, len(scalars)))
        assert a.call(1, "", None, ()).result(LIMIT_S) == (None, 0)
        answer, staleness = a.call(1, "x" * 32, constant(1, 0), tuple(range(16))).result(LIMIT_S)
        assert answer is not None
        assert (len(answer), staleness) == (0, 16)


def test_an_operation_that_raises_is_the_caller_s_error_and_the_server_goes_on() -> None:
    lines: list[str] = []

    def operation(rank: int, name: str, part: Tensor | None, scalars: tuple[float, ...]) -> tuple[Tensor | None, int]:
        if name == "wrong":
            return torch.zeros(9, dtype=torch.float64), 0
        return constant(scalars[0], 2), 0

    with plane(0, 2) as a, plane(1, 2, log=lines.append) as b:
        a.connect([None, (HOST, b.port)])
        with pytest.raises(RuntimeError, match=r"worker 1 serves no operations"):
            a.call(1, "early", None, ()).result(LIMIT_S)
        b.serve(operation)
        with pytest.raises(RuntimeError, match=r"^fetch: IndexError: tuple index out of range$"):
            a.call(1, "fetch", None, ()).result(LIMIT_S)
        with pytest.raises(RuntimeError, match=r"at most 8 numbers"):
            a.call(1, "wrong", None, ()).result(LIMIT_S)
        answer, _ = a.call(1, "fetch", None, (4.0,)).result(LIMIT_S)
        assert answer is not None
        assert value(answer) == 4
    assert len(lines) == 3


def test_a_server_that_dies_fails_the_calls_that_wait() -> None:
    entered, leave = threading.Event(), threading.Event()

    def operation(rank: int, name: str, part: Tensor | None, scalars: tuple[float, ...]) -> tuple[Tensor | None, int]:
        entered.set()
        leave.wait(LIMIT_S)
        return None, 0

    with plane(0, 2) as a:
        b = plane(1, 2, patience_s=0.1)
        b.serve(operation)
        a.connect([None, (HOST, b.port)])
        waiting = a.call(1, "wait", None, ())
        assert entered.wait(LIMIT_S)
        b.close()
        assert failure(waiting).rank == 1
        leave.set()


# the plane as a whole


@pytest.mark.parametrize(
    "wrong",
    [torch.zeros(8), torch.zeros(9, dtype=torch.float64), torch.zeros(8, 1, dtype=torch.float64),
     torch.zeros(16, dtype=torch.float64)[::2]],
    ids=["dtype", "length", "shape", "strides"],
)  # fmt: skip
def test_what_is_no_vector_of_the_run_is_refused_before_it_is_sent(wrong: Tensor) -> None:
    with planes(2) as (a, _):
        for attempt in (
            lambda: a.publish(wrong, 0),
            lambda: a.push(1, wrong, 0),
            lambda: a.exchange(wrong, 0, [1], []),
            lambda: a.call(1, "add", wrong, ()),
        ):
            with pytest.raises(
                ValueError, match=r"^a vector must be contiguous torch\.float64 on the CPU with at most 8 numbers"
            ):
                attempt()


def test_a_peer_that_does_not_exist_is_refused() -> None:
    with planes(2) as (a, _):
        for peer in (0, 2, -1):
            with pytest.raises(ValueError, match=f"got {peer} on rank 0"):
                a.pull(peer)


def test_bytes_sent_counts_the_vectors_that_left_and_nothing_else() -> None:
    with planes(2) as (a, b):
        b.serve(lambda rank, name, part, scalars: (constant(0, 3), 0))
        b.pull(0).result(LIMIT_S)  # 64 bytes of a
        a.push(1, constant(1, 5), 0).result(LIMIT_S)  # 40 of a
        a.exchange(constant(1, 2), 0, [1], []).result(LIMIT_S)  # 16 of a
        a.call(1, "fetch", constant(1, 1), (1.0, 2.0)).result(LIMIT_S)  # 8 of a, 24 of b
        a.call(1, "fetch", None, ()).result(LIMIT_S)  # 24 of b
        until(lambda: (a.bytes_sent, b.bytes_sent) == (128, 48))


def test_close_leaves_no_thread_and_no_socket_and_fails_what_is_pending() -> None:
    assert own_threads() == []
    before = open_sockets()
    with (
        planes(3, patience_s=10.0) as (a, b, c),
        impostor(lambda sock: (sock.recv(1000), sock.recv(1), None)[2]) as port,
    ):
        for asker in (a, b, c):
            for peer in {0, 1, 2} - {[a, b, c].index(asker)}:
                asker.pull(peer).result(LIMIT_S)
        a.relocate(1, (HOST, port))
        pending = [a.pull(1), a.push(1, constant(1), 0), a.exchange(constant(1), 0, [2], [2])]
        a.close()
        assert {failure(future).reason for future in pending} == {"the plane was closed here"}
        assert failure(a.pull(2)).reason == "the plane was closed here"
        assert failure(a.exchange(constant(1), 0, [2], [2])).rank == 2
        a.close()
    assert own_threads() == []
    assert open_sockets() == before


# real processes

CHILD = """
import sys, torch
from tests.support.planes import *

port, nodes, patience_s = int(sys.argv[1]), 2, float(sys.argv[2])
with plane(1, nodes, patience_s=patience_s) as own:
    own.publish(constant(1), 0)
    own.connect([(HOST, port), None])
    print(own.port, flush=True)
    pulls = failures = 0
    while not own.inbox():
        pulls += 1
        failures += own.pull(0).exception(LIMIT_S) is not None
        time.sleep(0.001)
    print(pulls, failures, flush=True)
"""


@contextmanager
def child_of(parent: Plane, patience_s: float) -> Iterator[subprocess.Popen[str]]:
    """Another process: rank 1 of two, which pulls from rank 0 again and again until something is pushed to it."""
    command = [sys.executable, "-c", CHILD, str(parent.port), str(patience_s)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        parent.connect([None, (HOST, int(child.stdout.readline()))])
        yield child
    finally:
        child.kill()
        child.communicate()


def test_a_stopped_process_is_unreachable_until_it_goes_on() -> None:
    with plane(0, 2, patience_s=0.5) as own, child_of(own, LIMIT_S) as child:
        own.publish(constant(0), 0)
        until(lambda: own.pull(1).exception(LIMIT_S) is None)
        child.send_signal(signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)  # until it has stopped: the signal alone is only on its way
        assert failure(own.pull(1)).reason == "no byte for 0.5 s"
        for _ in range(100):  # on the back-off: these do not wait
            assert own.pull(1).done()
        child.send_signal(signal.SIGCONT)
        until(lambda: own.pull(1).exception(LIMIT_S) is None)


def test_a_process_that_was_stopped_itself_does_not_blame_its_peers() -> None:
    with plane(0, 2, patience_s=LIMIT_S) as own, child_of(own, patience_s=1.0) as child:
        own.publish(constant(0), 0)
        for _ in range(2):
            time.sleep(0.1)
            child.send_signal(signal.SIGSTOP)
            time.sleep(2.0)
            child.send_signal(signal.SIGCONT)
        assert own.push(1, constant(1), 0).result(LIMIT_S)
        assert child.stdout is not None
        pulls, failures = map(int, child.stdout.readline().split())
        assert pulls > 0
        assert failures == 0


def test_a_killed_process_fails_what_waits_for_it_at_once() -> None:
    with plane(0, 2) as own, child_of(own, LIMIT_S) as child:
        own.publish(constant(0), 0)
        assert value(own.pull(1).result(LIMIT_S).vector) == 1
        waiting = own.exchange(constant(0), 0, [1], [1])
        child.send_signal(signal.SIGKILL)
        assert failure(waiting).rank == 1
        assert failure(own.pull(1)).rank == 1
