"""Models of a user's, by the command."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import call
from tests.support.each_row import each_row

NETS = """
import torch
from torch import nn
number = 3
def few(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
def word(): return "no module"
def deep(): return nn.Conv2d(3, 10, 3)
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
