"""Random faults at random moments: whatever happens, a run ends as its algorithm says, and leaves nothing behind.

A sample of the schedules of `benchmarks/faults.py`, which has more of them.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks.injected_faults.schedules import draw
from benchmarks.injected_faults.trial import Baselines, carry_out
from tests.support.prefork import Prefork

SAMPLE = (*range(17), 2000, 2001, 2002, 2003, 2004, 2006, 2007, 2008, 2027, 2028)


@pytest.fixture(scope="session")
def baselines(prefork_server: Prefork, tmp_path_factory: pytest.TempPathFactory) -> Baselines:
    return Baselines(prefork_server, tmp_path_factory.mktemp("undisturbed"))


@pytest.fixture(scope="session")
def disks(tmp_path_factory: pytest.TempPathFactory) -> bool:
    """Whether a disk of its own can be mounted for a run, and filled."""
    folder = tmp_path_factory.mktemp("disk")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(folder)], capture_output=True, check=False)
    if mounted.returncode == 0:
        subprocess.run(["umount", str(folder)], check=True)
    return mounted.returncode == 0


@pytest.mark.parametrize("number", SAMPLE)
def test_a_run_ends_as_its_algorithm_says_whatever_happens(
    prefork: Prefork, baselines: Baselines, disks: bool, tmp_path: Path, number: int
) -> None:
    schedule = draw(number)
    print(schedule)
    if not disks and any(fault.victim == "disk" for fault in (*schedule.faults, *schedule.later)):
        pytest.skip("no file system can be mounted here")
    trial = carry_out(schedule, tmp_path / f"case{number:05}", prefork, baselines)
    assert trial.found == []
