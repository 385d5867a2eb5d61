"""The scripts that prepare data, on small archives of the official form."""

from __future__ import annotations

import gzip
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from dsgd.data.images.layout import find_images
from tests.support.hostile_tar import archive, entry
from tests.support.image_files import jpeg, photograph, truncate

SCRIPTS = Path(__file__).parents[3] / "scripts"
COUNTS = {"n03": 3, "n01": 2, "n02": 4}  # training images; the kit numbers the classes in its own order
TRUTH = [2, 1, 3, 3, 1, 2]


def run(script: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPTS / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, BytesIO(content))


@pytest.fixture
def archives(tmp_path: Path) -> Path:
    """The three official files, with three classes and a parent of theirs."""
    folder = tmp_path / "downloads"
    folder.mkdir()
    image = jpeg(photograph(40, 50))
    with tarfile.open(folder / "ILSVRC2012_img_train.tar", "w") as outer:
        for label, count in sorted(COUNTS.items()):
            inner = BytesIO()
            with tarfile.open(fileobj=inner, mode="w") as archive:
                for number in range(count):
                    add(archive, f"{label}_{number}.JPEG", image + bytes(number))
            add(outer, f"{label}.tar", inner.getvalue())
    with tarfile.open(folder / "ILSVRC2012_img_val.tar", "w") as archive:
        for number in range(1, len(TRUTH) + 1):
            add(archive, f"ILSVRC2012_val_{number:08d}.JPEG", image)
    fields = [("ILSVRC2012_ID", "i4"), ("WNID", "O"), ("num_children", "i4"), ("num_train_images", "i4")]
    rows = [(number, label, 0, count) for number, (label, count) in enumerate(COUNTS.items(), start=1)]
    meta = BytesIO()
    savemat(meta, {"synsets": np.array([*rows, (4, "n00", 3, 0)], dtype=fields)})
    with tarfile.open(folder / "ILSVRC2012_devkit_t12.tar.gz", "w:gz") as archive:
        add(archive, "ILSVRC2012_devkit_t12/data/meta.mat", meta.getvalue())
        truth = "".join(f"{number}\n" for number in TRUTH).encode()
        add(archive, "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt", truth)
    return folder


def test_the_official_archives_become_folders_and_shards(archives: Path, tmp_path: Path) -> None:
    folder, shards = tmp_path / "imagenet", tmp_path / "shards"
    ended = run("prepare_imagenet.py", folder, "--archives", archives, "--verify", "--shards", shards)
    assert ended.returncode == 0, ended.stderr
    assert "3 classes, 9 training and 6 test images\n" in ended.stdout
    assert "0 broken images\n" in ended.stdout
    found = find_images(str(folder))
    assert found.classes == ("n01", "n02", "n03")
    assert np.bincount(found.train.labels).tolist() == [2, 4, 3]
    by_number = sorted((found.test.name(i)[-13:], found.classes[found.test.labels[i]]) for i in range(6))
    assert [label for _, label in by_number] == ["n01", "n03", "n02", "n02", "n03", "n01"]
    assert np.bincount(find_images(str(shards)).train.labels).tolist() == [2, 4, 3]


def test_preparing_goes_on_where_it_was_broken_off(archives: Path, tmp_path: Path) -> None:
    folder = tmp_path / "imagenet"
    assert run("prepare_imagenet.py", folder, "--archives", archives).returncode == 0
    whole = {path: path.read_bytes() for path in folder.rglob("*.JPEG")}
    kept, cut, lost = sorted(whole)[:3]
    truncate(cut)
    lost.unlink()
    before = kept.stat().st_mtime_ns
    assert run("prepare_imagenet.py", folder, "--archives", archives).returncode == 0
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == whole
    assert kept.stat().st_mtime_ns == before


def test_what_is_missing_or_broken_is_named(archives: Path, tmp_path: Path) -> None:
    folder = tmp_path / "imagenet"
    assert run("prepare_imagenet.py", folder, "--archives", archives).returncode == 0
    truncate(folder / "train" / "n02" / "n02_1.JPEG")
    ended = run("prepare_imagenet.py", folder, "--verify")
    assert ended.returncode == 1
    assert f"{folder}/train/n02/n02_1.JPEG cannot be decoded: " in ended.stdout.replace("\n", " ").replace("  ", " ")
    (archives / "ILSVRC2012_img_val.tar").unlink()
    ended = run("prepare_imagenet.py", folder, "--archives", archives)
    assert (ended.returncode, len(ended.stderr.splitlines())) == (2, 1)
    assert ended.stderr.startswith("--archives must hold ILSVRC2012_img_train.tar, ")
    ended = run("prepare_imagenet.py", tmp_path / "nowhere")
    assert (ended.returncode, len(ended.stderr.splitlines())) == (2, 1)
    assert ended.stderr.startswith("data.path must be a folder with train/ and val/")


def test_without_scipy_the_archives_are_refused_in_one_line(archives: Path, tmp_path: Path) -> None:
    hidden = "import runpy, sys; sys.modules['scipy.io'] = None; del sys.argv[0]\n"
    hidden += "runpy.run_path(sys.argv[0], {}, '__main__')"
    script = SCRIPTS / "prepare_imagenet.py"
    command = [sys.executable, "-c", hidden, str(script), str(tmp_path / "data"), "--archives", str(archives)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2
    assert ended.stderr == "--archives must find SciPy installed, got none: pip install scipy\n"


@pytest.mark.parametrize(
    ("archive", "content", "part"),
    [
        ("ILSVRC2012_img_val.tar", entry(b"ILSVRC2012_val_00000001.JPEG", 2**62) + bytes(1024), "of at most"),
        ("ILSVRC2012_img_val.tar", entry(b"././@LongLink", 2**80, b"L") + bytes(1024), "OverflowError"),
        ("ILSVRC2012_devkit_t12.tar.gz", gzip.compress(bytes(5000))[:30], "found no data/"),
        (
            "ILSVRC2012_devkit_t12.tar.gz",
            archive(("data/meta.mat", b"x" * 200), ("data/ILSVRC2012_validation_ground_truth.txt", b"1")),
            "must hold data/meta.mat and",
        ),
    ],
    ids=["a size", "the size of a name", "cut off", "no matrix"],
)
def test_an_archive_that_lies_is_one_line(
    archive: str, content: bytes, part: str, archives: Path, tmp_path: Path
) -> None:
    (archives / archive).write_bytes(content)
    result = run("prepare_imagenet.py", tmp_path / "data", "--archives", archives)
    assert result.returncode == 2
    assert part in result.stderr
    assert len(result.stderr.splitlines()) == 1
