"""The user's own images, from folders of classes, at any size; a file that cannot serve is named before any work."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dsgd.data.image_folder import ImageFolder, resized_and_cropped
from dsgd.models.torchvision_operators import declare_missing_operators
from tests.support.choices import choice
from tests.support.command import call, summary
from tests.support.image_files import by_pillow, jpeg, photograph, saying, truncate

declare_missing_operators()
from torchvision import datasets, transforms  # noqa: E402

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
        theirs = datasets.ImageFolder(str(tmp_path / split))
        assert labels.tolist() == theirs.targets
        for image, (path, _) in zip(images, theirs.samples, strict=True):
            assert np.array_equal(image.transpose(1, 2, 0), by_pillow(Path(path).read_bytes()))


@pytest.mark.parametrize("size", [(180, 240), (240, 180), (33, 32), (32, 32), (20, 12), (7, 100)])
def test_resized_images_are_those_of_torchvision(size: tuple[int, int]) -> None:
    pixels = photograph(*size)
    theirs = transforms.Compose([transforms.Resize(32), transforms.CenterCrop(32)])(Image.fromarray(pixels))
    assert np.array_equal(resized_and_cropped(pixels, 32), np.asarray(theirs))


def test_of_a_very_long_image_only_the_middle_is_resized() -> None:
    """All of it would take 3 GB."""
    assert resized_and_cropped(np.zeros((1, 1_000_000, 3), np.uint8), 32).shape == (32, 32, 3)


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


def test_links_to_images_are_images(tmp_path: Path) -> None:
    make(tmp_path / "there")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "train").symlink_to(tmp_path / "there" / "train")
    shutil.copytree(tmp_path / "there" / "val", tmp_path / "here" / "val")
    (tmp_path / "here" / "val" / "cat" / "0.jpg").unlink()
    (tmp_path / "here" / "val" / "cat" / "0.jpg").symlink_to(tmp_path / "there" / "val" / "cat" / "0.jpg")
    for here, there in zip(*(load(ImageFolder(str(tmp_path / name))) for name in ("here", "there")), strict=True):
        assert np.array_equal(here, there)


def replace(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda root: (root / name).write_bytes(content)


def link(name: str, target: str) -> Callable[[Path], object]:
    def change(root: Path) -> None:
        (root / name).unlink()
        (root / name).symlink_to(target)

    return change


LAST = "val/owl/2.jpg"
DAMAGE: list[tuple[Callable[[Path], object], str]] = [
    (lambda root: truncate(root / LAST), f"data.root must hold images that can be read, got ROOT/{LAST}, which "),
    (replace(LAST, b""), f"got ROOT/{LAST}, which has 0 bytes"),
    (replace(LAST, b"something else"), f"got ROOT/{LAST}, which cannot be decoded"),
    (replace(LAST, saying("PNG", 60_000, 60_000)), f"got ROOT/{LAST}, which has more pixels than data.max_pixels = "),
    (replace(LAST, saying("JPEG", 60_000, 60_000)), f"got ROOT/{LAST}, which has 60000 x 60000 pixels, more than"),
    (link(LAST, "nowhere"), f"got ROOT/{LAST}, which cannot be read: No such file or directory"),
    (link(LAST, "/dev/zero"), f"got ROOT/{LAST}, which cannot be read: not a regular file"),
    (link(LAST, "2.jpg"), f"got ROOT/{LAST}, which cannot be read: Too many levels of symbolic links"),
    (
        replace(LAST, jpeg(photograph(13, 20))),
        "data.resolution must be given for images of several sizes, got 13 x 20 pixels in "
        f"ROOT/{LAST} and 12 x 20 pixels before",
    ),
    (lambda root: (root / "train/rat").mkdir(), "must hold the same classes in train and val, got rat only in train"),
    (
        lambda root: [(root / split / "rat").mkdir() for split in ("train", "val")],
        "data.root must hold images of every class, found none in ROOT/train/rat",
    ),
    (lambda root: shutil.rmtree(root / "val"), "data.root must have train/ and one of val/ and test/, found train in"),
    (lambda root: shutil.rmtree(root / "train"), "must have train/ and one of val/ and test/, found val in ROOT"),
    (lambda root: (root / "test").mkdir(), "one of val/ and test/, found train and val and test in ROOT"),
    (lambda root: [shutil.rmtree(path) for path in root.iterdir()], "must hold a folder for each class, found none in"),
    (lambda root: shutil.rmtree(root), "data.root must be a folder with train/CLASS/ and val/CLASS/ or test/CLASS/"),
]


@pytest.mark.parametrize(("damage", "line"), DAMAGE, ids=[line[:70] for _, line in DAMAGE])
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


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ("", "data.root must be given, got nothing"),
        ("data.root=ROOT data.resolution=0", "data.resolution must be in [1, 1024] or null, got 0"),
        ("data.root=ROOT data.test_share=1", "data.test_share must be in (0, 1) or null, got 1"),
        ("data.root=ROOT data.test_share=0.2", "data.test_share must be null, as ROOT has val/, got 0.2"),
        ("data.root=ROOT/train", "data.test_share must be a number, as 0.2, for a folder without train/ and test/"),
        ("data.root=ROOT/train data.test_share=0.01", "data.test_share must leave images of every class for training"),
        ("data.root=ROOT nodes=30", "nodes must be <= 24 (the training samples), got 30"),
        ("data.root=ROOT data.resolution=1024 data.max_pixels=100", "which has 12 x 20 pixels, more than data.max_pix"),
    ],
)
def test_bad_options_are_one_line(options: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make(tmp_path / "images")
    monkeypatch.chdir(tmp_path)
    result = call("data=folder", "batch_size=2", *options.replace("ROOT", str(root)).split())
    assert (result.status, len(result.err.splitlines())) == (2, 1), result.err
    assert line.replace("ROOT", str(root)) in result.err


def test_more_than_memory_holds_is_refused_before_it_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path)
    monkeypatch.setattr("dsgd.data.image_folder.MOST_BYTES", 3 * 12 * 20 * 24 - 1)
    with pytest.raises(ValueError, match=r"^data.root must hold images that fit in .* GiB, got 24 of 12 x 20 pixels"):
        ImageFolder(str(tmp_path)).check(1, 1)


@pytest.mark.parametrize("engine", ["sim", "dist"])
def test_a_run_on_them_takes_the_fast_way(engine: str, tmp_path: Path) -> None:
    root = make(tmp_path / "my images", size=(16, 16))
    line = ["data=folder", f"data.root='{root}'", "model=resnet8", "nodes=2", "batch_size=4", "budget.steps=4"]
    split = ["data.split=label", "data.validation=0.2", "data.augment=true"]
    result = call(*line, *split, f"engine={engine}", f"hydra.run.dir={tmp_path}/run")
    assert result.status == 0, result.err
    assert summary(tmp_path / "run")["data"] == "folder"
    assert engine == "dist" or summary(tmp_path / "run")["gradients"] in ("compiled", "loop")


def test_the_file_states_the_defaults_of_the_class() -> None:
    fields = choice("data", "folder")
    assert (fields.pop("_target_"), fields.pop("root")) == ("dsgd.data.image_folder.ImageFolder", "???")
    assert ImageFolder("x", **fields) == ImageFolder("x")
    assert fields.keys() | {"root"} == ImageFolder.__dataclass_fields__.keys()
