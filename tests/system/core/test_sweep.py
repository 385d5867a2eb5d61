"""A sweep: each job in a folder of its own, and the figures of all."""

from __future__ import annotations

import csv
import json
import signal
from pathlib import Path
from typing import NoReturn

import pytest

from dsgd.cli.compose import ConfigTree, plain
from tests.support.command import PATIENCE_S, lines, refusal, shell, start, summary, wait_until

NAME = "größe 2, oder 4"


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sweep, with a space, a comma and letters beyond ASCII in its name."""
    folder = tmp_path_factory.mktemp("sweep")
    line = "dsgd-run -m algo=sync,gossip nodes=2,4 budget.steps=6 eval.every_steps=2 target.accuracy=0.2"
    result = shell(f"""{line} "hydra.sweep.dir='{NAME}'" """, folder)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("record: ") == 4
    assert result.stderr.count("engine: sim") == 2  # once for each number of nodes, whatever the number of jobs
    return folder / NAME


def test_each_job_has_its_own_folder(swept: Path) -> None:
    folders = [path for path in sorted(swept.iterdir()) if path.is_dir()]
    assert [path.name for path in folders] == ["0_sync_2", "1_sync_4", "2_gossip_2", "3_gossip_4"]
    for path in folders:
        _, algo, nodes = path.name.split("_")
        last = summary(path)
        assert (last["algo"], last["nodes"], last["status"]) == (algo, int(nodes), "completed")
        assert lines(path) == 4


def test_a_sweep_does_not_overwrite_records(swept: Path) -> None:
    rule = "hydra.sweep.dir must not hold another run's record"
    assert refusal("-m", "nodes=2,4", f"hydra.sweep.dir='{swept}'").startswith(rule)


def test_the_figures_of_a_sweep(swept: Path, tmp_path: Path) -> None:
    result = shell(f"dsgd-plot '{swept}' --out 'Bilder für uns' --only loss_time,overview", tmp_path)
    assert result.returncode == 0, result.stderr
    out = tmp_path / "Bilder für uns"
    with (out / "summary.csv").open() as file:
        assert len(list(csv.reader(file))) == 1 + 4
    for name in ("loss_time.png", "overview.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")
        assert f"Bilder für uns/{name}" in result.stdout
    for algo in ("sync", "gossip"):
        assert algo in result.stdout


SLOW = """
import os, time
from dataclasses import dataclass
from dsgd.data.quadratic import Quadratic

@dataclass(frozen=True)
class Slow(Quadratic):
    def load(self, *arguments):
        data = super().load(*arguments)
        batch = data.batch

        def later(rank, step):
            if step >= 6 and not os.path.exists("go_on"):
                time.sleep(0.3)
            return batch(rank, step)

        data.batch = later
        return data
"""


def test_ctrl_c_ends_all_jobs_and_the_same_line_goes_on_with_what_is_missing(tmp_path: Path) -> None:
    """The first job has come to its end, two are in their midst, the last has not begun."""
    (tmp_path / "own.py").write_text(SLOW)
    line = "dsgd-run -m experiment=quadratic data._target_=own.Slow nodes=2 budget.steps=5,300,301,6 eval.every_steps=1"
    line += " sweep.jobs=2 resume=auto hydra.sweep.dir=swept"
    folders = [tmp_path / "swept" / f"{number}_sync_2" for number in range(4)]
    process = start(line, tmp_path, PYTHONPATH=".")
    wait_until(lambda: lines(folders[1]) >= 2 and lines(folders[2]) >= 2, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert [summary(folder)["status"] for folder in folders[:3]] == ["completed", "interrupted", "interrupted"]
    assert all((folder / "checkpoint.pt").exists() for folder in folders[1:3])
    assert not folders[3].exists()
    ended = (folders[0] / "summary.json").read_bytes()

    (tmp_path / "go_on").touch()
    again = shell(line, tmp_path, PYTHONPATH=".")
    assert again.returncode == 0, again.stderr
    assert [summary(folder)["status"] for folder in folders] == ["completed"] * 4
    assert (folders[0] / "summary.json").read_bytes() == ended
    assert again.stderr.splitlines()[-1].endswith(", 1 was there before")
    for folder, count in zip(folders, (5, 300, 301, 6), strict=True):
        found = [json.loads(text)["samples"] for text in (folder / "metrics.jsonl").read_text().splitlines()]
        assert found == [2 * step for step in range(count + 1)]


def test_the_jobs_of_a_sweep_share_its_folder() -> None:
    """However long it takes to check them: the time in the folder's name is that of the sweep."""
    jobs = ConfigTree().jobs(["seed=range(12)", "hydra.sweep.dir=${now:%H-%M-%S-%f}"], multirun=True)
    assert len({job.folder.parent for job in jobs}) == 1
    assert len({job.folder for job in jobs}) == 12


