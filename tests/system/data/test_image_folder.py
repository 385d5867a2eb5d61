"""A folder of images by the command: a file that cannot serve is named before any work."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.command import call, summary
from tests.support.each_row import each_row
from tests.support.image_files import jpeg, photograph
from tests.unit.data.test_image_folder import make


def replace(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda root: (root / name).write_bytes(content)


LAST = "val/owl/2.jpg"


DAMAGE: list[tuple[Callable[[Path], object], str]] = [
    (replace(LAST, b"something else"), f"images that can be read, got ROOT/{LAST}, which cannot be decoded"),
    (
        replace(LAST, jpeg(photograph(13, 20))),
        "data.resolution must be given for images of several sizes, got 13 x 20 pixels in "
        f"ROOT/{LAST} and 12 x 20 pixels before",
    ),
    (lambda root: (root / "train/rat").mkdir(), "must hold the same classes in train and val, got rat only in train"),
    (lambda root: shutil.rmtree(root / "val"), "data.root must have train/ and one of val/ and test/, found train in"),
    (lambda root: shutil.rmtree(root), "data.root must be a folder with train/CLASS/ and val/CLASS/ or test/CLASS/"),
]


@each_row(("damage", "line"), DAMAGE)
def test_what_cannot_serve_is_one_line_before_any_work(
    damage: Callable[[Path], object], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make(tmp_path / "images")
    damage(root)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    result = call("data=folder", f"data.root={root}", "nodes=2", "batch_size=4")
    assert (result.status, len(result.err.splitlines())) == (2, 1), result.err
    assert line.replace("ROOT", str(root)) in result.err
    assert list((tmp_path / "here").iterdir()) == []


@each_row(
    ("options", "line"),
    [
        ("", "data.root must be given, got nothing"),
        ("data.root=ROOT data.test_share=0.2", "data.test_share must be null, as ROOT has val/, got 0.2"),
        ("data.root=ROOT/train data.test_share=0.01", "data.test_share must leave images of every class for training"),
        ("data.root=ROOT data.resolution=1024 data.max_pixels=100", "which has 12 x 20 pixels, more than data.max_pix"),
    ],
)
def test_bad_options_are_one_line(options: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make(tmp_path / "images")
    monkeypatch.chdir(tmp_path)
    result = call("data=folder", "batch_size=2", *options.replace("ROOT", str(root)).split())
    assert (result.status, len(result.err.splitlines())) == (2, 1), result.err
    assert line.replace("ROOT", str(root)) in result.err


@pytest.mark.parametrize("engine", ["sim", "dist"])
def test_a_run_on_them_takes_the_fast_way(engine: str, tmp_path: Path) -> None:
    root = make(tmp_path / "my images", size=(16, 16))
    line = ["data=folder", f"data.root='{root}'", "model=resnet8", "nodes=2", "batch_size=4", "budget.steps=4"]
    split = ["data.split=label", "data.validation=0.2", "data.augment=true"]
    result = call(*line, *split, f"engine={engine}", f"hydra.run.dir={tmp_path}/run")
    assert result.status == 0, result.err
    assert summary(tmp_path / "run")["data"] == "folder"
    assert engine == "dist" or summary(tmp_path / "run")["gradients"] in ("compiled", "loop")
