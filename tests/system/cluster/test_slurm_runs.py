"""dsgd-run on four hosts that SLURM has given to it."""

from __future__ import annotations

import math
import shlex
import sys
from pathlib import Path

from tests.support.batch_jobs import QUADRATIC, RUN, Record, submit
from tests.support.slurm import Slurm

ALGORITHMS = ("sync", "easgd", "downpour", "gossip", "dpsgd", "delayfree")
LOCKSTEP = ("sync", "dpsgd", "delayfree")
# The hosts file that Debian makes: a machine's own name is an address that no other machine reaches.
DEBIAN = """
NAMES=/dev/shm/names-$SLURM_PROCID && sed "s/^10.78.0.[0-9]* $(hostname)\\$/127.0.1.1 $(hostname)/" /etc/hosts > $NAMES
umount /etc/hosts && mount --bind $NAMES /etc/hosts && getent hosts $(hostname) && exec "$@"
"""


def test_all_six_algorithms_train_on_four_hosts(slurm: Slurm, tmp_path: Path) -> None:
    """One record each, in a folder named after the step, and nothing left on the hosts."""
    lines = [f"'{QUADRATIC} algo={algo} nodes=4 budget.steps=40'" for algo in ALGORITHMS]
    command = f"srun {shlex.quote(sys.executable)} -m tests.support.several_runs {' '.join(lines)}"
    batch = submit(slurm, tmp_path, command, "--nodes=4")
    batch.ends("COMPLETED")
    assert batch.said.count("engine: dist, slurm has started 4 processes; time is the wall's") == len(ALGORITHMS)
    for algo in ALGORITHMS:
        record = Record(tmp_path / "outputs" / f"slurm-{batch.job}.0_{algo}_4")
        record.is_one_curve()
        marks, summary = record.marks, record.summary
        assert (summary["status"], summary["engine"], summary["algo"]) == ("completed", "dist", algo)
        assert (summary["nodes"], summary["workers_lost"]) == (4, 0)
        assert marks[-1]["samples"] == summary["samples"] >= 160
        if algo in LOCKSTEP:
            assert [mark["samples"] for mark in marks] == [0, 40, 80, 120, 160]
        # free workers may have made any part of the steps: one that made most of them leaves the mean of four anywhere
        last, first = marks[-1]["test_loss"], marks[0]["test_loss"]
        assert last < 0.5 * first if algo in LOCKSTEP else math.isfinite(last) and last != first
        logs = {path.name for path in (record.folder / "logs").iterdir()}
        assert logs >= {f"worker_{rank}.log" for rank in (1, 2, 3)}
    batch.leaves_nothing()


def test_a_host_whose_name_is_a_loopback_address_is_reached_all_the_same(slurm: Slurm, tmp_path: Path) -> None:
    (tmp_path / "debian").write_text(DEBIAN)
    command = f"{RUN} {QUADRATIC} algo=dpsgd nodes=3 budget.steps=10"
    script = f"srun unshare --mount sh {tmp_path / 'debian'} {command}"
    batch = submit(slurm, tmp_path, script, "--nodes=2", "--ntasks=3")
    batch.ends("COMPLETED")
    assert batch.said.count("127.0.1.1") == 3
    (folder,) = (tmp_path / "outputs").iterdir()
    assert Record(folder).summary["samples"] == 30


def test_a_contradiction_is_one_line_before_anything_is_written(slurm: Slurm, tmp_path: Path) -> None:
    line = "nodes must be SLURM_NTASKS=2, the processes started, got 3"
    batch = submit(slurm, tmp_path, f"srun {RUN} {QUADRATIC} nodes=3", "--nodes=2")
    batch.ends("FAILED")
    assert batch.slurm.job(batch.job)["ExitCode"] == "2:0"
    said = [text for text in batch.said.splitlines() if not text.startswith("srun: ")]
    assert line in said
    assert len(said) == 2, "each of the two says its own"
    assert not (tmp_path / "outputs").exists()
