"""Random faults at random moments: whatever happens, a run ends as its algorithm says, and leaves nothing behind.

A sample of the schedules of `benchmarks/faults.py`, which has more of them.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.faults.pairs import EVERY, carry_out_pair, draw_pair
from tests.support.faults.schedules import draw
from tests.support.faults.trial import ROOT, Baselines, carry_out, has_traceback
from tests.support.prefork import Prefork

SAMPLE = range(17)


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
    if not disks and any(fault.victim == "disk" for fault in schedule.all_faults):
        pytest.skip("no file system can be mounted here")
    trial = carry_out(schedule, tmp_path / f"case{number:05}", prefork, baselines)
    assert trial.found == []


def test_a_traceback_of_torchrun_is_not_the_runs_whatever_the_clone_is_called() -> None:
    torchrun = traceback(f"{ROOT}/.venv/bin/torchrun", f"{ROOT}/.venv/lib/site-packages/torch/distributed/run.py")
    assert not has_traceback("", torchrun=True)
    assert not has_traceback(torchrun, torchrun=True)
    assert has_traceback(torchrun, torchrun=False)
    for name in (".venv/bin/dsgd-run", "dsgd/runner/life.py", "tests/support/slow_gradients.py"):
        assert has_traceback(torchrun + traceback("/usr/lib/python3.11/threading.py", f"{ROOT}/{name}"), torchrun=True)


def traceback(*files: str) -> str:
    frames = "".join(f'  File "{name}", line 10, in main\n    main()\n' for name in files)
    return f"Traceback (most recent call last):\n{frames}ValueError: /dsgd/ is no folder\n"


@pytest.mark.parametrize("number", [EVERY - 1])
def test_of_two_comparisons_in_one_folder_one_is_refused_or_comes_later(tmp_path: Path, number: int) -> None:
    trial = carry_out_pair(draw_pair(number), tmp_path / "pair", tmp_path / "alone")
    print(trial)
    assert trial.problems == []
