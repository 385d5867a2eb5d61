"""A host that is cut off from a run on several hosts, which no launcher watches."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.batch_jobs import PATIENCE_S, RUN, SLOW, Record
from tests.support.command import environment
from tests.support.network import Network
from tests.support.watched_run import LONG, SILENCE_S, SILENT

ROOT = Path(__file__).parents[3]


def test_both_sides_of_a_cut_end_and_say_who_is_missing(network: Callable[..., Network], tmp_path: Path) -> None:
    """The coordinator's side has a record; the other one hears nothing of the coordinator any more."""
    made = network(hosts=2, rate="1gbit")
    line = shlex.split(f"{RUN} {SLOW} algo=dpsgd nodes=2 {LONG} {SILENT} hydra.run.dir={tmp_path}/run")
    processes: list[subprocess.Popen[str]] = []
    for rank, host in enumerate(made.hosts):
        place = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_ADDR": "h1"}
        variables = environment(PYTHONPATH=str(ROOT), MASTER_PORT="29500", **{k: str(v) for k, v in place.items()})
        pipe = subprocess.PIPE
        processes.append(made.popen(host, *line, env=variables, stdout=pipe, stderr=pipe, text=True))
    record, deadline = Record(tmp_path / "run"), time.monotonic() + PATIENCE_S
    while len(record.marks) < 3:
        assert all(process.poll() is None for process in processes)
        assert time.monotonic() < deadline
        time.sleep(0.05)
    made.cut(2)
    errors = [process.communicate(timeout=PATIENCE_S)[1] for process in processes]
    assert [process.returncode for process in processes] == [1, 1], errors
    assert record.summary["status"] == "failed"
    assert "worker 1 has been silent for" in record.summary["error"]
    assert record.summary["error"] in errors[0]
    assert f"the coordinator has been silent for {SILENCE_S:g} s" in errors[1]
    assert not made.processes(1)
    assert not made.processes(2)
