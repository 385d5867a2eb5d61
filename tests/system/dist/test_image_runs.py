"""Real processes that train on JPEG files."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from torch import nn

from dsgd.host.resources import cores
from tests.support.cases import prepared
from tests.support.prefork import Prefork
from tests.support.proc import processes

LINE = [
    "engine=dist",
    "model=import",
    f"model.target={__name__}.small_net",
    "nodes=2",
    "batch_size=6",
]
LINE += ["data=imagenet-like", "data.classes=3", "data.samples_per_class=16", "data.test_per_class=4", "data.side=64"]
LINE += ["optimizer.lr=0.05", "budget.epochs=4", "eval.every_epochs=4"]


def small_net() -> nn.Module:
    """Enough to tell textures by their colours."""
    return nn.Sequential(
        nn.AvgPool2d(8), nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)
    )


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"data.path={tmp_path_factory.mktemp('images') / 'generated'}"


@pytest.mark.parametrize("algo", ["sync", "gossip", "easgd"])
def test_training_on_files_lowers_the_loss(algo: str, images: str, prefork: Prefork, tmp_path: Path) -> None:
    """In lock-step for certain; free workers may each have made any part of the steps."""
    run = prefork.run(tmp_path / "run", f"algo={algo}", *LINE, images, "data.workers=1")
    assert run.summary["status"] == "completed", run.err
    first, last = run.marks[0]["train_loss"], run.marks[-1]["train_loss"]
    assert math.isfinite(last)
    assert last < first if prepared(f"algo={algo}").algo.lockstep else last != first


def test_the_workers_of_a_machine_share_its_cores_for_decoding(images: str, prefork: Prefork, tmp_path: Path) -> None:
    """Together they start no more decoding processes than there are cores, but one each; the coordinator as many as a
    worker."""
    share = max(1, cores() // 2)
    run = prefork.start(tmp_path / "run", *LINE, images, "budget.epochs=1000", "eval.every_epochs=1000")
    run.until(
        lambda: (
            {"worker 0", "worker 1"} <= run.processes().keys()
            and all(decoding(worker) >= share for worker in workers(run.processes()))
        )
    )
    assert [decoding(worker) for worker in workers(run.processes())] == [share] * 2
    os.kill(run.pid, 2)
    run.wait()
    assert run.summary["status"] == "interrupted", run.err


def workers(named: dict[str, int]) -> list[int]:
    return [pid for name, pid in named.items() if name.startswith("worker")]


def decoding(worker: int) -> int:
    """How many decoding processes it has."""
    return sum(process.parent == worker for process in processes())
