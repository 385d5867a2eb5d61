"""Real processes that train on JPEG files."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from torch import nn

from tests.support.cases import prepared
from tests.support.prefork import Prefork

LINE = ["engine=dist", "model=import", f"model.target={__name__}.small_net", "nodes=2", "batch_size=6"]
LINE += ["data=imagenet-like", "data.classes=3", "data.samples_per_class=16", "data.test_per_class=4", "data.side=64"]
LINE += ["optimizer.lr=0.05", "budget.epochs=4", "eval.every_epochs=4"]


def small_net() -> nn.Module:
    """Enough to tell textures by their colours."""
    return nn.Sequential(
        nn.AvgPool2d(8), nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)
    )


@pytest.mark.parametrize("algo", ["sync", "gossip", "easgd"])
def test_training_on_files_lowers_the_loss(algo: str, prefork: Prefork, tmp_path: Path) -> None:
    """In lock-step for certain; free workers may each have made any part of the steps."""
    run = prefork.run(tmp_path / "run", f"algo={algo}", *LINE, f"data.path={tmp_path}/images", "data.workers=1")
    assert run.summary["status"] == "completed", run.err
    first, last = run.marks[0]["train_loss"], run.marks[-1]["train_loss"]
    assert math.isfinite(last)
    assert last < first if prepared(f"algo={algo}").algo.lockstep else last != first
