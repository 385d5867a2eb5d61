"""Processes that die, or fall silent, in the middle of a run: who goes on, who ends, and what is left."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from dsgd.record.reader import find_runs
from tests.support.long import long_but
from tests.support.prefork import Prefork
from tests.support.watched_run import (
    BUDGET,
    CYCLE,
    FREE_RUNNING,
    LOCKSTEP,
    LONG,
    SILENCE_S,
    SILENT,
    STEPS,
    WatchedRun,
    results,
    start,
    undisturbed,
)  # fmt: skip

WITH_CENTRE = ("easgd", "downpour")

steady = pytest.mark.parametrize("algo", long_but(["gossip"], FREE_RUNNING))
lockstep = pytest.mark.parametrize("algo", long_but(["sync"], LOCKSTEP))
with_centre = pytest.mark.parametrize("algo", long_but(["easgd"], WITH_CENTRE))


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


@steady
def test_the_others_go_on_without_a_killed_worker(prefork: Prefork, tmp_path: Path, algo: str) -> None:
    watched = start(prefork, tmp_path / "run", *FREE_RUNNING[algo], "nodes=3", BUDGET)
    os.kill(watched.wait_for_marks()["worker 2"], signal.SIGKILL)
    watched.wait_for_output("worker 2 has died")
    watched.skip_pauses()
    watched.assert_ends("completed", 0)
    (line,) = watched.lines_about("worker 2")
    assert re.fullmatch(r"worker 2 has died after \d+ steps; the others go on", line)
    assert watched.run.summary["workers_lost"] == 1
    assert watched.run.summary["samples"] >= 3 * STEPS


@steady
def test_a_worker_that_was_stopped_briefly_resumes(prefork: Prefork, tmp_path: Path, algo: str) -> None:
    watched = start(prefork, tmp_path / "run", *FREE_RUNNING[algo], "nodes=3", LONG)
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


@steady
def test_a_silent_worker_takes_part_again_when_it_comes_back(prefork: Prefork, tmp_path: Path, algo: str) -> None:
    watched = start(prefork, tmp_path / "run", *FREE_RUNNING[algo], "nodes=3", LONG, SILENT)
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


@pytest.mark.long
@steady
def test_a_worker_that_stays_stopped_is_left_out_and_not_left_over(prefork: Prefork, tmp_path: Path, algo: str) -> None:
    watched = start(prefork, tmp_path / "run", *FREE_RUNNING[algo], "nodes=3", BUDGET, SILENT)
    os.kill(watched.wait_for_marks()["worker 0"], signal.SIGSTOP)
    watched.wait_for_output(f"worker 0 has been silent for {SILENCE_S:g} s")
    watched.skip_pauses()
    watched.assert_ends("completed", 0)
    assert watched.run.summary["workers_lost"] == 1


@pytest.mark.parametrize("algo", long_but(["easgd"], [name for name in FREE_RUNNING if name != "gossip push"]))
def test_a_replaced_worker_begins_where_the_others_are(prefork: Prefork, tmp_path: Path, algo: str) -> None:
    watched = start(prefork, tmp_path / "run", *FREE_RUNNING[algo], "nodes=3", LONG, "engine.restarts=1")
    first = watched.wait_for_marks()["worker 2"]
    os.kill(first, signal.SIGKILL)
    watched.wait_for_output("worker 2 is back, as a new process")
    second = watched.observe()["worker 2"]
    assert second != first
    computes(watched, second)
    os.kill(second, signal.SIGKILL)  # how far it came is said once it has gone
    watched.run.until(lambda: len(steps_told(watched, "worker 2")) == 2)
    before, after = steps_told(watched, "worker 2")
    assert after > before
    watched.wait_for_more_marks()
    os.kill(watched.run.pid, signal.SIGINT)
    watched.assert_ends("interrupted", 130)
    losses = [mark["test_loss"] for mark in watched.run.marks]
    assert max(losses[3:]) < losses[0]  # nobody went back to the beginning


@pytest.mark.long
def test_a_worker_that_dies_when_all_is_done_is_not_replaced(prefork: Prefork, tmp_path: Path) -> None:
    options = ("nodes=3", "budget.steps=120", "engine.restarts=1", SILENT)
    watched = start(prefork, tmp_path / "run", *FREE_RUNNING["gossip"], *options)
    found = watched.wait_for_marks()
    os.kill(found["worker 2"], signal.SIGSTOP)  # the last mark waits for it
    watched.skip_pauses()
    signal.sigtimedwait([], SILENCE_S / 2)
    os.kill(found["worker 1"], signal.SIGKILL)
    watched.assert_ends("completed", 0)


@steady
def test_nobody_left_is_a_failure(prefork: Prefork, tmp_path: Path, algo: str) -> None:
    watched = start(prefork, tmp_path / "run", *FREE_RUNNING[algo], "nodes=3", LONG)
    for name, pid in watched.wait_for_marks().items():
        if name.startswith("worker"):
            os.kill(pid, signal.SIGKILL)
    watched.assert_ends("failed", 1)
    assert "cannot go on without it" in watched.run.summary["error"]


# Servers


@with_centre
def test_a_killed_server_ends_the_run(prefork: Prefork, tmp_path: Path, algo: str) -> None:
    watched = start(prefork, tmp_path / "run", *FREE_RUNNING[algo], "nodes=3", "algo.servers=2", LONG)
    os.kill(watched.wait_for_marks()["server 1"], signal.SIGKILL)
    fails(watched, "server 1", rf"server 1 has died after \d+ steps; {algo} cannot go on without it$")


@with_centre
def test_a_silent_server_ends_the_run(prefork: Prefork, tmp_path: Path, algo: str) -> None:
    watched = start(prefork, tmp_path / "run", *FREE_RUNNING[algo], "nodes=3", "algo.servers=2", LONG, SILENT)
    os.kill(watched.wait_for_marks()["server 0"], signal.SIGSTOP)
    fails(watched, "server 0", "server 0 (has been silent|does not answer)")


@with_centre
def test_workers_wait_for_a_server_that_was_stopped_briefly(prefork: Prefork, tmp_path: Path, algo: str) -> None:
    watched = start(prefork, tmp_path / "run", *FREE_RUNNING[algo], "nodes=3", BUDGET)
    pid = watched.wait_for_marks()["server 0"]
    os.kill(pid, signal.SIGSTOP)
    signal.sigtimedwait([], 1.0)
    os.kill(pid, signal.SIGCONT)
    watched.skip_pauses()
    watched.assert_ends("completed", 0)
    assert watched.run.summary["workers_lost"] == 0


# Algorithms in lock-step


@lockstep
def test_a_killed_worker_ends_a_run_in_lock_step_which_can_go_on_later(
    prefork: Prefork, tmp_path: Path, algo: str
) -> None:
    watched = start(prefork, tmp_path / "run", *LOCKSTEP[algo], "nodes=3", BUDGET, "engine.checkpoint_every_s=0.2")
    os.kill(watched.wait_for_marks(5)["worker 1"], signal.SIGKILL)
    name = LOCKSTEP[algo][0].removeprefix("algo=")
    fails(watched, "worker 1", rf"worker 1 has died after \d+ steps; {name} cannot go on without it$")
    watched.skip_pauses()
    resumed = WatchedRun(
        prefork.start(tmp_path / "run", f"resume={tmp_path / 'run'}", "resume_trusted=true"), watched.shared
    )
    resumed.assert_ends("completed", 0)
    assert resumed.run.marks[-1]["samples"] == 3 * STEPS


@pytest.mark.long
@lockstep
def test_all_wait_for_a_worker_that_was_stopped_briefly(prefork: Prefork, tmp_path: Path, algo: str) -> None:
    options = (*LOCKSTEP[algo], "nodes=3", BUDGET)
    expected = undisturbed(prefork, tmp_path / "undisturbed", *options)
    watched = start(prefork, tmp_path / "run", *options)
    pid = watched.wait_for_marks()["worker 1"]
    os.kill(pid, signal.SIGSTOP)
    signal.sigtimedwait([], 1.0)
    os.kill(pid, signal.SIGCONT)
    watched.skip_pauses()
    watched.assert_ends("completed", 0)
    assert watched.lines_about("worker 1") == []
    assert results(watched.run.marks, CYCLE[algo]) == results(expected.run.marks, CYCLE[algo])


@pytest.mark.long
@lockstep
def test_a_silent_worker_ends_a_run_in_lock_step(prefork: Prefork, tmp_path: Path, algo: str) -> None:
    watched = start(prefork, tmp_path / "run", *LOCKSTEP[algo], "nodes=3", LONG, SILENT)
    os.kill(watched.wait_for_marks()["worker 1"], signal.SIGSTOP)
    fails(watched, "worker 1", "worker 1 (has been silent|does not answer)")


# The run itself


@pytest.mark.long
def test_a_machine_that_stood_still_has_lost_nobody(prefork: Prefork, tmp_path: Path) -> None:
    """For longer than anybody may be silent; the coordinator is the first to wake up."""
    watched = start(prefork, tmp_path / "run", "algo=dpsgd", "nodes=3", BUDGET, SILENT)
    found = watched.wait_for_marks()
    coordinator = found.pop("coordinator")
    found["the command"] = watched.run.pid
    for pid in (*found.values(), coordinator):
        os.kill(pid, signal.SIGSTOP)
    signal.sigtimedwait([], SILENCE_S + 1)
    os.kill(coordinator, signal.SIGCONT)
    signal.sigtimedwait([], 0.1)
    for pid in found.values():
        os.kill(pid, signal.SIGCONT)
    watched.skip_pauses()
    watched.assert_ends("completed", 0)
    assert [line for name in found for line in watched.lines_about(name)] == []


@pytest.mark.parametrize("algo", long_but(["easgd", "sync"], ["gossip", "easgd", "sync"]))
def test_nobody_outlives_a_killed_coordinator(prefork: Prefork, tmp_path: Path, algo: str) -> None:
    watched = start(prefork, tmp_path / "run", *{**FREE_RUNNING, **LOCKSTEP}[algo], "nodes=3", LONG)
    found = watched.wait_for_marks()
    os.kill(found["worker 1"], signal.SIGSTOP)
    os.kill(found["coordinator"], signal.SIGKILL)
    assert watched.run.wait() == 1
    assert len(watched.lines_about("the coordinator was killed by SIGKILL")) == 1
    assert find_runs([watched.run.folder])[0].status == "running"  # as any run without a summary
    watched.assert_nothing_left()


@pytest.mark.parametrize("algo", long_but(["easgd"], ["gossip", "easgd", "dpsgd"]))
def test_nobody_outlives_a_killed_parent(prefork: Prefork, tmp_path: Path, algo: str) -> None:
    watched = start(prefork, tmp_path / "run", *{**FREE_RUNNING, **LOCKSTEP}[algo], "nodes=3", LONG)
    found = watched.wait_for_marks()
    os.kill(found["worker 1"], signal.SIGSTOP)
    os.kill(found["coordinator"], signal.SIGSTOP)
    os.kill(watched.run.pid, signal.SIGKILL)
    assert watched.run.wait() == -signal.SIGKILL
    watched.assert_nothing_left()


@pytest.mark.parametrize("algo", ["gossip", "sync"])
def test_a_worker_killed_before_training_ends_the_run(prefork: Prefork, tmp_path: Path, algo: str) -> None:
    watched = start(prefork, tmp_path / "run", *{**FREE_RUNNING, **LOCKSTEP}[algo], "nodes=3", LONG, "+data.step_s=60")
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
    watched = start(
        prefork,
        tmp_path / "run",
        "algo=sync",
        "nodes=2",
        LONG,
        "data._target_=tests.support.slow_gradients.FailingEvaluation",
    )
    watched.assert_ends("failed", 1)
    assert watched.run.summary["error"] == "the evaluation failed: RuntimeError: no such loss"
    assert "Traceback" in watched.run.err
