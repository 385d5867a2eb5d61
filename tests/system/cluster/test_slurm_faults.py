"""What a cluster does to jobs, and what then becomes of their runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dsgd.record.checkpoint_file import NAME, read_header
from tests.support.batch_jobs import QUADRATIC, REQUEUE, RUN, SLOW, Record, submit
from tests.support.prefork import Prefork
from tests.support.slurm import Slurm
from tests.support.valid_record import problems
from tests.support.watched_run import BUDGET, LONG, results

# The hosts file that Debian makes: a machine's own name is an address that no other machine reaches.
DEBIAN = """
NAMES=/dev/shm/names-$SLURM_PROCID && sed "s/^10.78.0.[0-9]* $(hostname)\\$/127.0.1.1 $(hostname)/" /etc/hosts > $NAMES
umount /etc/hosts && mount --bind $NAMES /etc/hosts && getent hosts $(hostname) && exec "$@"
"""
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
    """It gives its hosts to one of higher priority: SIGUSR1, SIGTERM at once after it, and a new start."""
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
        assert problems(record.folder) == []
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
    assert problems(record.folder) == []
    line = line.replace(LONG, f"budget.steps={record.marks[-1]['samples'] // 2}")
    expected = undisturbed(prefork, tmp_path / "undisturbed", line)
    assert results(record.marks) == results(expected.marks)
    assert "as the resumed run" in batch.said


def test_a_host_whose_name_is_a_loopback_address_is_reached_all_the_same(slurm: Slurm, tmp_path: Path) -> None:
    (tmp_path / "debian").write_text(DEBIAN)
    command = f"{RUN} {QUADRATIC} algo=dpsgd nodes=3 budget.steps=10"
    script = f"srun unshare --mount sh {tmp_path / 'debian'} {command}"
    batch = submit(slurm, tmp_path, script, "--nodes=2", "--ntasks=3")
    batch.ends("COMPLETED")
    assert batch.said.count("127.0.1.1") == 3
    (folder,) = (tmp_path / "outputs").iterdir()
    assert Record(folder).summary["samples"] == 30
