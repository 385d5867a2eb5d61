"""A worker that loses one of its two connections to the coordinator, and one that is stopped before it has joined."""

from __future__ import annotations

import os
import re
import signal
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from dsgd.algorithms import dpsgd, gossip, sync
from dsgd.engines.dist.control import Hub
from dsgd.engines.dist.frames import VectorLimit
from dsgd.engines.dist.job import EXIT_ORPHANED
from dsgd.engines.dist.launch.rendezvous import listen
from dsgd.engines.dist.worker.process import CoordinatorClient
from dsgd.worker import Worker
from tests.support.any_message import AnyMessage
from tests.support.forked import forked
from tests.support.prefork import Prefork
from tests.support.watched_run import BUDGET, FREE_RUNNING, LONG, SILENCE_S, SILENT, start

TOKEN = b"t" * 32
LOST = r"has (lost its connection for snapshots|died) after \d+ steps"  # died: where the coordinator looked late


# Algorithms of which connections of one worker break once, for snapshots or to others, while its process goes on
RANK, STEPS = 1, 20  # who loses it, and after how many steps


def cut(client: Any, peers: bool) -> None:
    """Shut down the connections to other workers, or the one to the coordinator that is not the one for control."""
    control = client._line.socket
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError), socket.socket(fileno=os.dup(int(name))) as other:
            is_control = os.path.sameopenfile(other.fileno(), control.fileno())
            if not is_control and (other.getpeername() != control.getpeername()) == peers:
                other.shutdown(socket.SHUT_RDWR)


class CutOffWorker:
    """A worker as its algorithm sees it, whose connection breaks after a step."""

    def __init__(self, worker: Worker, once: Path, peers: bool) -> None:
        self._worker = worker
        self._once = once
        self._peers = peers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)

    def step(self, g: Tensor) -> None:
        self._worker.step(g)
        if self._worker.rank == RANK and self._worker.steps == STEPS and not self._once.exists():
            self._once.touch()
            cut(self._worker._engine.client, self._peers)  # pyright: ignore[reportAttributeAccessIssue]


@dataclass(frozen=True)
class CutOff:
    """once: the path of a file that says that it has happened. peers: to the connections to other workers."""

    once: str = ""
    peers: bool = False

    async def train(self, worker: Worker) -> None:
        watched: Any = CutOffWorker(worker, Path(self.once), self.peers)
        await super().train(watched)  # pyright: ignore[reportAttributeAccessIssue]


@dataclass(frozen=True)
class Sync(CutOff, sync.Sync):
    pass


@dataclass(frozen=True)
class Gossip(CutOff, gossip.Gossip):
    pass


@dataclass(frozen=True)
class Dpsgd(CutOff, dpsgd.DPSGD):
    pass


def cut_off(algo: str, once: Path, peers: bool = False) -> tuple[str, ...]:
    """Options of a command line that put such a fault into an algorithm of this name."""
    target = f"algo._target_={__name__}.{algo.capitalize()}"
    return (f"algo={algo}", target, f"+algo.once='{once}'", f"+algo.peers={peers}")


def test_without_its_snapshots_a_worker_ends_a_run_in_lock_step(prefork: Prefork, tmp_path: Path) -> None:
    watched = start(prefork, tmp_path / "run", *cut_off("sync", tmp_path / "cut"), "nodes=3", LONG)
    watched.assert_ends("failed", 1)
    (line,) = watched.lines_about("worker 1")
    assert re.fullmatch(f"worker 1 {LOST}; sync cannot go on without it", line)


def test_without_its_snapshots_a_worker_is_lost_to_the_others(prefork: Prefork, tmp_path: Path) -> None:
    watched = start(prefork, tmp_path / "run", *cut_off("gossip", tmp_path / "cut"), "nodes=3", BUDGET)
    watched.wait_for_marks(1)
    watched.wait_for_output("worker 1 has")
    watched.skip_pauses()
    watched.assert_ends("completed", 0)
    (line,) = watched.lines_about("worker 1")
    assert re.fullmatch(f"worker 1 {LOST}; the others go on", line)
    assert watched.run.summary["workers_lost"] == 1


@pytest.mark.parametrize("algo", ["sync", "dpsgd"])
def test_a_cut_between_workers_in_lock_step_shows_at_the_next_message(
    algo: str, prefork: Prefork, tmp_path: Path
) -> None:
    """A run that has none to come is not harmed."""
    for steps, end in ((STEPS, ("completed", 0)), (STEPS + 1, ("failed", 1))):
        once = tmp_path / f"cut{steps}"
        options = (*cut_off(algo, once, peers=True), "nodes=3", f"budget.steps={steps}", "budget.epochs=null")
        start(prefork, tmp_path / f"run{steps}", *options).assert_ends(*end)
        assert once.exists()


def submit_for_ever(address: tuple[str, int]) -> None:
    """Do as a worker that answers every message with a large snapshot."""
    job: Any = SimpleNamespace(coordinator=address, token=TOKEN, timeout_s=60.0, patience_s=2.0)
    job.snapshot_limit = VectorLimit(1, 1 << 20, 1 << 22)
    client = CoordinatorClient(job)
    client.open_snapshot_channel(0)
    client.listen(lambda message: client.submit({"key": "k"}, {"x": torch.zeros(1 << 20)}))
    client.wait_for_exit()


def test_a_process_that_can_send_no_snapshots_ends(capfd: pytest.CaptureFixture[str]) -> None:
    """Its other connection lives, over which nothing says so."""
    listener = listen("127.0.0.1")
    (pid,) = forked(1, lambda _: submit_for_ever(listener.getsockname()))
    hub = Hub(listener, TOKEN, print, AnyMessage())
    is_cut = False
    while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0:
        for client, message, _ in hub.poll(0.02):
            if message is not None and message["kind"] == "hello":
                is_cut = True
                hub.drop(client)
        for client in hub._clients if is_cut else ():
            hub.send(client, {"kind": "mark"}, droppable=True)
    hub.close()
    assert os.waitstatus_to_exitcode(ended[1]) == EXIT_ORPHANED
    (line,) = capfd.readouterr().out.splitlines()
    assert line.startswith("no snapshot can be sent: the coordinator is gone")


def test_a_worker_that_is_stopped_before_training_ends_the_run(prefork: Prefork, tmp_path: Path) -> None:
    """Before it has joined, or while it warms up, which takes a minute."""
    watched = start(prefork, tmp_path / "run", *FREE_RUNNING["easgd"], "nodes=3", LONG, SILENT, "+data.step_s=60")
    watched.run.until(lambda: "worker 1" in watched.observe())
    os.kill(watched.observe()["worker 1"], signal.SIGSTOP)
    watched.assert_ends("failed", 1)
    told = rf"has been silent for {SILENCE_S:g} s|did not come within {SILENCE_S:g} s"
    assert re.match(rf"worker 1 ({told})", watched.run.summary["error"])
