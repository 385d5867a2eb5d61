"""Training on JPEG files on disk, as users start it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch import nn

from tests.support.command import call

RUN = ["model=import", "model.target=tests.system.cli.test_image_runs.small_net", "nodes=2", "batch_size=6"]
RUN += ["optimizer.lr=0.05", "budget.epochs=4", "eval.every_epochs=2", "data.workers=1", "hydra.run.dir=run"]


def small_net() -> nn.Module:
    """Enough to tell textures by their colours."""
    return nn.Sequential(
        nn.AvgPool2d(8), nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)
    )


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("images") / "generated"
    return ["data=imagenet-like", f"data.path={folder}", "data.classes=3", "data.samples_per_class=16",
            "data.test_per_class=4", "data.side=64"]  # fmt: skip


def test_training_on_files_lowers_the_loss(images: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = call("algo=gossip", "engine=sim", *RUN, *images)
    assert result.status == 0, result.err
    losses = [mark["train_loss"] for mark in marks(tmp_path / "run")]
    assert losses[-1] < losses[0]


def test_what_is_found_before_the_first_step_leaves_no_folder(
    images: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hydra has made the run's folder by then."""
    monkeypatch.chdir(tmp_path)
    for split in ("train", "val"):
        for label in ("a", "b", "c"):
            place = tmp_path / "photos" / split / label
            place.mkdir(parents=True)
            for number in range(6):
                (place / f"{number}.jpg").write_bytes(b"no image")
    line = [*RUN[:-1], "data=imagenet", "data.path=photos", "data.on_error=fail", "hydra.run.dir=above/failing"]
    result = call("engine=sim", *line)
    assert result.status == 2
    assert result.err.splitlines()[-1].startswith("data.on_error=fail: ")
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]


def marks(folder: Path) -> list[dict[str, float]]:
    return [json.loads(text) for text in (folder / "metrics.jsonl").read_text().splitlines()]
