"""What a cluster does to jobs, and what then becomes of their runs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dsgd.record.checkpoint_file import NAME, read_header
from tests.support.batch_jobs import REQUEUE, RUN, SLOW, Record, submit
from tests.support.prefork import Prefork
from tests.support.slurm import Slurm
from tests.support.watched_run import BUDGET, LONG, SILENT, STEPS, results

MOMENTUM = "optimizer.momentum=0.9 optimizer.lr=0.01"


@pytest.fixture
def prefork() -> Iterator[Prefork]:
    with closing(Prefork()) as prefork:
        yield prefork


def undisturbed(prefork: Prefork, folder: Path, line: str) -> Record:
    """The same run on this machine, without pauses. line: of the command."""
    fast = [text for text in line.split() if not text.startswith(("data._target_", "+data."))]
    run = prefork.run(folder, *fast, "engine=dist", "resume=null")
    assert run.wait() == 0, run.err
    return Record(folder)


def test_a_preempted_job_goes_on_by_itself_as_if_nothing_had_been(
    slurm: Slurm, prefork: Prefork, tmp_path: Path
) -> None:
    """A job with two steps has to give its hosts to one of higher priority, and is started again by SLURM. It has
    SIGUSR1 first and SIGTERM at once after it."""
    skip_file = tmp_path / "skip_pauses"
    lines = {
        algo: f"{SLOW} algo={algo} {MOMENTUM} nodes=2 {BUDGET} +data.step_s=0.04 +data.skip_file={skip_file}"
        for algo in ("sync", "dpsgd")
    }
    steps = [f"srun --overlap {RUN} {line} hydra.run.dir={tmp_path}/{algo} &" for algo, line in lines.items()]
    options = ("--nodes=2", "--exclusive", "--signal=USR1@60", "--time=10")
    batch = submit(slurm, tmp_path, "\n".join([*steps, *["wait -n || exit"] * len(steps)]), *options)
    records = {algo: Record(tmp_path / algo) for algo in lines}
    batch.until(lambda: all(len(record.marks) >= 3 for record in records.values()))
    high = slurm.submit("hostname", "--partition=high", "--nodes=4", "--exclusive", "--output=/dev/null")
    assert slurm.wait(high) == "COMPLETED"
    kept = {algo: read_header(record.folder / NAME)["lines"] for algo, record in records.items()}
    skip_file.touch()
    batch.ends("COMPLETED")
    assert batch.restarts == 1
    for algo, record in records.items():
        record.is_one_curve()
        assert 3 <= kept[algo] < len(record.marks)
        assert record.summary["status"] == "completed"
        expected = undisturbed(prefork, tmp_path / f"{algo} undisturbed", lines[algo])
        assert results(record.marks) == results(expected.marks)
        assert not (record.folder / NAME).exists()


def test_before_its_time_limit_a_job_has_itself_started_again(slurm: Slurm, prefork: Prefork, tmp_path: Path) -> None:
    """The warning comes a minute before the end, which here is soon after the start, maybe before the run has begun;
    SLURM looks twice a minute. The run's folder is the default one."""
    line = f"{SLOW} algo=sync {MOMENTUM} nodes=2 {LONG}"
    options = ("--nodes=2", "--signal=USR1@60", "--time=1")
    batch = submit(slurm, tmp_path, f"srun {RUN} {line}; {REQUEUE}", *options)
    record = Record(tmp_path / "outputs" / f"slurm-{batch.job}.0_sync_2")
    batch.until(lambda: batch.restarts > 0 and (record.folder / "summary.json").exists())
    before = len(record.marks)
    assert record.summary["status"] == "interrupted"
    batch.until(lambda: len(record.marks) > before + 2)
    slurm.run("scancel", batch.job)
    batch.ends("CANCELLED")
    batch.leaves_nothing()
    record.is_one_curve()
    line = line.replace(LONG, f"budget.steps={record.marks[-1]['samples'] // 2}")
    expected = undisturbed(prefork, tmp_path / "undisturbed", line)
    assert results(record.marks) == results(expected.marks)
    assert "as the resumed run" in batch.said


def test_a_cancelled_job_leaves_a_checkpoint_and_is_not_started_again(slurm: Slurm, tmp_path: Path) -> None:
    script = f"srun {RUN} {SLOW} algo=easgd nodes=2 {LONG} hydra.run.dir={tmp_path}/run; {REQUEUE}"
    batch = submit(slurm, tmp_path, script, "--nodes=2")
    record = Record(tmp_path / "run")
    batch.until(lambda: len(record.marks) >= 3)
    slurm.run("scancel", batch.job)
    batch.ends("CANCELLED")
    batch.leaves_nothing()
    assert batch.restarts == 0
    assert record.summary["status"] == "interrupted"
    assert read_header(record.folder / NAME)["lines"] >= 3


def test_a_killed_task_leaves_the_others_of_gossip_to_go_on(slurm: Slurm, tmp_path: Path) -> None:
    skip_file = tmp_path / "skip_pauses"
    script = f"srun {RUN} {SLOW} +data.skip_file={skip_file} algo=gossip nodes=3 {BUDGET} hydra.run.dir={tmp_path}/run"
    batch = submit(slurm, tmp_path, script, "--nodelist=h[1-3]")
    record = Record(tmp_path / "run")
    batch.until(lambda: len(record.marks) >= 3)
    os.kill(task(slurm, 3), signal.SIGKILL)
    batch.until(lambda: "worker 2 has died after" in batch.said)
    skip_file.touch()
    batch.ends("FAILED")
    batch.leaves_nothing()
    assert slurm.job(batch.job)["ExitCode"] == "137:0", "that of the killed task; the others have ended well"
    summary = record.summary
    assert (summary["status"], summary["workers_lost"]) == ("completed", 1)
    assert summary["samples"] >= 3 * STEPS


def test_a_node_that_goes_down_ends_the_run_and_the_job_goes_on_without_it(slurm: Slurm, tmp_path: Path) -> None:
    """Its power fails: the others hear nothing of it any more, and then SLURM does not, either. The job is started
    again on hosts that are left."""
    skip_file = tmp_path / "skip_pauses"
    often = "engine.checkpoint_every_s=0.5"
    script = f"srun {RUN} {SLOW} +data.skip_file={skip_file} {SILENT} algo=dpsgd nodes=2 {BUDGET} {often}"
    batch = submit(slurm, tmp_path, f"{script} hydra.run.dir={tmp_path}/run; {REQUEUE}", "--nodes=2")
    record = Record(tmp_path / "run")
    batch.until(lambda: len(record.marks) >= 6)
    slurm.crash(2)
    batch.until(lambda: "dpsgd cannot go on without it" in batch.said)
    assert "worker 1 has been silent for" in batch.said
    skip_file.touch()
    slurm.report(2)
    batch.ends("COMPLETED")
    assert batch.restarts == 1
    hosts = slurm.run("scontrol", "show", "hostnames", slurm.job(batch.job)["NodeList"]).stdout.split()
    assert len(hosts) == 2
    assert "h2" not in hosts
    assert record.summary["status"] == "completed"
    record.is_one_curve()


def task(slurm: Slurm, node: int) -> int:
    """The process that srun has started on a node."""
    # a script in a folder with a space in its path is started by sh, and named after its interpreter
    (pid,) = (pid for pid, name in slurm.processes(node).items() if name in ("dsgd-run", "python"))
    return pid
