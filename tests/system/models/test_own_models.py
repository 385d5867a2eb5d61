"""Models of a user's, by the command."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import call, shell
from tests.support.each_row import each_row

NETS = """
import torch
from torch import nn
number = 3
def few(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
def word(): return "no module"
def deep(): return nn.Conv2d(3, 10, 3)
"""
NORM = """
from torch import nn
def net(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))
"""


@each_row(
    ("line", "rule"),
    [
        (
            "model=torchvision model.name=resnet19 data=shapes data.channels=3",
            "model.name must be a classifier of torchvision.models",
        ),
        ("model=resnet18", "model=resnet18 needs images of 3 channels, got inputs of 1 x 8 x 8"),
        ("model=import model.target=net", "model.target must be a path like package.module.function, got 'net'"),
        ("model=import model.target=badnets.number", "model.target must be something to call, got 'badnets.number'"),
        ("model=import model.target=badnets.word", "model.target must give a torch.nn.Module, got str"),
        ("model=import model.target=badnets.few", "model.target=badnets.few must give 10 outputs for each sample"),
        (
            "model=import model.target=badnets.deep",
            "model.target=badnets.deep cannot take the inputs of the data, 1 x 8",
        ),
    ],
)
def test_models_that_cannot_be(line: str, rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "badnets.py").write_text(NETS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    result = call(*line.split(), "nodes=2", "budget.epochs=1", "hydra.run.dir=run")
    assert result.status == 2
    assert rule in result.err
    assert len(result.err.splitlines()) <= 2  # the engine's line may come before it
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@each_row(
    ("engine", "line", "key"),
    [
        ("sim", "algo=easgd eval.train_samples=1", "eval.train_samples"),
        ("sim", "eval.batch_norm=recalibrate eval.train_samples=1", "eval.train_samples"),
        ("dist", "eval.batch_norm=recalibrate eval.train_samples=1", "eval.train_samples"),
        ("dist", "batch_size=1", "batch_size"),
    ],
)
def test_one_sample_that_batch_norm_cannot_normalise_is_one_line(
    engine: str, line: str, key: str, tmp_path: Path
) -> None:
    (tmp_path / "onenorm.py").write_text(NORM)
    own = f"dsgd-run model=import model.target=onenorm.net engine={engine} nodes=2 cluster.gradient_s=0.01"
    ended = shell(f"{own} {line} budget.steps=2 hydra.run.dir=run", tmp_path, PYTHONPATH=str(tmp_path))
    assert ended.returncode == 1
    assert f"{key} must be >= 2 for this model, as batch norm has one value of a channel, got 1" in ended.stderr
    assert "Traceback" not in ended.stderr
    two = line.replace("=1", "=2")
    ended = shell(f"{own} {two} budget.steps=2 hydra.run.dir=two", tmp_path, PYTHONPATH=str(tmp_path))
    assert ended.returncode == 0, ended.stderr
