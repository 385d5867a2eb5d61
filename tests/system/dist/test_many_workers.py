"""Many workers on few cores: what a worker costs does not grow with the number of its peers."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from tests.support.prefork import Prefork

WORKERS, MOST_THREADS = 48, 6


def test_many_workers_of_gossip_start_and_complete_with_few_threads(prefork: Prefork, tmp_path: Path) -> None:
    options = ("algo=gossip", "engine=dist", "experiment=quadratic", f"nodes={WORKERS}", "budget.steps=50")
    run = prefork.start(tmp_path / "run", *options)
    threads: dict[int, int] = {}  # the most of each worker
    while (status := run.poll()) is None:
        for name, pid in run.processes().items():
            with contextlib.suppress(FileNotFoundError):  # it has ended
                if name.startswith("worker"):
                    threads[pid] = max(threads.get(pid, 0), len(os.listdir(f"/proc/{pid}/task")))
        time.sleep(0.2)
    assert status == 0, run.err
    assert len(threads) == WORKERS
    assert max(threads.values()) <= MOST_THREADS
    assert run.summary["status"] == "completed"