def test_an_interpolation_is_resolved_by_each_job(tmp_path: Path) -> None:
    """The folder of a job may be made from what is swept over."""
    sweep = ["-m", "algo=sync,gossip", "nodes=2", "optimizer.lr=0.1,0.2"]
    folder = "hydra.sweep.subdir=${hydra.runtime.choices.algo}-${optimizer.lr}"
    jobs = ConfigTree().jobs([*sweep[1:], f"hydra.sweep.dir={tmp_path}", folder], multirun=True)
    assert [job.folder.name for job in jobs] == ["sync-0.1", "sync-0.2", "gossip-0.1", "gossip-0.2"]


def test_each_job_is_what_hydra_composes_for_it() -> None:
    """Files are composed once for all jobs that choose the same: nothing of one job is left in the next."""
    tree = ConfigTree()
    sweep = ["algo=sync,gossip", "nodes=2,4", "experiment=slow_network", "~target.accuracy"]
    sweep += ["+cluster.slow_nodes={1: 2.0},{0: 3.0}", "model=resnet8", "hydra.sweep.dir=x"]
    jobs = tree.jobs(sweep, multirun=True)
    assert len(jobs) == 8
    for job in jobs:
        assert job.values == plain(tree.load([*job.overrides, "hydra.sweep.dir=x"]))


def test_the_runs_of_a_grid_are_the_jobs_of_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files are composed once, however many values are asked for one after the other."""
    tree, folder = ConfigTree(), ["hydra.sweep.dir=x", "hydra.sweep.subdir=y"]
    points = ["algo=sync,gossip", "optimizer.lr=0.1", "budget.time_s=9", "seed=3,4", "budget.time_s=5"]
    expected = tree.jobs([*points, *folder], multirun=True)
    assert tree.grid(points, folder) == expected
    assert [job.values["budget"]["time_s"] for job in expected] == [5] * 4

    def load(*arguments: object) -> NoReturn:
        raise AssertionError("composed again")

    monkeypatch.setattr(tree, "load", load)
    jobs = tree.grid([*points, "optimizer.lr=0.2", "optimizer.momentum=0.5"], folder)
    assert [(job.values["optimizer"]["lr"], job.values["optimizer"]["momentum"]) for job in jobs] == [(0.2, 0.5)] * 4


def test_a_group_of_the_users_own_can_be_swept(tmp_path: Path) -> None:
    (tmp_path / "recipe").mkdir()
    for name, rate in (("slow", 0.01), ("fast", 0.5)):
        (tmp_path / "recipe" / f"{name}.yaml").write_text(f"# @package _global_\noptimizer:\n  lr: {rate}\n")
    (tmp_path / "mine.yaml").write_text("defaults:\n  - config\n  - recipe: slow\n  - _self_\n")
    jobs = ConfigTree(str(tmp_path), "mine").jobs(["recipe=slow,fast", "hydra.sweep.dir=x"], multirun=True)
    assert [job.values["optimizer"]["lr"] for job in jobs] == [0.01, 0.5]
