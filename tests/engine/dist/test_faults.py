"""Processes that die, or fall silent, in the middle of a run: who goes on, who ends, and what is left.

Once each row of the table in docs/explanation/real_processes.md, by real signals. `tests/system/dist/test_faults.py`
has what takes long."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

from dsgd.record.reader import find_runs
from tests.support.prefork import Prefork
from tests.support.watched_run import (
    BUDGET,
    FREE_RUNNING,
    LONG,
    SILENCE_S,
    SILENT,
    STEPS,
    WatchedRun,
    resume,
    start,
)  # fmt: skip

GOSSIP, EASGD, SYNC = (
    (*FREE_RUNNING["gossip"], "nodes=3"),
    (*FREE_RUNNING["easgd"], "nodes=3"),
    ("algo=sync", "nodes=3"),
)


def cpu_s(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def computes(watched: WatchedRun, pid: int) -> None:
    """Wait until a process has used processor time for several steps."""
    before = cpu_s(pid)
    watched.run.until(lambda: cpu_s(pid) > before + 0.05)


def steps_told(watched: WatchedRun, name: str) -> list[int]:
    found = [re.search(r"after (\d+) steps", line) for line in watched.lines_about(f"{name} has died")]
    return [int(match[1]) for match in found if match]


def fails(watched: WatchedRun, name: str, how: str) -> None:
    """The run must fail with one line that names the process to blame."""
    watched.assert_ends("failed", 1)
    (line,) = watched.lines_about(name)
    assert re.match(how, line)
    assert watched.run.summary["error"] == line


# Algorithms that go on without a worker


def test_the_others_go_on_without_a_killed_worker(prefork: Prefork, tmp_path: Path) -> None:
    watched = start(prefork, tmp_path / "run", *GOSSIP, BUDGET)
    os.kill(watched.wait_for_marks()["worker 2"], signal.SIGKILL)
    watched.wait_for_output("worker 2 has died")
    watched.skip_pauses()
    watched.assert_ends("completed", 0)
    (line,) = watched.lines_about("worker 2")
    assert re.fullmatch(r"worker 2 has died after \d+ steps; the others go on", line)
    assert watched.run.summary["workers_lost"] == 1
    assert watched.run.summary["samples"] >= 3 * STEPS


def test_a_worker_that_was_stopped_briefly_resumes(prefork: Prefork, tmp_path: Path) -> None:
    watched = start(prefork, tmp_path / "run", *GOSSIP, LONG)
    found = watched.wait_for_marks()
    pid, other = found["worker 2"], found["worker 0"]
    os.kill(pid, signal.SIGSTOP)
    computes(watched, other)
    os.kill(pid, signal.SIGCONT)
    computes(watched, pid)
    watched.wait_for_more_marks()
    os.kill(watched.run.pid, signal.SIGINT)
    watched.assert_ends("interrupted", 130)
    assert watched.lines_about("worker 2") == []
    assert watched.run.summary["workers_lost"] == 0


def test_a_silent_worker_takes_part_again_when_it_comes_back(prefork: Prefork, tmp_path: Path) -> None:
    watched = start(prefork, tmp_path / "run", *GOSSIP, LONG, SILENT)
    pid = watched.wait_for_marks()["worker 2"]
    os.kill(pid, signal.SIGSTOP)
    watched.wait_for_output(f"worker 2 has been silent for {SILENCE_S:g} s")
    watched.wait_for_more_marks()
    os.kill(pid, signal.SIGCONT)
    watched.wait_for_output("worker 2 is heard of again")
    computes(watched, pid)
    os.kill(watched.run.pid, signal.SIGINT)
    watched.assert_ends("interrupted", 130)
    assert watched.run.summary["workers_lost"] == 0


def test_nobody_left_is_a_failure(prefork: Prefork, tmp_path: Path) -> None:
    watched = start(prefork, tmp_path / "run", *GOSSIP, LONG)
    for name, pid in watched.wait_for_marks().items():
        if name.startswith("worker"):
            os.kill(pid, signal.SIGKILL)
    watched.assert_ends("failed", 1)
    assert "cannot go on without it" in watched.run.summary["error"]


# Servers


def test_a_killed_server_ends_the_run(prefork: Prefork, tmp_path: Path) -> None:
    watched = start(prefork, tmp_path / "run", *EASGD, "algo.servers=2", LONG)
    os.kill(watched.wait_for_marks()["server 1"], signal.SIGKILL)
    fails(watched, "server 1", r"server 1 has died after \d+ steps; easgd cannot go on without it$")


def test_a_silent_server_ends_the_run(prefork: Prefork, tmp_path: Path) -> None:
    watched = start(prefork, tmp_path / "run", *EASGD, "algo.servers=2", LONG, SILENT)
    os.kill(watched.wait_for_marks()["server 0"], signal.SIGSTOP)
    fails(watched, "server 0", "server 0 (has been silent|does not answer)")


# Algorithms in lock-step


def test_a_killed_worker_ends_a_run_in_lock_step_which_can_go_on_later(prefork: Prefork, tmp_path: Path) -> None:
    watched = start(prefork, tmp_path / "run", *SYNC, BUDGET, "engine.checkpoint_every_s=0.2")
    os.kill(watched.wait_for_marks(5)["worker 1"], signal.SIGKILL)
    fails(watched, "worker 1", r"worker 1 has died after \d+ steps; sync cannot go on without it$")
    resumed = resume(prefork, watched)
    resumed.assert_ends("completed", 0)
    assert resumed.run.marks[-1]["samples"] == 3 * STEPS


def test_a_silent_worker_ends_a_run_in_lock_step(prefork: Prefork, tmp_path: Path) -> None:
    watched = start(prefork, tmp_path / "run", *SYNC, LONG, SILENT)
    os.kill(watched.wait_for_marks()["worker 1"], signal.SIGSTOP)
    fails(watched, "worker 1", "worker 1 (has been silent|does not answer)")


# The run itself


def test_nobody_outlives_a_killed_coordinator(prefork: Prefork, tmp_path: Path) -> None:
    watched = start(prefork, tmp_path / "run", *SYNC, LONG)
    found = watched.wait_for_marks()
    os.kill(found["worker 1"], signal.SIGSTOP)
    os.kill(found["coordinator"], signal.SIGKILL)
    assert watched.run.wait() == 1
    assert len(watched.lines_about("the coordinator was killed by SIGKILL")) == 1
    assert find_runs([watched.run.folder])[0].status == "running"  # as any run without a summary
    watched.assert_nothing_left()


def test_nobody_outlives_a_killed_parent(prefork: Prefork, tmp_path: Path) -> None:
    watched = start(prefork, tmp_path / "run", *EASGD, LONG)
    found = watched.wait_for_marks()
    os.kill(found["worker 1"], signal.SIGSTOP)
    os.kill(found["coordinator"], signal.SIGSTOP)
    os.kill(watched.run.pid, signal.SIGKILL)
    assert watched.run.wait() == -signal.SIGKILL
    watched.assert_nothing_left()


def test_a_worker_killed_before_training_ends_the_run(prefork: Prefork, tmp_path: Path) -> None:
    watched = start(prefork, tmp_path / "run", *GOSSIP, LONG, "+data.step_s=60")
    watched.run.until((tmp_path / "run.skip.1").exists)  # it warms up, which takes a minute
    os.kill(watched.observe()["worker 1"], signal.SIGKILL)
    watched.skip_pauses()  # so that the others end theirs
    fails(watched, "worker 1", "worker 1 has died$")


def test_a_worker_may_die_while_its_snapshots_wait_for_evaluation(prefork: Prefork, tmp_path: Path) -> None:
    options = ("data=digits", "model=mlp", "batch_size=2", "budget.epochs=null", LONG)
    lagging = (*options, "algo=gossip", "nodes=3", "eval.every_epochs=null", "eval.every_samples=6")
    watched = WatchedRun(prefork.start(tmp_path / "run", "engine=dist", *lagging), set(os.listdir("/dev/shm")))
    os.kill(watched.wait_for_marks()["worker 1"], signal.SIGKILL)
    watched.wait_for_output("worker 1 has died")
    watched.wait_for_more_marks()
    os.kill(watched.run.pid, signal.SIGINT)
    watched.assert_ends("interrupted", 130)
    assert watched.run.summary["workers_lost"] == 1
    samples = [mark["samples"] for mark in watched.run.marks]
    assert samples == sorted(samples)


def test_an_evaluation_that_raises_ends_the_run_and_is_reported(prefork: Prefork, tmp_path: Path) -> None:
    failing = "data._target_=tests.support.slow_gradients.FailingEvaluation"
    watched = start(prefork, tmp_path / "run", "algo=sync", "nodes=2", LONG, failing)
    watched.assert_ends("failed", 1)
    assert watched.run.summary["error"] == "the evaluation failed: RuntimeError: no such loss"
    assert "Traceback" in watched.run.err
