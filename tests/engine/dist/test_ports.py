"""What a run on this machine listens to: one port of each process, on this machine only, whoever knocks there."""

from __future__ import annotations

import os
import resource
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dsgd.engines.dist.admission import MAX_STRANGERS
from tests.support.long import long_but
from tests.support.prefork import Prefork
from tests.support.proc import LOOPBACK, listening, open_files
from tests.support.watched_run import ALGORITHMS, FREE_RUNNING, GONE_S, LOCKSTEP, LONG, results, start, undisturbed

SILENT_STRANGERS = 1200
DESCRIPTORS = 1024  # of a worker: fewer than strangers


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """For this process, which holds the strangers' ends."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = SILENT_STRANGERS + DESCRIPTORS
    if before[1] != resource.RLIM_INFINITY and before[1] < wanted:
        pytest.skip(f"this process may have {before[1]} descriptors only")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(wanted, before[0]), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def ports(pid: int) -> list[tuple[str, int]]:
    """The addresses that a process listens to, of IPv4 and IPv6."""
    bound = listening()
    return [bound[file] for file in open_files(pid) if file in bound]


def sockets(pid: int) -> int:
    return sum(file.startswith("socket:") for file in open_files(pid))


@pytest.mark.parametrize("algo", long_but(["sync", "easgd", "gossip"], {**FREE_RUNNING, **LOCKSTEP}))
def test_every_process_listens_on_one_port_of_this_machine(prefork: Prefork, tmp_path: Path, algo: str) -> None:
    """The coordinator, workers and servers; the command on none."""
    watched = start(prefork, tmp_path / "run", *ALGORITHMS[algo], "nodes=3", LONG)
    processes = watched.wait_for_marks() | {"command": watched.run.pid}
    found = {name: ports(pid) for name, pid in processes.items()}
    serving = {name for name in found if name.split()[0] in ("coordinator", "worker", "server")}
    assert len(serving) >= 4
    assert {name: len(of) for name, of in found.items()} == {name: int(name in serving) for name in found}
    assert {host for of in found.values() for host, _ in of} == {LOOPBACK}
    os.kill(watched.run.pid, signal.SIGINT)
    watched.assert_ends("interrupted", 130)


@pytest.mark.long
@pytest.mark.parametrize("algo", long_but(["dpsgd"], ["sync", "dpsgd", "gossip"]))
@pytest.mark.usefixtures("many_descriptors")
def test_more_silent_strangers_than_a_worker_has_descriptors_change_nothing(
    prefork: Prefork, tmp_path: Path, algo: str
) -> None:
    """They are dropped while they are there, and what they took is given back after they have gone."""
    options = (*ALGORITHMS[algo], "nodes=2")
    watched = start(prefork, tmp_path / "run", *options, LONG)
    pid = watched.wait_for_marks(2)["worker 1"]
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    held = sockets(pid)
    for address in ports(pid):
        with ExitStack() as stack:
            for _ in range(SILENT_STRANGERS):
                stack.enter_context(socket.create_connection(("127.0.0.1", address[1]), GONE_S))
            watched.wait_for_more_marks()
            watched.run.until(lambda: sockets(pid) <= held + MAX_STRANGERS)
        watched.run.until(lambda: sockets(pid) == held)
    watched.wait_for_more_marks()
    os.kill(watched.run.pid, signal.SIGINT)
    watched.assert_ends("interrupted", 130)
    assert watched.run.summary["workers_lost"] == 0
    assert watched.run.summary["messages_lost"] == 0
    if algo != "gossip":
        budget = f"budget.steps={watched.run.marks[-1]['samples'] // 2}"
        expected = undisturbed(prefork, tmp_path / "undisturbed", *options, budget)
        assert results(watched.run.marks) == results(expected.run.marks)
