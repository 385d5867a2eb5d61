"""Folders and tar shards give the same samples; whatever is wrong with them is one line that names data.path."""

from __future__ import annotations

import re
import shutil
import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from dsgd.data.images.layout import ImageSource, find_images, read_shards, write_shards
from tests.support.each_row import each_row
from tests.support.image_files import IMAGES, torchvision


@pytest.fixture
def root(tmp_path: Path) -> Path:
    IMAGES.make(tmp_path / "images")
    return tmp_path / "images"


def content(source: ImageSource, sample: int) -> bytes:
    path, offset, length = source.locate(sample)
    whole = Path(path).read_bytes()
    return whole[offset:] if length < 0 else whole[offset : offset + length]


def test_folders_have_the_samples_labels_and_order_of_torchvision(root: Path) -> None:
    (root / "train" / "class0001" / "notes.txt").write_text("no image")
    (root / "train" / "class0001" / "é ü.jpg").write_bytes(b"1")
    (root / "train" / "class0002" / "Z.PNG").write_bytes(b"2")
    found = find_images(str(root))
    for split, source in (("train", found.train), ("val", found.test)):
        expected = torchvision().datasets.ImageFolder(str(root / split))
        assert [(source.name(i), label) for i, label in enumerate(source.labels.tolist())] == expected.samples
        assert list(found.classes) == expected.classes


def shards_of(root: Path, folder: Path, bytes_per_shard: int = 10**9) -> Path:
    folder.mkdir()
    found = find_images(str(root))
    for split, source in (("train", found.train), ("val", found.test)):
        samples = ((content(source, i), int(label)) for i, label in enumerate(source.labels))
        write_shards(folder, split, samples, bytes_per_shard)
    return folder


def test_shards_hold_the_same_bytes_and_labels_in_the_same_order(root: Path, tmp_path: Path) -> None:
    shards = find_images(str(shards_of(root, tmp_path / "shards", bytes_per_shard=20_000)))
    folders = find_images(str(root))
    assert len({shards.train.locate(i)[0] for i in range(len(shards.train.labels))}) > 2
    for a, b in ((folders.train, shards.train), (folders.test, shards.test)):
        np.testing.assert_array_equal(a.labels, b.labels)
        assert all(content(a, i) == content(b, i) for i in range(len(a.labels)))


@each_row("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tar_files_of_every_format_are_read_as_the_standard_library_reads_them(form: int, tmp_path: Path) -> None:
    """Long names, names that are not ASCII, fractions of seconds, folders and links among the files."""
    path = tmp_path / "train-000000.tar"
    keys = ["a", "some/where/b", f"{'x' * 90}/{'y' * 60}", "é"]
    with tarfile.open(path, "w", format=form) as archive:
        folder = tarfile.TarInfo("some")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for number, key in enumerate(keys):
            for extension, data in (("jpg", b"j" * (number * 300 + 1)), ("json", b"{}"), ("cls", b"%d\n" % number)):
                member = tarfile.TarInfo(f"{key}.{extension}")
                member.size, member.mtime = len(data), 1.5  # pyright: ignore[reportAttributeAccessIssue]
                archive.addfile(member, BytesIO(data))
    with tarfile.open(path) as archive:
        expected = [(m.offset_data, m.size) for m in archive if m.name.endswith(".jpg")]
    found = read_shards([str(path)])
    assert [found.locate(i)[1:] for i in range(len(keys))] == expected
    assert found.labels.tolist() == [0, 1, 2, 3]


def empty_class(root: Path) -> None:
    shutil.rmtree(root / "train" / "class0001")
    (root / "train" / "class0001").mkdir()


def flat(root: Path) -> None:
    for folder in list((root / "val").iterdir()):
        (folder / "000000.JPEG").rename(root / "val" / f"{folder.name}.JPEG")
        shutil.rmtree(folder)


@each_row(
    ("harm", "message"),
    [
        (shutil.rmtree, "be a folder with train/ and val/, or with train-*.tar and val-*.tar, found no folder ROOT"),
        (lambda root: shutil.rmtree(root / "val"), "be a folder with train/ and val/, .*, found no val in ROOT"),
        (
            lambda root: (root / "train" / "new").mkdir(),
            "hold the same classes in train and val, got new only in train",
        ),
        (empty_class, "hold images of every class, found none in ROOT/train/class0001"),
        (flat, "hold a folder for each class, found none in ROOT/val; scripts/prepare_imagenet.py sorts .*"),
        (lambda root: (root / "train-000000.tar").touch(), "be a folder .*, found both in ROOT"),
    ],
)
def test_a_wrong_folder_is_refused_in_one_line(
    root: Path, tmp_path: Path, harm: Callable[[Path], object], message: str
) -> None:
    harmed = tmp_path / "harmed"
    shutil.copytree(root, harmed)
    harm(harmed)
    expected = message.replace("*.tar", r"\*\.tar").replace("ROOT", re.escape(str(harmed)))
    with pytest.raises(ValueError, match=rf"^data\.path must {expected}$"):
        find_images(str(harmed))


def test_files_without_content_are_found_before_the_start_where_they_would_end_the_run(root: Path) -> None:
    (root / "train" / "class0001" / "000003.JPEG").write_bytes(b"")
    find_images(str(root))
    with pytest.raises(ValueError, match=r"^data\.path must hold readable files .*000003\.JPEG: 0 bytes$"):
        find_images(str(root), strict=True)


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def rewrite(path: Path, **members: bytes) -> None:
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name.replace("_", "."))
            member.size = len(data)
            archive.addfile(member, BytesIO(data))


@each_row(
    ("harm", "message"),
    [
        (lambda path: cut(path, 1000), "readable tar files, got .* ends at [0-9]+, cut off at 1000 bytes"),
        (lambda path: path.write_bytes(b"x" * 5000), "readable tar files, got .*: no tar header at 0"),
        (lambda path: rewrite(path, a_jpg=b"1", b_cls=b"0"), "pairs of KEY.jpg and KEY.cls, got .*: a is alone"),
        (
            lambda path: rewrite(path, a_jpg=b"1", a_cls=b"dog"),
            "pairs .*: a.cls must hold an integer >= 0 of .* 9 digits",
        ),
        (lambda path: rewrite(path, a_jpg=b"1", a_png=b"1", a_cls=b"0"), "pairs .*: two images of key a"),
    ],
)
def test_a_wrong_shard_is_refused_in_one_line(
    root: Path, tmp_path: Path, harm: Callable[[Path], object], message: str
) -> None:
    shards = shards_of(root, tmp_path / "shards")
    harm(shards / "train-000000.tar")
    with pytest.raises(ValueError, match=rf"^data\.path must hold {message}$"):
        find_images(str(shards))


def test_labels_without_images_are_refused(root: Path, tmp_path: Path) -> None:
    shards = shards_of(root, tmp_path / "shards")
    for split in ("train", "val"):
        rewrite(shards / f"{split}-000000.tar", a_jpg=b"1", a_cls=b"0", b_jpg=b"1", b_cls=b"2")
    with pytest.raises(ValueError, match=r"^data\.path must hold images of every class, found none of label 1 in "):
        find_images(str(shards))
