"""Who knows the token may send what its part in the run is, and nothing else: everything else ends its connection, with
a line, and neither memory is taken for it nor does the coordinator end."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dsgd.engines.dist.control import CONTROL_MAGIC, CoordinatorConnection, CoordinatorGone, Hub
from dsgd.engines.dist.coordinator.messages import MessageRules
from dsgd.engines.dist.coordinator.monitor import RunMonitor
from dsgd.engines.dist.frames import FRAME, BadFrame, VectorLimit, encode_frame
from dsgd.engines.dist.job import TRACE_INTERVALS, ProcessJob
from dsgd.engines.dist.worker.process import CoordinatorClient
from dsgd.problem.problem import build_problem
from dsgd.streams import stream
from tests.support.any_message import AnyMessage
from tests.support.cases import prepared

TOKEN = bytes(32)
DEADLINE_S = 60.0
NAN = float("nan")
NODE = {"kind": "hello", "role": "node", "node": 0, "host": "127.0.0.1", "port": 1, "gpus": False}
SNAPSHOTS = {"kind": "hello", "role": "snapshots", "node": 0}
AGENT = {"kind": "hello", "role": "agent"}
COUNTERS = {"reduced": 8.0, "busy_s": 0.5, "staleness": [0, 1, 2], "missed": 3}
SNAPSHOT = {"kind": "snapshot", "key": "last", "steps": 5, "time_s": 0.5, "counters": COUNTERS, "extra": {}}
RNG = stream("algorithm", 3, 1).bit_generator.state
CHECKPOINT = {**SNAPSHOT, "key": "checkpoint:1", "extra": {"batches": 5, "rng": RNG}}
FAILED = {"kind": "failed", "error": "no", "suspect": None, "caused_by_peer": True}


def job_of(*options: str) -> ProcessJob:
    experiment = prepared("experiment=quadratic", *options)
    problem = build_problem(experiment)
    return ProcessJob(experiment, problem, ("127.0.0.1", 1), TOKEN, DEADLINE_S, 1.0, 1, {0: ("cpu",)})


JOB, TRACED = job_of("algo=easgd", "nodes=2"), job_of("algo=easgd", "nodes=2", "trace=true")
KEPT_LIMIT = JOB.experiment.algo.keeps
LOCKSTEP = job_of("algo=sync", "nodes=2")
D = JOB.problem.dimension


def model(**further: Tensor) -> dict[str, Tensor]:
    return {"x": JOB.problem.start, "buffers": JOB.problem.start_buffers, **further}


def vector(length: int = D) -> Tensor:
    return torch.zeros(length, dtype=JOB.problem.dtype)


class Listening:
    """A hub with the rules of a run, polled by a thread. heard: messages with the role of who sent them."""

    def __init__(self, job: ProcessJob = JOB, rules: Any = None) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = listener.getsockname()
        self.log: list[str] = []
        self.heard: list[tuple[str | None, dict[str, Any]]] = []
        self._hub = Hub(listener, TOKEN, self.log.append, rules or MessageRules(job))
        self._lines: list[CoordinatorConnection] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._poll)
        self._thread.start()

    def _poll(self) -> None:
        while not self._over.is_set():
            for client, message, _ in self._hub.poll(0.01):
                if message is not None:
                    self.heard.append((client.role, message))
                    self._hub.send(client, {"kind": "heard"})
        self._hub.close()

    def connect(self) -> CoordinatorConnection:
        self._lines.append(CoordinatorConnection(self.address, TOKEN, DEADLINE_S))
        return self._lines[-1]

    def hears(self, *messages: Mapping[str, Any], vectors: dict[str, Tensor] | None = None) -> bool:
        """Are all of these messages heard from one connection? Else it must have ended. vectors: of the last one."""
        line = self.connect()
        heard = all(is_heard(line, message, vectors if message is messages[-1] else None) for message in messages)
        line.socket.close()
        return heard

    def close(self) -> None:
        for line in self._lines:
            line.socket.close()
        self._over.set()
        self._thread.join(DEADLINE_S)


def is_heard(line: CoordinatorConnection, message: Mapping[str, Any], vectors: dict[str, Tensor] | None = None) -> bool:
    """Is this message heard? Else the connection must have ended."""
    try:
        line.send(message, vectors)
        return line.receive() == {"kind": "heard"}
    except CoordinatorGone as gone:
        if "silent" in str(gone):
            raise
        return False


@pytest.fixture
def listening() -> Iterator[Listening]:
    with closing(Listening()) as listening:
        yield listening


@pytest.fixture
def traced() -> Iterator[Listening]:
    with closing(Listening(TRACED)) as listening:
        yield listening


@pytest.fixture
def lockstep() -> Iterator[Listening]:
    with closing(Listening(LOCKSTEP)) as listening:
        yield listening


def spans(vector: Tensor) -> dict[str, Tensor]:
    return {"computing": vector, "communicating": vector}


def test_what_processes_send_is_heard(listening: Listening, traced: Listening, lockstep: Listening) -> None:
    kept = {"kept.a": vector(), "kept.b": vector()}
    of_server = {**SNAPSHOT, "counters": {"reduced": 8}}
    for message in (
        {"kind": "gpu", "facts": {"gpu": "NVIDIA H100", "cuda": "12.8"}},
        {"kind": "ready"},
        {"kind": "heartbeat", "steps": 5, "counters": COUNTERS},
        {"kind": "heartbeat", "steps": 0, "counters": {}},
        {"kind": "ended", "steps": 5, "time_s": 1},
        {"kind": "diverged", "steps": 5, "time_s": 1},
        {**FAILED, "suspect": 2},
    ):
        assert listening.hears(NODE, message)
    assert listening.hears(FAILED)
    assert listening.hears({**NODE, "node": 2}, {"kind": "heartbeat", "steps": 5, "counters": {"reduced": 8}})
    assert listening.hears(SNAPSHOTS, SNAPSHOT, vectors=model())
    assert listening.hears(SNAPSHOTS, CHECKPOINT, vectors=model(velocity=vector(), **kept))
    assert listening.hears({**SNAPSHOTS, "node": 2}, of_server, vectors={"x": vector(), "m": vector()})
    assert listening.hears(AGENT, {"kind": "interrupt"})
    assert traced.hears(SNAPSHOTS, SNAPSHOT, vectors=model(**spans(torch.zeros(100, dtype=torch.float64))))
    assert lockstep.hears(SNAPSHOTS, {**SNAPSHOT, "key": "step:5"}, vectors=model())
    assert listening.log == traced.log == lockstep.log == []
    assert {role for role, _ in listening.heard} == {None, "node", "snapshots", "agent"}


def without(message: dict[str, Any], field: str) -> dict[str, Any]:
    return {key: value for key, value in message.items() if key != field}


HEARTBEAT = {"kind": "heartbeat", "steps": 5, "counters": COUNTERS}
ENDED = {"kind": "ended", "steps": 5, "time_s": 1.0}
MISSED = {"kind": "missed", "steps": 5, "key": "checkpoint:1"}
WRONG_COUNTERS = ({"busy_s": NAN}, {**COUNTERS, "staleness": [1, 2]}, {"more": 1.0})
OF_NODES = [
    *({**HEARTBEAT, "steps": steps} for steps in (-1, 1.0, 1 << 53)),
    *({**HEARTBEAT, "counters": counters} for counters in WRONG_COUNTERS),
    {**ENDED, "time_s": NAN}, {**MISSED, "key": "x" * 101}, without(FAILED, "error"),
    *({**FAILED, **wrong} for wrong in ({"suspect": -1}, {"suspect": 3}, {"error": 5}, {"caused_by_peer": 0})),
    {"kind": "snapshot"}, {"kind": "interrupt"}, {"kind": "no such"}, {**HEARTBEAT, "more": 1},
    *({"kind": "gpu", "facts": facts} for facts in ({"host": "x"}, {"gpu": "x" * 1001})),
    NODE, SNAPSHOTS, AGENT, {"kind": "ready", "role": "agent"},
    {"kind": "ready", "vectors": [["x", "float64", 1]]},
]  # fmt: skip


def test_what_no_node_sends_ends_the_connection(listening: Listening) -> None:
    for message in OF_NODES:
        assert not listening.hears(NODE, message), message
    assert listening.hears(AGENT)
    assert len(listening.log) == len(set(listening.log)) > 1


def test_a_first_message_that_says_nothing_of_use_ends_the_connection(listening: Listening) -> None:
    for message in (
        {"kind": "ready"}, {"kind": "heartbeat"}, {"kind": "hello"}, SNAPSHOT, {"kind": "interrupt"},
        *({"kind": "hello", "role": role} for role in ("node", "king", None, [])),
        *({**hello, "node": node} for hello in (NODE, SNAPSHOTS) for node in (-1, 3, True)),
        *({**NODE, "host": host} for host in ("coordinator.example", "", "127.0.0.1" * 99, "fe80::1%\x1b[2J")),
        *({**NODE, "port": port} for port in (0, 1 << 16)),
        *({**hello, "gpus": True} for hello in (SNAPSHOTS, AGENT)),
    ):  # fmt: skip
        assert not listening.hears(message), message
    assert listening.heard == []
    assert listening.hears(AGENT)


def test_a_snapshot_that_is_none_ends_the_connection(
    listening: Listening, traced: Listening, lockstep: Listening
) -> None:
    for message in (
        *({**SNAPSHOT, **wrong} for wrong in ({"steps": -1}, {"time_s": NAN}, {"extra": {"batches": -1}})),
        *({**SNAPSHOT, "counters": counters} for counters in WRONG_COUNTERS),
        *({**SNAPSHOT, "key": key} for key in ("x" * 101, "step:5")),
        *({**CHECKPOINT, "extra": without(CHECKPOINT["extra"], field)} for field in ("batches", "rng")),
        HEARTBEAT,
    ):
        assert not listening.hears(SNAPSHOTS, message, vectors=model()), message
    for key in ("step:", "step:4", "step:x"):
        assert not lockstep.hears(SNAPSHOTS, {**SNAPSHOT, "key": key}, vectors=model())
    for vectors in (
        {},
        {"x": vector()},
        model(x=vector(D - 1)),
        model(x=vector(D + 1)),
        model(x=torch.zeros(D, dtype=torch.float32)),
        model(velocity=vector(D - 1)),
        model(**{"kept.a": vector(D - 1)}),
        model(**{f"kept.{i}": vector(1) for i in range(KEPT_LIMIT + 2)}),
        model(computing=vector(2 * D)),
    ):
        assert not listening.hears(SNAPSHOTS, SNAPSHOT, vectors=vectors), vectors.keys()
    for one in (
        torch.zeros(3, dtype=torch.float64),
        torch.zeros(2, dtype=torch.float32),
        torch.full((2,), NAN).double(),
        torch.zeros(2 * TRACE_INTERVALS + 2, dtype=torch.float64),
    ):
        assert not traced.hears(SNAPSHOTS, SNAPSHOT, vectors=model(**spans(one)))
    assert not traced.hears(SNAPSHOTS, SNAPSHOT, vectors=model(computing=torch.zeros(2, dtype=torch.float64)))
    assert {message["kind"] for _, message in listening.heard} == {"hello"}
    assert listening.hears(SNAPSHOTS, SNAPSHOT, vectors=model())


OFFER = {"kind": "offer", "key": "last", "digests": {"x": "0" * 32, "buffers": "1" * 32, "kept.a": "2" * 32}}


def test_an_offer_that_is_none_ends_the_connection(listening: Listening, lockstep: Listening) -> None:
    for digests in (
        *([], {"x": None}, {"x": "0" * 101}, {"y": "0"}, {"kept." + "a" * 101: "0"}),
        {f"kept.{i}": "0" for i in range(LOCKSTEP.snapshot_limit.vectors + 1)},
    ):
        assert not lockstep.hears(SNAPSHOTS, {**OFFER, "digests": digests}), digests
    assert not lockstep.hears(NODE, OFFER)
    assert not listening.hears(SNAPSHOTS, OFFER)  # not in lock-step: no vectors are alike
    assert lockstep.hears(SNAPSHOTS, OFFER)
    assert lockstep.hears(SNAPSHOTS, {**SNAPSHOT, "same": ["x"]}, vectors={"buffers": JOB.problem.start_buffers})
    assert not lockstep.hears(SNAPSHOTS, {**SNAPSHOT, "same": [5]}, vectors=model())
    assert not lockstep.hears(SNAPSHOTS, {**SNAPSHOT, "same": ["buffers"]}, vectors={})
    assert not lockstep.hears(NODE, {**HEARTBEAT, "same": []})


def test_who_carries_no_snapshots_sends_no_vectors(listening: Listening) -> None:
    """The header alone is enough: nothing that follows is waited for."""
    for hello, announced in product((None, NODE, AGENT), (1, D * 8, (1 << 64) - 1)):
        with socket.create_connection(listening.address) as sock:
            sock.settimeout(DEADLINE_S)
            greeting = b"" if hello is None else b"".join(encode_frame(hello, {}))
            sock.sendall(CONTROL_MAGIC + TOKEN + greeting + FRAME.pack(20, announced))
            while sock.recv(1000):
                pass
    assert [line.split(",")[0] for line in listening.log] == ["control: a message had no possible length"]


def test_no_more_memory_is_promised_than_a_snapshot_takes() -> None:
    x, buffers = JOB.problem.start.nbytes, JOB.problem.start_buffers.nbytes
    assert JOB.snapshot_limit.total_bytes == x * (2 + KEPT_LIMIT) + buffers
    assert TRACED.snapshot_limit.total_bytes == x * (2 + KEPT_LIMIT) + buffers + 2 * 16 * TRACE_INTERVALS
    assert JOB.model_limit.total_bytes == x + buffers
    assert JOB.model_limit.numbers == max(D, JOB.problem.start_buffers.numel())


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.text(max_size=3), st.sampled_from([torch.float32, torch.float64]), st.integers(0, 200)), max_size=6
    ),
    st.builds(VectorLimit, st.integers(0, 6), st.integers(0, 200), st.integers(0, 2000), st.integers(0, 50)),
)  # fmt: skip
def test_what_passes_a_limit_is_within_it(listed: list[Any], limit: VectorLimit) -> None:
    try:
        limit.check(listed)
    except BadFrame:
        return
    assert sum(dtype.itemsize * length for _, dtype, length in listed) <= limit.total_bytes
    assert len(listed) <= limit.vectors + 2
    assert all(length <= max(limit.numbers, limit.spans) for _, _, length in listed)


def test_a_node_has_one_connection_for_snapshots(listening: Listening) -> None:
    first = listening.connect()
    assert is_heard(first, SNAPSHOTS)
    assert not listening.hears(SNAPSHOTS)
    assert listening.hears({**SNAPSHOTS, "node": 1})
    assert is_heard(first, SNAPSHOT, model())
    assert [line.split(",")[0] for line in listening.log] == [
        "control: a second connection wanted to send snapshots of node 0"
    ]


def test_connections_beyond_what_the_run_needs_are_refused() -> None:
    with closing(Listening(rules=AnyMessage(clients=5))) as listening:
        lines = [listening.connect() for _ in range(5)]
        assert all(is_heard(line, {"kind": "hi"}) for line in lines)
        assert not any(listening.hears({"kind": "hi"}) for _ in range(5))
        told = [line.split(",")[0] for line in listening.log]
        assert told == ["control: there were more connections than the run needs"]
        lines.pop().socket.close()
        deadline = time.monotonic() + DEADLINE_S
        while not listening.hears({"kind": "hi"}):
            assert time.monotonic() < deadline


def test_what_is_said_of_an_error_can_be_printed(listening: Listening) -> None:
    assert listening.hears(NODE, {**FAILED, "error": "no\x1b[2J\nway" + "x" * 20_000})
    error = listening.heard[-1][1]["error"]
    assert error.startswith("no\\x1b[2J\\nwayxxx")
    assert len(error) == 10_000


def test_a_parent_says_which_problem_it_has() -> None:
    start = {"kind": "start", "rank": 1, "digest": {"training labels": {"8": "b"}}, "hash": "c"}
    with closing(Listening(replace(JOB, digest={"training labels": {"8": "a"}}))) as listening:
        assert listening.hears(AGENT, start)
        for change in ({"rank": 9}, {"hash": 1}, {"digest": {"others": {}}}):
            assert not listening.hears(AGENT, {**start, **change}), change


def test_who_fails_before_it_says_who_it_is_ends_the_run_with_its_reason() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    line = CoordinatorConnection(listener.getsockname(), TOKEN, DEADLINE_S)
    log: list[str] = []
    rules = MessageRules(LOCKSTEP)
    monitor = RunMonitor(LOCKSTEP, Hub(listener, TOKEN, log.append, rules), log.append, None)
    monitor.listen()
    monitor.begin()
    try:
        line.send({**FAILED, "error": "Unsuitable: no such precision here", "caused_by_peer": False})
        assert monitor.complete.get(timeout=DEADLINE_S) is None
        assert (monitor.phase.status, monitor.phase.error) == ("failed", "Unsuitable: no such precision here")
    finally:
        monitor.close("failed")
        line.socket.close()


def test_a_coordinator_that_sends_vectors_to_a_worker_is_none() -> None:
    """No worker, server or parent takes any: nothing is received of them."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        line = CoordinatorConnection(listener.getsockname(), TOKEN, DEADLINE_S)
        sock, _ = listener.accept()
        with sock:
            sock.sendall(FRAME.pack(20, 8))
            with pytest.raises(CoordinatorGone, match=r"^the coordinator sent nonsense: a message had no possible"):
                line.receive()
        line.socket.close()


def test_an_algorithm_that_keeps_too_many_vectors_is_told_so(listening: Listening) -> None:
    client = CoordinatorClient(replace(JOB, coordinator=listening.address))
    client.open_snapshot_channel(0)
    kept = {f"kept.{i}": vector() for i in range(KEPT_LIMIT)}
    client.submit(CHECKPOINT, model(velocity=vector(), **kept))
    line = (
        rf"^a message had more vectors than it may: an algorithm may keep at most {KEPT_LIMIT} vectors, got x, buffers"
    )
    with pytest.raises(ValueError, match=line):
        client.submit(CHECKPOINT, model(velocity=vector(), one=vector(), **kept))
    deadline = time.monotonic() + DEADLINE_S
    while [message["kind"] for _, message in listening.heard] != ["hello", "snapshot"]:
        assert time.monotonic() < deadline, listening.log
        time.sleep(0.01)
    client._line.socket.close()
