"""Random schedules and random bytes against what must come out."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter, defaultdict
from concurrent.futures import Future
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dsgd.engines.dist.pairwise.plane import Plane
from dsgd.engines.dist.pairwise.wire import HEADER
from tests.support.planes import HOST, LIMIT_S, by_hand, constant, plane, planes, value

D = 3000
LENGTHS = st.sampled_from([0, 1, 7, D])
FUZZ = settings(max_examples=30)
Action = tuple[str, int, int]  # what, offset of the peer (or the exchange's number), length of the vector


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[set[tuple[int, int]]], list[list[Action]]]:
    """(the edges of each exchange, what each of 2 to 4 nodes does in order)."""
    nodes = draw(st.integers(2, 4))
    pairs = [(i, j) for i in range(nodes) for j in range(nodes) if i != j]
    graphs = draw(st.lists(st.sets(st.sampled_from(pairs)), max_size=8))
    other = st.tuples(st.sampled_from(["publish", "pull", "push", "inbox", "call"]), st.integers(1, nodes - 1), LENGTHS)
    scripts = []
    for _ in range(nodes):
        script: list[Action] = []
        for k in range(len(graphs)):
            script += draw(st.lists(other, max_size=4))
            script.append(("exchange", k, draw(LENGTHS)))
        scripts.append(script + draw(st.lists(other, max_size=10)))
    return graphs, scripts


class Node:
    """One node's thread: it does everything without waiting, then looks at what came out."""

    def __init__(
        self, own: Plane, rank: int, nodes: int, graphs: list[set[tuple[int, int]]], script: list[Action]
    ) -> None:
        self.own, self.rank, self.nodes, self.graphs, self.script = own, rank, nodes, graphs, script
        self.pulls: list[tuple[int, Future[Any]]] = []
        self.pushes: list[tuple[int, int, int, Future[bool]]] = []  # peer, counter, length
        self.exchanges: list[tuple[int, int, Future[dict[int, Tensor]]]] = []  # number, length
        self.calls: list[tuple[int, Future[tuple[Tensor | None, int]]]] = []
        self.got: list[tuple[Tensor, int, int]] = []
        self.thread = threading.Thread(target=self.work)

    def work(self) -> None:
        for counter, (what, number, length) in enumerate(self.script, 1):
            peer = (self.rank + number) % self.nodes
            match what:
                case "publish":
                    self.own.publish(constant(1000 * self.rank + counter, max(length, 1)), counter)
                case "pull":
                    self.pulls.append((peer, self.own.pull(peer)))
                case "push":
                    vector = constant(1000 * self.rank + counter, length)
                    self.pushes.append((peer, counter, length, self.own.push(peer, vector, counter)))
                case "inbox":
                    self.got += self.own.inbox()
                case "call":
                    self.calls.append((peer, self.own.call(peer, "count", constant(1, length), (length,))))
                case _:
                    targets = [j for i, j in self.graphs[number] if i == self.rank]
                    sources = [i for i, j in self.graphs[number] if j == self.rank]
                    vector = constant(1000 * self.rank + number, length)
                    self.exchanges.append(
                        (number, length, self.own.exchange(dict.fromkeys(targets, vector), counter, sources))
                    )


@FUZZ
@given(programs())
def test_every_schedule_brings_every_vector_where_it_belongs(
    program: tuple[list[set[tuple[int, int]]], list[list[Action]]],
) -> None:
    graphs, scripts = program
    with planes(len(scripts), D) as all_planes:
        counts: Counter[int] = Counter()

        def server(own_rank: int) -> Any:
            def operation(rank: int, name: str, part: Tensor | None, scalars: tuple[float, ...]) -> tuple[Tensor, int]:
                assert part is not None
                assert (name, scalars) == ("count", (len(part),))
                counts[own_rank] += 1
                return part * 2, counts[own_rank]

            return operation

        for rank, own in enumerate(all_planes):
            own.serve(server(rank))
            own.publish(constant(1000 * rank, 1), 0)
        nodes = [Node(all_planes[r], r, len(scripts), graphs, script) for r, script in enumerate(scripts)]
        for node in nodes:
            node.thread.start()
        for node in nodes:
            node.thread.join(LIMIT_S)
        # a vector carries its sender's rank and counter
        lengths = {(r, number): length for r, n in enumerate(nodes) for number, length, _ in n.exchanges}
        delivered: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        stale: dict[int, list[int]] = defaultdict(list)
        for node in nodes:
            steps_of: dict[int, int] = {}
            for peer, future in node.pulls:
                pulled = future.result(LIMIT_S)
                assert value(pulled.vector) == 1000 * peer + pulled.steps
                assert pulled.steps >= steps_of.get(peer, 0)  # never an older one than before
                steps_of[peer] = pulled.steps
            for peer, counter, length, future in node.pushes:
                if future.result(LIMIT_S):
                    delivered[node.rank, peer].append((counter, length))
            for number, _, future in node.exchanges:
                received = future.result(LIMIT_S)
                assert received.keys() == {i for i, j in graphs[number] if j == node.rank}
                for source, vector in received.items():
                    assert len(vector) == lengths[source, number]
                    assert bool((vector == 1000 * source + number).all())
            for (peer, future), length in zip(
                node.calls, [length for what, _, length in node.script if what == "call"], strict=True
            ):
                answer, staleness = future.result(LIMIT_S)
                assert answer is not None
                assert answer.tolist() == [2.0] * length
                stale[peer].append(staleness)
        for server_rank, seen in stale.items():
            assert sorted(seen) == list(range(1, counts[server_rank] + 1))  # one at a time, each once
        for node in nodes:
            node.got += node.own.inbox()
            for sender in range(len(nodes)):
                mine = [(steps, len(vector)) for vector, rank, steps in node.got if rank == sender]
                assert mine == delivered[sender, node.rank]
            for vector, sender, steps in node.got:
                assert bool((vector == 1000 * sender + steps).all())


def test_random_bytes_of_a_node_that_was_let_in_harm_nobody_else() -> None:
    with plane(0, 3) as own, plane(1, 3) as peer:
        own.publish(constant(4), 0)
        own.serve(lambda rank, name, part, scalars: (part, 0))
        peer.connect([(HOST, own.port), None, None])
        small = st.integers(-2, 80)
        heads = st.builds(
            HEADER.pack,
            st.integers(0, 7),
            st.integers(0, 4),
            st.integers(0, 20),
            st.integers(0, 40),
            small,
            small,
            small,
        )

        @FUZZ
        @given(st.lists(st.one_of(heads, st.binary(max_size=200)), max_size=6))
        def throw(pieces: list[bytes]) -> None:
            sock, _ = by_hand(own, own_rank=2, asked=0, nodes=3)
            with sock, contextlib.suppress(OSError):  # it may be disconnected at any byte
                sock.sendall(b"".join(pieces))
                sock.shutdown(socket.SHUT_WR)
            assert value(peer.pull(0).result(LIMIT_S).vector) == 4
            own.inbox()

        throw()
        assert peer.push(0, constant(1), 0).result(LIMIT_S)
