"""IDX files: read as written, and refused in one line where they are not what they should be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from dsgd.data import Idx, idx
from dsgd.data.idx import COLLECTIONS, averaged, read_idx
from tests.support.each_row import each_row
from tests.support.idx_files import idx_bytes, write_idx


@each_row("packed", [False, True])
def test_files_are_read_as_written(tmp_path: Path, packed: bool) -> None:
    arrays = write_idx(tmp_path, "kmnist", packed=packed)
    config = Idx("kmnist", root=str(tmp_path))
    config.check(4, 8)
    data = config.load(4, 8, 0, torch.float64)
    for part, name in ((data.train, "train"), (data.test, "t10k")):
        np.testing.assert_array_equal(part[0][:, 0], arrays[f"{name}-images-idx3-ubyte"])
        np.testing.assert_array_equal(part[1], arrays[f"{name}-labels-idx1-ubyte"])


def test_all_runs_of_a_sweep_read_the_images_once_and_again_after_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep plans hundreds of runs, each of which checks its data: Fashion-MNIST takes a second and a half."""
    read: list[Path] = []
    monkeypatch.setattr(idx, "read_idx", lambda path, axes: [read.append(path), read_idx(path, axes)][1])
    arrays = write_idx(tmp_path, "kmnist")
    for side in (28, 14, 14):
        Idx("kmnist", root=str(tmp_path), resolution=side).check(4, 8)
    images = [path for path in read if "images" in path.name]
    assert len(images) == 4  # training and test at each resolution
    changed = arrays["train-images-idx3-ubyte"] ^ 255
    (tmp_path / "KMNIST" / "raw" / "train-images-idx3-ubyte").write_bytes(idx_bytes(changed))
    data = Idx("kmnist", root=str(tmp_path)).load(4, 8, 0, torch.float64)
    np.testing.assert_array_equal(np.asarray(data.train[0])[:, 0], changed)


def test_images_of_emnist_stand_upright_and_letters_begin_at_0(tmp_path: Path) -> None:
    """The files of EMNIST have the axes of an image in the other order, and 1 for the letter A."""
    arrays = write_idx(tmp_path, "emnist", "letters")
    config = Idx("emnist", "letters", root=str(tmp_path))
    data = config.load(4, 8, 0, torch.float64)
    np.testing.assert_array_equal(
        np.asarray(data.test[0])[:, 0].transpose(0, 2, 1), arrays["emnist-letters-test-images-idx3-ubyte"]
    )
    np.testing.assert_array_equal(data.test[1] + 1, arrays["emnist-letters-test-labels-idx1-ubyte"])
    assert config.classes == 26


@each_row("side", [1, 2, 4, 7])
def test_pixels_are_means_of_squares_rounded_half_up(side: int) -> None:
    images = np.random.default_rng(side).integers(0, 256, (5, 28, 28), dtype=np.uint8)
    small = averaged(images, side)
    for row, column in ((0, 0), (28 // side - 1, 0), (1, 2)):
        square = images[3, row * side : (row + 1) * side, column * side : (column + 1) * side].astype(float)
        assert small[3, row, column] == np.floor(square.mean() + 0.5)
    assert averaged(np.full((1, 28, 28), 255, np.uint8), side).min() == 255


def test_files_below_the_root_come_before_those_of_the_system(tmp_path: Path) -> None:
    arrays = write_idx(tmp_path, "fashion_mnist")
    assert Idx(root=str(tmp_path)).train_samples(1) == len(arrays["train-labels-idx1-ubyte"])


TRAIN_IMAGES, TRAIN_LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
IMAGES = np.zeros((40, 28, 28), np.uint8)
OF_FASHION = np.array((COLLECTIONS["fashion_mnist"].first_labels * 4), np.uint8)


@each_row(
    ("name", "content", "message"),
    [
        (TRAIN_IMAGES, b"GIF89a and more", "must be an IDX file of bytes with 3 axes, got something else"),
        (TRAIN_IMAGES, idx_bytes(IMAGES[:, 0, 0]), "must be an IDX file of bytes with 3 axes, got something else"),
        (TRAIN_IMAGES, idx_bytes(IMAGES)[:-1], "must have the 31360 bytes that its header says, got fewer"),
        (TRAIN_IMAGES, idx_bytes(IMAGES[:, :, :14]), "must hold images of 28 x 28 pixels, got 28 x 14"),
        (TRAIN_IMAGES, idx_bytes(IMAGES[:0]), "must hold 1 to 1048576 samples, got a header that says 0 x 28 x 28"),
        (TRAIN_LABELS, idx_bytes(np.zeros(39, np.uint8)), "must hold 40 labels, one for each image, got 39"),
        (TRAIN_LABELS, idx_bytes(np.full(40, 10, np.uint8)), "labels must be in [0, 10), got 10 to 10"),
        (TRAIN_LABELS, idx_bytes(OF_FASHION), "must be a file of kmnist, got one of fashion_mnist"),
    ],
)
def test_a_file_that_is_not_what_it_should_be_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    write_idx(tmp_path, "kmnist")
    path = tmp_path / "KMNIST" / "raw" / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"^[^\n]+$") as error:
        Idx("kmnist", root=str(tmp_path)).check(4, 8)
    assert str(error.value).startswith(str(path))
    assert message in str(error.value)


@each_row("damage", [lambda content: content[:-20], lambda _: b"not packed", lambda c: c[:200] + b"\0" * 90])
def test_a_damaged_packed_file_is_named(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    write_idx(tmp_path, "mnist", packed=True)
    path = tmp_path / "MNIST" / "raw" / f"{TRAIN_IMAGES}.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=r"^[^\n]+$") as error:
        Idx("mnist", root=str(tmp_path)).check(4, 8)
    assert str(error.value).startswith(f"{path} cannot be read: ")
