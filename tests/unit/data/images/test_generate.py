"""Generated images are a pure function of their numbers, appear all at once, and can be told apart by class."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from dsgd.data.imagenet import STAMP, ImageNetLike
from tests.support.each_row import each_row
from tests.support.image_files import IMAGES


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.JPEG"))}


def test_the_same_numbers_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        IMAGES.make(tmp_path / name)
    replace(IMAGES, seed=2).make(tmp_path / "c")
    a, b, c = (contents(tmp_path / name) for name in "abc")
    assert len(a) == 3 * (8 + 3)
    assert a == b
    assert all(a[name] != c[name] for name in a)
    assert len(set(a.values())) == len(a)


def test_more_images_do_not_change_those_that_were_there(tmp_path: Path) -> None:
    IMAGES.make(tmp_path / "few")
    replace(IMAGES, classes=4, samples_per_class=9).make(tmp_path / "many")
    assert contents(tmp_path / "few").items() <= contents(tmp_path / "many").items()


def test_what_was_begun_and_broken_off_is_not_taken_for_the_whole(tmp_path: Path) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        IMAGES.make(tmp_path / "images", stop)
    assert not list(tmp_path.iterdir())


def test_another_folder_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(ValueError, match=r"^data\.path must be a new folder or one of generated images, got "):
        IMAGES.make(tmp_path / "mine")
    IMAGES.make(tmp_path / "images")
    with pytest.raises(ValueError, match=r"^data\.path must hold the images .*, got .* made with classes=3, seed=1$"):
        replace(IMAGES, classes=4, seed=9).make(tmp_path / "images")
    assert json.loads((tmp_path / "images" / STAMP).read_text())["classes"] == 3


def test_imagenet_like_makes_its_images_on_first_use_and_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    config = ImageNetLike(classes=2, samples_per_class=3, test_per_class=1, side=40)
    config.check(1, 4)
    assert not list(tmp_path.iterdir())  # checking writes nothing
    assert config.load(1, 4, 0, torch.float32).samples == config.train_samples(1) == 6
    assert capsys.readouterr().err == f"data: generating 8 images in {config.folder}, once\n"
    assert config.folder.is_relative_to(tmp_path)
    before = {path: os.stat(path).st_mtime_ns for path in config.folder.rglob("*")}
    config.load(1, 4, 0, torch.float32)
    assert {path: os.stat(path).st_mtime_ns for path in config.folder.rglob("*")} == before
    assert capsys.readouterr().err == ""
    with Image.open(next(config.folder.rglob("*.JPEG"))) as image:
        assert image.format == "JPEG"


@each_row("content", ["[]", "3", "null", '{"classes": ' + "[" * 100_000, "", "\0"])
def test_a_folder_with_another_stamp_is_not_taken_for_generated_images(content: str, tmp_path: Path) -> None:
    (tmp_path / STAMP).write_text(content)
    with pytest.raises(ValueError, match=r"^data\.path must be a new folder or one of generated images, got [^\n]*$"):
        IMAGES.check(tmp_path)
