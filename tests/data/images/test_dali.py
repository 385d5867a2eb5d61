"""Decoding by NVIDIA DALI: the same samples, crops and substitutes as with our own processes, and nearly the pixels."""

from __future__ import annotations

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dsgd.data import DataLost
from dsgd.data.imagenet import ImageNet
from dsgd.data.images.decode import ORIENTATION
from dsgd.data.images.loader import Images
from tests.support.command import call
from tests.support.image_files import IMAGES, jpeg, photograph, truncate

NODES, BATCH, SEED = 2, 5, 3
INSTALLED = find_spec("nvidia") is not None and find_spec("nvidia.dali") is not None
needs_dali = pytest.mark.skipif(not INSTALLED, reason="NVIDIA DALI is not installed")


def loaded(path: Path, loader: str, on_error: str = "skip") -> Images:
    return ImageNet(str(path), on_error=on_error, workers=1, loader=loader).load(NODES, BATCH, SEED, torch.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 images, some of them peculiar: broken, cut off, turned by the EXIF tag, CMYK, grey."""
    path = tmp_path_factory.mktemp("data") / "images"
    IMAGES.make(path)
    files = sorted((path / "train").rglob("*.JPEG"))
    truncate(files[2])
    files[7].write_bytes(b"\xff\xd8 no image \xff\xd9")
    turned = Image.Exif()
    turned[ORIENTATION] = 6
    files[11].write_bytes(jpeg(photograph(), exif=turned.tobytes()))
    files[13].write_bytes(jpeg(photograph(), "CMYK"))
    files[17].write_bytes(jpeg(photograph(), "L"))
    return path


@needs_dali
def test_samples_and_pixels_are_those_of_our_own_processes(folder: Path) -> None:
    """To 8 of 255, 0.5 on average: the weights of the filter are rounded otherwise."""
    ours, theirs = loaded(folder, "processes"), loaded(folder, "dali")
    for rank, step in ((0, 0), (0, 1), (1, 0), (0, 2), (1, 3)):
        (expected, labels), (found, also) = ours.pixels(rank, step), theirs.pixels(rank, step)
        assert torch.equal(labels, also)
        close(found.numpy(), expected.numpy())
    for test in (True, False):
        for (expected, labels), (found, also) in zip(ours.evaluation(test), theirs.evaluation(test), strict=True):
            assert torch.equal(labels, also)
            assert float((found - expected).abs().max()) < 8 / 255 / 0.224
    assert theirs.broken == ours.broken == 2
    ours.close()
    theirs.close()


@needs_dali
def test_a_batch_is_a_pure_function_of_rank_and_step(folder: Path) -> None:
    """So that a resumed run goes on with the very pixels that were due."""
    first, again = loaded(folder, "dali"), loaded(folder, "dali")
    expected = [first.batch(1, step)[0].clone() for step in range(4)]
    for step in (3, 0, 2):
        assert torch.equal(again.batch(1, step)[0], expected[step])
    first.close()
    again.close()


@needs_dali
def test_a_broken_file_is_fatal_where_that_is_asked_for(folder: Path) -> None:
    data = loaded(folder, "dali", "fail")
    with pytest.raises(DataLost, match=r"^data\.on_error=fail: .* cannot be decoded: "):
        for _ in data.evaluation(False):
            pass
    data.close()


@pytest.mark.skipif(INSTALLED, reason="NVIDIA DALI is installed")
def test_without_dali_it_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = call("data=imagenet-like", "data.loader=dali")
    assert result.status == 2
    assert (
        result.err == "data.loader must be processes without NVIDIA DALI (pip install nvidia-dali-cuda120), got dali\n"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(INSTALLED, reason="NVIDIA DALI is installed")
def test_a_dali_that_does_not_load_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, place = tmp_path / "packages" / "nvidia" / "dali", tmp_path / "here"
    package.mkdir(parents=True)
    place.mkdir()
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").write_text("raise OSError('libdali.so: cannot open shared object file\\nand more')")
    monkeypatch.syspath_prepend(package.parents[1])
    monkeypatch.chdir(place)
    result = call("data=imagenet-like", "data.loader=dali")
    shutil.rmtree(package.parents[1])
    sys.modules.pop("nvidia", None)
    assert result.status == 2
    expected = (
        "data.loader must be processes where NVIDIA DALI does not load, got dali: OSError: libdali.so: cannot open"
    )
    assert result.err.startswith(expected)
    assert len(result.err.splitlines()) == 1
    assert list(place.iterdir()) == []


def close(found: np.ndarray, expected: np.ndarray) -> None:
    difference = np.abs(found.astype(int) - expected.astype(int))
    assert difference.max() <= 8
    assert difference.mean() <= 0.5
