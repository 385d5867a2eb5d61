"""The meeting in a store that everybody can read and write, torchrun's: who reads learns no token, and who writes can
spoil a meeting, in one line."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from nacl.public import PrivateKey
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from dsgd.engines.dist.launch import agreement
from dsgd.engines.dist.launch.agreement import VALUE_LIMIT, Meeting, meet, public_key
from dsgd.engines.dist.launch.rendezvous import NoMeeting
from dsgd.host.launcher import Launch
from tests.support.proc import listening, open_files

PATIENCE_S = 100.0
OFFER = Meeting("127.0.0.1", 12345, "outputs/run", {"nodes": 2, "cluster": {"slow": {"1": 2.0}}}, "dsgd 1, torch 2")
PUBLIC = public_key(PrivateKey.generate())
Outcome = tuple[Meeting, str]


@dataclass
class Agent:
    """The store that torchrun serves beside its workers."""

    store: TCPStore

    def launch(self, rank: int, nodes: int = 2, attempt: int = 0) -> Launch:
        port = self.store.port
        job = f"torchrun-none-127.0.0.1-{port}-{attempt}"
        return Launch("torchrun", rank, nodes, rank, nodes, "127.0.0.1", port, attempt, job, agent_store=True)

    def client(self) -> TCPStore:
        limit = timedelta(seconds=PATIENCE_S)
        return TCPStore("127.0.0.1", self.store.port, is_master=False, timeout=limit, wait_for_workers=False)

    def put(self, key: str, content: str) -> None:
        """Write what need not be UTF-8."""
        self.store.set(key, content.encode("utf-8", "surrogatepass"))  # pyright: ignore[reportArgumentType]

    def keys(self) -> list[str]:
        return [key for key in self.store.list_keys() if "dsgd" in key]


@pytest.fixture(autouse=True)
def _no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let rank 0 leave its verdict until a test that plays another rank has read it, however busy the machine."""
    monkeypatch.setattr(agreement, "VERDICT_MARGIN_S", PATIENCE_S)


@pytest.fixture
def agent() -> Agent:
    return Agent(TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))


def meeting(launch: Launch, object_to: Callable[[Meeting], str | None] = lambda _: None) -> Future[Outcome]:
    """Meet in a thread, as if it were a process."""
    outcome: Future[Outcome] = Future()

    def work() -> None:
        try:
            outcome.set_result(meet(launch, lambda: OFFER, object_to))
        except Exception as error:
            outcome.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return outcome


def failure(outcome: Future[Outcome]) -> str:
    error = outcome.exception(PATIENCE_S)
    assert isinstance(error, NoMeeting), error
    assert "\n" not in str(error)
    return str(error)


def test_all_ranks_get_the_offer_and_one_token_and_leave_nothing(agent: Agent) -> None:
    outcomes = [meeting(agent.launch(rank, 4)) for rank in (3, 1, 0, 2)]
    offers, tokens = zip(*[outcome.result(PATIENCE_S) for outcome in outcomes], strict=True)
    assert offers == (OFFER,) * 4
    assert len(set(tokens)) == 1
    assert len(bytes.fromhex(tokens[0])) == 32
    assert agent.keys() == []


def test_who_reads_all_that_ever_stands_there_learns_no_token(agent: Agent) -> None:
    """The test is rank 1 by hand: nothing is deleted before it says that it has read the verdict."""
    store, key = agent.client(), f"dsgd/{agent.launch(0).job}"
    first = meeting(agent.launch(0))
    seen = [store.get(key)]
    store.set(f"{key}/1", json.dumps({"objection": "", "public": PUBLIC}))
    seen.append(store.get(f"{key}/verdict"))
    assert set(agent.keys()) == {key, f"{key}/1", f"{key}/verdict"}
    store.delete_key(f"{key}/1")
    _, token = first.result(PATIENCE_S)
    for value in seen:
        assert token.encode() not in value
        assert bytes.fromhex(token) not in value
    assert list(json.loads(seen[1])["sealed"]) == ["1"]
    assert agent.keys() == []


def test_torchrun_may_start_all_again_with_the_same_store(agent: Agent) -> None:
    tokens = set()
    for attempt in range(3):
        outcomes = [meeting(agent.launch(rank, attempt=attempt)) for rank in (0, 1)]
        found = {outcome.result(PATIENCE_S)[1] for outcome in outcomes}
        assert len(found) == 1
        tokens |= found
    assert len(tokens) == 3
    assert agent.keys() == []


def test_an_objection_reaches_all_and_nothing_is_left(agent: Agent) -> None:
    launches = [agent.launch(rank, 3) for rank in range(3)]
    outcomes = [meeting(launch, lambda _: "no,\x1b[2J\nnever") for launch in launches]
    first, second, third = map(failure, outcomes)
    assert first == second == third == "rank 1: no,\\x1b[2J\\nnever"
    assert agent.keys() == []


