"""A small file that says it is a huge image: no memory is taken for its pixels, whoever reads it."""

from __future__ import annotations

import gzip
import os
import resource
import struct
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dsgd.data import DataLost
from dsgd.data.idx import read_idx
from dsgd.data.imagenet import ImageNet
from dsgd.data.images.augment import evaluation_pixels
from dsgd.data.images.decode import FILE_BYTES, MAX_PIXELS, BrokenImage, open_image, read_image
from tests.support.command import in_python
from tests.support.image_files import DECODERS, IMAGES, jpeg, photograph, saying, tiff_of_a_tile

KINDS = ("JPEG", "PNG")  # the latter as all that Pillow reads
SIDES = (9000, 12000, 16000)  # below and above what Pillow warns of, and what it refuses
FEW = 48  # MiB: less than the smallest of these images would take in any form
TRY = """
import sys
from pathlib import Path
from dsgd.data.images.decode import BrokenImage, choose_decoder, open_image, read_image
import numpy as np
from dsgd.data.images.augment import evaluation_pixels

def most():
    return next(int(line.split()[1]) // 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))

decoder, small, *files = sys.argv[1:]
out = np.empty((3, 224, 224), np.uint8)
evaluation_pixels(open_image(read_image(small, 0, -1), decoder), out)  # whatever the decoder needs for itself
before = most()
for path in files:
    try:
        evaluation_pixels(open_image(read_image(path, 0, -1), decoder), out)
        print("decoded", path)
    except BrokenImage as error:
        print(error)
print(most() - before)
"""


def attempt(decoder: str, small: Path, *files: Path) -> tuple[list[str], int]:
    """What a process of its own says to each file, and by how many MiB its memory has grown at most."""
    *said, grown = in_python(TRY, decoder, small, *files, PYTHONWARNINGS="ignore").splitlines()
    return said, int(grown)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.jpg"
    path.write_bytes(jpeg(photograph()))
    return path


@pytest.mark.parametrize("decoder", DECODERS)
def test_an_image_that_says_it_is_huge_is_refused_and_takes_no_memory(
    decoder: str, small: Path, tmp_path: Path
) -> None:
    files = []
    for kind in KINDS:
        for side in (*SIDES, 30000):
            files.append(tmp_path / f"{side}.{kind}")
            files[-1].write_bytes(saying(kind, side, side))
    said, grown = attempt(decoder, small, *files)
    for path, line in zip(files, said, strict=True):
        assert f"more than data.max_pixels = {MAX_PIXELS}" in line or "pixels than data.max_pixels" in line, path.name
    assert grown < FEW


@pytest.mark.parametrize("decoder", DECODERS)
def test_an_image_of_one_row_takes_no_more_memory_than_others(decoder: str, small: Path, tmp_path: Path) -> None:
    """Its shorter side made 256 pixels, the longer one would be 15 million of them."""
    files = []
    for number, shape in enumerate([(1, 60000), (60000, 1)]):
        for kind in ("JPEG", "PNG"):
            files.append(tmp_path / f"{number}.{kind}")
            Image.fromarray(np.zeros((*shape, 3), np.uint8)).save(files[-1], kind)
    said, grown = attempt(decoder, small, *files)
    assert said == [f"decoded {path}" for path in files]
    assert grown < FEW


def test_a_broken_file_ends_the_run_if_it_is_to(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    IMAGES.make(folder)
    bomb = folder / "train" / "class0000" / "000001.JPEG"
    bomb.write_bytes(saying("JPEG", 30000, 30000))
    data = ImageNet(str(folder), on_error="fail", workers=1).load(1, 24, 0, torch.float32)
    reason = f"has 30000 x 30000 pixels, more than data.max_pixels = {MAX_PIXELS}"
    try:
        with pytest.raises(DataLost, match=rf"^data\.on_error=fail: {bomb} {reason}$"):
            data.batch(0, 0)
    finally:
        data.close()


def test_a_packed_file_is_unpacked_no_further_than_its_header_says(tmp_path: Path) -> None:
    """A gigabyte of zeros behind a header of one image takes a megabyte."""
    path = tmp_path / "bomb.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(struct.pack(">4I", 0x0803, 1, 28, 28))
        for _ in range(1024):
            file.write(bytes(2**20))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match="must have the 784 bytes that its header says, got more"):
        read_idx(path, axes=3)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024


def test_the_middle_of_a_long_image_is_that_of_a_shorter_one() -> None:
    """What is seen in evaluation is the middle, whatever lies beside it."""
    pixels = np.zeros((20, 1000, 3), np.uint8)
    pixels[:, 480:520] = photograph(20, 40)
    wide, narrow = np.empty((3, 224, 224), np.uint8), np.empty((3, 224, 224), np.uint8)
    for image, out in ((pixels, wide), (pixels[:, 340:660], narrow)):
        file = BytesIO()
        Image.fromarray(image).save(file, "PNG")
        evaluation_pixels(open_image(file.getvalue(), "pillow"), out)
    np.testing.assert_array_equal(wide, narrow)


@pytest.mark.parametrize("decoder", DECODERS)
def test_the_limit_is_the_number_of_pixels(decoder: str) -> None:
    content = jpeg(photograph(20, 30))
    assert open_image(content, decoder, 600).pixels(1).shape == (20, 30, 3)
    with pytest.raises(BrokenImage, match=r"^has 20 x 30 pixels, more than data\.max_pixels = 599$"):
        open_image(content, decoder, 599)


def test_a_tile_that_is_larger_than_its_image_is_refused() -> None:
    with pytest.raises(BrokenImage, match=r"^has 60000 x 60000 pixels, more than data\.max_pixels"):
        open_image(tiff_of_a_tile(64, 60000), "pillow")


def test_a_format_that_starts_a_program_is_no_image() -> None:
    """Pillow has Ghostscript draw what calls itself EPS, whatever the name of the file."""
    content = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
    with pytest.raises(BrokenImage, match=r"^cannot be decoded: cannot identify image file"):
        open_image(content, "pillow")


def test_only_a_regular_file_of_bounded_size_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.jpg")
    (tmp_path / "endless.jpg").symlink_to("/dev/zero")
    for name in ("fifo.jpg", "endless.jpg"):
        with pytest.raises(BrokenImage, match=r"^cannot be read: not a regular file$"):
            read_image(str(tmp_path / name), 0, -1)
    with (tmp_path / "holes.jpg").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(BrokenImage, match=rf"^has {2**40} bytes, more than the {FILE_BYTES} that an image may have$"):
        read_image(str(tmp_path / "holes.jpg"), 0, -1)
    with pytest.raises(BrokenImage, match=r"^has 1099511627000 bytes, more than"):
        read_image(str(tmp_path / "holes.jpg"), 512, 1099511627000)
