"""The user's own images, from folders of classes, at any size; a file that cannot serve is named before any work."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dsgd.data.image_folder import ImageFolder, resized_and_cropped
from tests.support.each_row import each_row
from tests.support.image_files import by_pillow, jpeg, photograph, torchvision

CLASSES = ("cat", "dog", "owl")


def make(root: Path, size: tuple[int, int] = (12, 20), splits: tuple[str, ...] = ("train/", "val/")) -> Path:
    """Eight images of each class for training and three for test, JPEG and PNG."""
    for split, count in zip(splits, (8, 3), strict=False):
        for label, name in enumerate(CLASSES):
            folder = root / f"{split}{name}"
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = photograph(*size, seed=100 * label + 10 * len(split) + number)
                if number % 2:
                    Image.fromarray(pixels).save(folder / f"{number}.png")
                else:
                    (folder / f"{number}.jpg").write_bytes(jpeg(pixels))
    return root


def load(config: ImageFolder) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    config.check(2, 4)
    data = config.load(2, 4, 0, torch.float64)
    (images, labels), (test_images, test_labels) = data.train, data.test
    return np.asarray(images), np.asarray(labels), np.asarray(test_images), np.asarray(test_labels)


def test_images_are_those_of_the_files_at_their_own_size(tmp_path: Path) -> None:
    make(tmp_path)
    config = ImageFolder(str(tmp_path))
    assert (config.input_shape, config.classes, config.train_samples(1)) == ((3, 12, 20), 3, 24)
    for images, labels, split in zip(load(config)[::2], load(config)[1::2], ("train", "val"), strict=True):
        theirs = torchvision().datasets.ImageFolder(str(tmp_path / split))
        assert labels.tolist() == theirs.targets
        for image, (path, _) in zip(images, theirs.samples, strict=True):
            assert np.array_equal(image.transpose(1, 2, 0), by_pillow(Path(path).read_bytes()))


@each_row("size", [(180, 240), (240, 180), (33, 32), (32, 32), (20, 12), (7, 100)])
def test_resized_images_are_those_of_torchvision(size: tuple[int, int]) -> None:
    pixels = photograph(*size)
    theirs = torchvision().transforms.Compose(
        [torchvision().transforms.Resize(32), torchvision().transforms.CenterCrop(32)]
    )(Image.fromarray(pixels))
    assert np.array_equal(resized_and_cropped(pixels, 32), np.asarray(theirs))


def test_images_of_several_sizes_are_resized_to_one(tmp_path: Path) -> None:
    make(tmp_path, splits=("train/", "test/"))
    (tmp_path / "train" / "dog" / "0.jpg").write_bytes(jpeg(photograph(50, 40)))
    (tmp_path / "test" / "owl" / "0.jpg").write_bytes(jpeg(photograph(9, 9), "L"))
    train, labels, test, _ = load(ImageFolder(str(tmp_path), resolution=8))
    assert (train.shape, test.shape, labels.shape) == ((24, 3, 8, 8), (9, 3, 8, 8), (24,))


def test_a_folder_of_classes_alone_is_divided_in_the_same_way_always(tmp_path: Path) -> None:
    make(tmp_path / "one", splits=("",))
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    halves = [load(ImageFolder(str(tmp_path / name), test_share=0.25)) for name in ("one", "two")]
    for here, there in zip(*halves, strict=True):
        assert np.array_equal(here, there)
    train, train_labels, test, test_labels = halves[0]
    assert np.bincount(train_labels).tolist() == [6, 6, 6]
    assert np.bincount(test_labels).tolist() == [2, 2, 2]
    assert len({image.tobytes() for image in (*train, *test)}) == 24


def test_more_than_memory_holds_is_refused_before_it_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path)
    monkeypatch.setattr("dsgd.data.image_folder.MOST_BYTES", 3 * 12 * 20 * 24 - 1)
    with pytest.raises(ValueError, match=r"^data.root must hold images that fit in .* GiB, got 24 of 12 x 20 pixels"):
        ImageFolder(str(tmp_path)).check(1, 1)
