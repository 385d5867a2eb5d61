"""A worker that loses one of its two connections to the coordinator, and one that is stopped before it has joined."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dsgd.engines.dist.control import Hub
from dsgd.engines.dist.job import EXIT_ORPHANED
from dsgd.engines.dist.launch.rendezvous import listen
from tests.support.any_message import AnyMessage
from tests.support.cut_connections import cut_off
from tests.support.long import long_but
from tests.support.prefork import Prefork
from tests.support.watched_run import ALGORITHMS, BUDGET, LONG, SILENCE_S, SILENT, start

LOST = r"has (lost its connection for snapshots|died) after \d+ steps"  # died: where the coordinator looked late


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


@pytest.mark.long
def test_without_its_snapshots_a_worker_is_replaced(prefork: Prefork, tmp_path: Path) -> None:
    options = (*cut_off("gossip", tmp_path / "cut"), "nodes=3", BUDGET, "engine.restarts=1")
    watched = start(prefork, tmp_path / "run", *options)
    watched.wait_for_marks(1)
    watched.wait_for_output("worker 1 is back, as a new process")
    watched.skip_pauses()
    watched.assert_ends("completed", 0)
    assert watched.run.summary["workers_lost"] == 0


SUBMITTING = """
import sys, torch
from types import SimpleNamespace
from dsgd.engines.dist.frames import VectorLimit
from dsgd.engines.dist.job import Limits
from dsgd.engines.dist.worker.process import CoordinatorClient
job = SimpleNamespace(coordinator=("127.0.0.1", int(sys.argv[1])), token=b"t" * 32, limits=Limits(60.0, 2.0))
job.snapshot_limit = VectorLimit(1, 1 << 20, 1 << 22)
client = CoordinatorClient(job)
client.open_snapshot_channel(0)
client.listen(lambda message: client.submit({"key": "k"}, {"x": torch.zeros(1 << 20)}))
client.wait_for_exit()
"""


def test_a_process_that_can_send_no_snapshots_ends(tmp_path: Path) -> None:
    """Its other connection lives, over which nothing says so."""
    listener = listen("127.0.0.1")
    hub = Hub(listener, b"t" * 32, print, AnyMessage())
    command = [sys.executable, "-c", SUBMITTING, str(listener.getsockname()[1])]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3])
    is_cut = False
    while process.poll() is None:
        for client, message, _ in hub.poll(0.02):
            if message is not None and message["kind"] == "hello":
                is_cut = True
                hub.drop(client)
        for client in hub._clients if is_cut else ():
            hub.send(client, {"kind": "mark"}, droppable=True)
    out, _ = process.communicate()
    hub.close()
    assert process.returncode == EXIT_ORPHANED
    assert len(out.splitlines()) == 1
    assert out.startswith("no snapshot can be sent: the coordinator is gone")


@pytest.mark.parametrize("algo", long_but(["easgd"], ["gossip", "sync", "easgd"]))
def test_a_worker_that_is_stopped_before_training_ends_the_run(prefork: Prefork, tmp_path: Path, algo: str) -> None:
    """Before it has joined, or while it warms up, which takes a minute."""
    watched = start(prefork, tmp_path / "run", *ALGORITHMS[algo], "nodes=3", LONG, SILENT, "+data.step_s=60")
    watched.run.until(lambda: "worker 1" in watched.observe())
    os.kill(watched.observe()["worker 1"], signal.SIGSTOP)
    watched.assert_ends("failed", 1)
    told = rf"has been silent for {SILENCE_S:g} s|did not come within {SILENCE_S:g} s"
    assert re.match(rf"worker 1 ({told})", watched.run.summary["error"])


@pytest.mark.long
def test_a_worker_that_warms_up_for_longer_than_the_limit_is_not_silent(prefork: Prefork, tmp_path: Path) -> None:
    """Nobody else waits for it by a limit of their own, either."""
    slow = ("+data.step_s=60", SILENT, "budget.steps=20")
    watched = start(prefork, tmp_path / "run", *ALGORITHMS["gossip"], "nodes=2", *slow)
    watched.run.until(lambda: all((tmp_path / f"run.skip.{rank}").exists() for rank in range(2)))
    signal.sigtimedwait([], SILENCE_S + 1)
    watched.skip_pauses()
    watched.assert_ends("completed", 0)
