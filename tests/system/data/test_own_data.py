"""Data of a user's, by the command."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import call, marks
from tests.support.each_row import each_row
from tests.unit.data.test_own_data import HERE, LINE


@each_row(
    ("target", "rule"),
    [
        ("mean", "data.target=tests.unit.data.test_own_data.mean fails: RuntimeError: no disk today"),
        ("three", "must give two data sets, for training and for test, got 3 things"),
        ("empty", "must give samples, got sets of 40 and 0"),
        ("words", "sample 0 must be a tensor or array, and a label; TypeError"),
    ],
)
def test_data_that_cannot_be_are_one_line(
    target: str, rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = call(*LINE, f"data.target={HERE}{target}", "engine=sim", "hydra.run.dir=run")
    assert result.status == 2
    assert rule in result.err
    assert len(result.err.splitlines()) <= 2  # the engine's line may come before it
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("kind", "model"), [("bytes", "resnet8"), ("features", "mlp")])
def test_the_kernels_serve_imported_data_and_the_loop_computes_what_it_did(kind: str, model: str, here: Path) -> None:
    target = "data.target=tests.unit.data.test_decoding.images"
    line = ["data=import", target, "data.classes=3", f"data.arguments={{kind: {kind}}}"]
    line += [f"model={model}", "nodes=2", "batch_size=5", "budget.epochs=1", "engine=sim", "optimizer.lr=0.001"]
    runs = {
        "compiled": ["engine.gradients=compiled"],
        "loop": ["engine.gradients=loop"],
        "read": ["engine.gradients=loop", "data.decode=each_read"],
    }
    losses: dict[str, list[float]] = {}
    for name, options in runs.items():
        result = call(*line, *options, f"hydra.run.dir={name}")
        assert result.status == 0, result.err
        assert "does not know" not in result.err
        losses[name] = [mark["train_loss"] for mark in marks(here / name)]
    assert losses["loop"] == losses["read"]
    assert losses["compiled"] == pytest.approx(losses["loop"], rel=1e-3)