def test_who_is_left_alone_by_rank_0_takes_its_answer_back(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 has offered, and is gone."""
    monkeypatch.setattr(agreement, "VERDICT_MARGIN_S", 0.5)
    key = f"dsgd/{agent.launch(0).job}"
    agent.store.set(key, offered())
    with pytest.raises(NoMeeting, match=r"^rank 1: rank 0 no longer answers at MASTER_ADDR=127\.0\.0\.1 MASTER_PORT="):
        agreement._attend(agent.launch(1), agent.client(), lambda _: None, time.monotonic())
    assert agent.keys() == [key]


def offered(**changes: Any) -> str:
    """An offer as rank 0 would write it."""
    fields: dict[str, Any] = {"host": "127.0.0.1", "port": 5, "folder": "f", "config": {}, "version": "v"}
    return json.dumps({**fields, **changes})


GARBAGE = ["", "{abc}", "[]", "{}", "null", "NaN", "[" * 500_000, '{"a":' * 100_000, "1" * 10_000, "\ud800"]
WRONG_OFFERS = [{"port": port} for port in (0, "5", True, 1 << 16)]
WRONG_OFFERS += [{"host": host} for host in ("coordinator.example", "127.0.0.1" * 100, "::1")]
WRONG_OFFERS += [{"config": []}, {"version": None}]


def test_an_offer_that_is_none_is_one_line(agent: Agent) -> None:
    offers = [*GARBAGE, json.dumps("x" * VALUE_LIMIT), *(offered(**changes) for changes in WRONG_OFFERS)]
    for attempt, content in enumerate(offers):
        launch = agent.launch(1, attempt=attempt)
        agent.put(f"dsgd/{launch.job}", content)
        line = failure(meeting(launch))
        assert line.startswith(f"rank 1: dsgd/{launch.job} in the store at MASTER_ADDR=127.0.0.1 MASTER_PORT=")
        assert line.endswith(" is not of this run: it cannot be read"), content[:30]


def test_a_public_key_that_is_none_is_one_line_in_all_ranks(agent: Agent) -> None:
    for attempt, public in enumerate(("0" * 64, "x" * 64, "ab")):
        first, *others = (agent.launch(rank, 3, attempt) for rank in range(3))
        agent.store.set(f"dsgd/{first.job}/1", json.dumps({"objection": "", "public": public}))
        outcomes = [meeting(launch) for launch in (first, others[1])]
        agent.client().get(f"dsgd/{first.job}/verdict")
        agent.store.delete_key(f"dsgd/{first.job}/1")
        lines = {failure(outcome) for outcome in outcomes}
        (line,) = lines
        assert line.startswith(f"rank 0: dsgd/{first.job}/1 in the store at ")
        assert "a public key must " in line
        assert agent.keys() == []


def test_an_answer_or_a_verdict_that_is_none_is_one_line(agent: Agent) -> None:
    for attempt, content in enumerate(GARBAGE):
        launch = agent.launch(0, attempt=attempt)
        agent.put(f"dsgd/{launch.job}/1", content)
        first = meeting(launch)
        agent.client().get(f"dsgd/{launch.job}/verdict")
        agent.store.delete_key(f"dsgd/{launch.job}/1")
        assert failure(first).endswith(" is not of this run: it cannot be read"), content[:30]
        assert agent.keys() == []
        agent.store.set(f"dsgd/{launch.job}", offered())
        agent.put(f"dsgd/{launch.job}/verdict", content)
        line = failure(meeting(agent.launch(1, attempt=attempt)))
        place = f"MASTER_ADDR=127.0.0.1 MASTER_PORT={agent.store.port}"
        assert line.endswith(f"/verdict in the store at {place} is not of this run: it cannot be read"), content[:30]
        agent.store.delete_key(f"dsgd/{launch.job}/verdict")
        agent.store.delete_key(f"dsgd/{launch.job}")


def test_a_token_that_rank_0_has_not_sealed_is_not_taken(agent: Agent) -> None:
    unsealed: list[dict[str, Any]] = [{}, {"1": 5}, {"1": ""}, {"1": "ab" * 64}, {"1": ["x"]}, {"2": "ab" * 64}]
    for attempt, sealed in enumerate(unsealed):
        launch = agent.launch(1, attempt=attempt)
        key = f"dsgd/{launch.job}"
        agent.store.set(key, offered())
        agent.store.set(f"{key}/verdict", json.dumps({"objection": "", "sealed": sealed}))
        line = failure(meeting(launch))
        assert line.startswith(f"rank 1: {key}/verdict in the store at ")
        assert " is not of this run: a sealed secret " in line, sealed


def test_an_offer_that_has_been_changed_opens_no_token(agent: Agent) -> None:
    """Its host would be where the token is shown."""
    key, reading = f"dsgd/{agent.launch(0).job}", threading.Event()

    def change(_: Meeting) -> None:
        reading.set()

    first = meeting(agent.launch(0))
    whole = json.loads(agent.client().get(key))
    agent.store.set(key, json.dumps({**whole, "host": "127.0.0.2"}))
    second = meeting(agent.launch(1), change)
    assert " is not of this run: a sealed secret has been changed" in failure(second)
    assert reading.is_set()
    first.result(PATIENCE_S)
    assert agent.keys() == []


@contextlib.contextmanager
def free_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    yield port


@pytest.mark.parametrize("objection", [None, "no"])
def test_a_store_of_our_own_ends_with_the_meeting(objection: str | None) -> None:
    """Under srun, or with torchrun's variables by hand."""
    before = open_files(os.getpid())
    with free_port() as port:
        launches = [Launch("slurm", rank, 2, rank, 2, "127.0.0.1", port, 0, "slurm-1.0-0") for rank in (0, 1)]
        outcomes = [meeting(launch, lambda _: objection) for launch in launches]
        if objection is None:
            assert [outcome.result(PATIENCE_S)[0] for outcome in outcomes] == [OFFER, OFFER]
        else:
            assert {failure(outcome) for outcome in outcomes} == {"rank 1: no"}
        del outcomes
        gc.collect()  # the errors hold their frames, as they do not in a process that ends
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        assert not {own for own, (_, bound) in listening().items() if bound == port}
    assert open_files(os.getpid()) - before == set()
