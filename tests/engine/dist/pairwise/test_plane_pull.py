"""What a pull promises: the last published vector, or an error that names the peer."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress

from dsgd.engines.dist.pairwise.wire import HEADER, Frame, Kind, Status, as_bytes
from tests.support.planes import HOST, LIMIT_S, by_hand, constant, failure, impostor, plane, planes, settings_of, value


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
            a.connect([None, (HOST, again.port)])
            assert value(a.pull(1).result(LIMIT_S).vector) == 2


def test_half_an_answer_and_then_silence_is_unreachable() -> None:
    def behave(sock: socket.socket) -> None:
        sock.recv(HEADER.size, socket.MSG_WAITALL)
        sock.sendall(HEADER.pack(Kind.PULL, 0, 0, 0, 0, 0, 64) + bytes(30))
        sock.recv(1)

    with plane(0, 2, patience_s=0.2) as a, impostor(behave) as port:
        a.connect([None, (HOST, port)])
        assert failure(a.pull(1)).reason == "no byte for 0.2 s"


def test_an_answer_that_breaks_the_protocol_is_unreachable_and_logged() -> None:
    for kind, status, payload, reason in (
        (Kind.PULL, Status.OK, 264, "a payload of 264 bytes, at most 256"),
        (Kind.PULL, Status.OK, -1, "pull ok of -1 bytes to pull"),
        (Kind.PULL, Status.NOTHING, 8, "pull nothing of 8 bytes to pull"),
        (Kind.PULL, Status.FAILED, 8, "pull failed of 8 bytes to pull"),
        (Kind.PUSH, Status.OK, -1, "push ok of -1 bytes to pull"),
    ):
        lines: list[str] = []

        def behave(sock: socket.socket, header: bytes = HEADER.pack(kind, status, 0, 0, 0, 0, payload)) -> None:
            sock.recv(HEADER.size, socket.MSG_WAITALL)
            sock.sendall(header)

        with plane(0, 2, log=lines.append) as a, impostor(behave) as port:
            a.connect([None, (HOST, port)])
            assert reason in failure(a.pull(1)).reason
        assert any(reason in line.lower() for line in lines)


@contextmanager
def slow_relay(port: int) -> Iterator[int]:
    """Yield the port of a network that delivers 16 KiB every 20 ms in both directions."""
    with ExitStack() as stack, ThreadPoolExecutor(2) as threads:
        listening = stack.enter_context(socket.socket())
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
        listening.bind((HOST, 0))
        listening.listen()

        def forward(source: socket.socket, target: socket.socket) -> None:
            with suppress(OSError):
                while data := source.recv(1 << 14):
                    target.sendall(data)
                    time.sleep(0.02)
                target.shutdown(socket.SHUT_RDWR)

        def work() -> None:
            client = stack.enter_context(listening.accept()[0])
            server = stack.enter_context(socket.create_connection((HOST, port)))
            threads.submit(forward, server, client)
            forward(client, server)

        threads.submit(work)
        yield listening.getsockname()[1]


def test_a_slow_network_that_still_delivers_does_not_fail() -> None:
    """A megabyte takes longer than the patience both ways; a pushed one is in the kernel long before it arrives."""
    length = 1 << 17
    with plane(1, 2, length) as b, slow_relay(b.port) as port, plane(0, 2, length, patience_s=1.0) as a:
        b.publish(constant(3, length), 0)
        a.connect([None, (HOST, port)])
        assert a.push(1, constant(2, length), 0).result(LIMIT_S)
        assert value(a.pull(1).result(LIMIT_S).vector) == 3
        assert value(b.inbox()[0][0]) == 2


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
