"""Images on disk: those that are held out, and shares of each worker's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from dsgd.data.imagenet import ImageNetLike
from dsgd.data.protocols import evaluation_batches
from tests.support.each_row import each_row
from tests.unit.data.test_split import assert_own_labels


def evaluated(config: Any, nodes: int = 2) -> torch.Tensor:
    data = config.load(nodes, 5, 0, torch.float64)
    return torch.cat([inputs for inputs, _ in evaluation_batches(data, test=True)]).flatten(1)


def test_images_on_disk_are_held_out_by_their_files(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {
        "classes": 2,
        "samples_per_class": 10,
        "test_per_class": 2,
        "side": 32,
        "path": str(tmp_path / "images"),
    }
    config = ImageNetLike(**sizes, workers=1, validation=0.2, evaluate="validation")
    assert config.train_samples(1) == 16
    assert len(evaluated(config, nodes=1)) == 4
    assert len(evaluated(ImageNetLike(**sizes, workers=1), nodes=1)) == 4
    data = config.load(1, 4, 0, torch.float64)
    names = {data.layout.train.name(i) for i in range(16)}
    assert names.isdisjoint(data.layout.test.name(i) for i in range(4))
    assert all("/train/" in data.layout.test.name(i) for i in range(4))


@each_row("validation", [0.0, 0.25])
def test_images_on_disk_serve_each_worker_its_own_labels(validation: float, tmp_path: Path) -> None:
    options = {"split": "label", "validation": validation}
    assert_own_labels(ImageNetLike(2, 20, 1, side=16, path=str(tmp_path), workers=1, **options))  # pyright: ignore
