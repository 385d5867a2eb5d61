"""A coordinator that is stopped, or waits for its disk, while its processes come to it: for longer than it lets anybody
wait at its door."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest

from dsgd.engines.dist.admission import STRANGER_S
from tests.support.long import all_long_but, long_but
from tests.support.prefork import Prefork
from tests.support.slow_disk import SYNC_S
from tests.support.watched_run import ALGORITHMS, BUDGET, SILENCE_S, SILENT, WatchedRun, start


def stop_at_start(
    prefork: Prefork, folder: Path, algo: str, first: str, timeout_s: int, stopped_s: float
) -> WatchedRun:
    """A run whose coordinator is stopped for a while. first: the process whose appearance is the moment."""
    watched = start(prefork, folder, *ALGORITHMS[algo], "nodes=2", BUDGET, f"engine.timeout_s={timeout_s}")
    found: dict[str, int] = {}

    def appeared() -> bool:
        found.update(watched.observe())
        return {"coordinator", first} <= found.keys()

    watched.run.until(appeared)
    coordinator = found["coordinator"]
    os.kill(coordinator, signal.SIGSTOP)
    watched.skip_pauses()
    time.sleep(stopped_s)
    with contextlib.suppress(ProcessLookupError):  # its command has given it up
        os.kill(coordinator, signal.SIGCONT)
    return watched


@pytest.mark.parametrize(
    ("algo", "first"),
    all_long_but(
        [("sync", "worker 1")],
        [(algo, first) for algo in ("sync", "gossip") for first in ("coordinator", "worker 1")],
    ),
)
def test_nobody_who_has_shown_the_token_is_turned_away(prefork: Prefork, tmp_path: Path, algo: str, first: str) -> None:
    """However long it lay there before the coordinator looked."""
    watched = stop_at_start(prefork, tmp_path / "run", algo, first, timeout_s=60, stopped_s=STRANGER_S + 1)
    watched.assert_ends("completed", 0)
    assert "no token in time" not in watched.run.err


@pytest.mark.long
@pytest.mark.parametrize("algo", long_but(["gossip"], ["sync", "gossip"]))
def test_a_coordinator_stopped_for_longer_than_the_limit_ends_the_run(
    prefork: Prefork, tmp_path: Path, algo: str
) -> None:
    watched = stop_at_start(prefork, tmp_path / "run", algo, "worker 1", timeout_s=5, stopped_s=8)
    assert watched.run.wait() == 1, watched.run.err
    assert "the coordinator has been silent for 5 s" in watched.run.err
    assert watched.run.processes() == {}


@pytest.mark.parametrize("algo", long_but(["sync"], ["sync", "gossip", "easgd"]))
def test_a_slow_disk_counts_against_nobody(prefork: Prefork, tmp_path: Path, algo: str) -> None:
    """The first files of the record take longer to be written than a member may be silent."""
    assert 3 * SYNC_S > SILENCE_S
    slow = ("data._target_=tests.support.slow_disk.SlowDisk", "budget.steps=20", SILENT)
    watched = start(prefork, tmp_path / "run", *ALGORITHMS[algo], "nodes=2", *slow)
    watched.assert_ends("completed", 0)
    assert watched.run.summary["workers_lost"] == 0
