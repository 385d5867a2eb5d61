"""Every kind of file comes out upright and in RGB, by any decoder; what is no image is said to be none."""

from __future__ import annotations

import sys
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from dsgd.data.images.decode import END, ORIENTATION, Box, BrokenImage, choose_decoder, open_image, read_image
from tests.support.each_row import each_row
from tests.support.image_files import DECODERS, by_pillow, jpeg, photograph

PIXELS = photograph()
all_decoders = pytest.mark.parametrize("decoder", DECODERS)


@all_decoders
@each_row("mode", ["RGB", "L", "CMYK"])
@each_row("options", [{}, {"subsampling": 0}, {"subsampling": 1}, {"progressive": True}])
def test_a_part_of_an_image_is_cut_out_of_the_whole(decoder: str, mode: str, options: dict[str, int]) -> None:
    """Bit for bit, at corners, along edges and across the blocks of the format, down to one pixel."""
    content = jpeg(PIXELS, mode, **options)
    whole, rng = by_pillow(content), np.random.default_rng(0)
    height, width, _ = whole.shape
    boxes = [Box(0, 0, height, width), Box(height - 1, width - 1, 1, 1), Box(0, 7, 1, 9), Box(15, 0, height - 15, 1)]
    for _ in range(40):
        h, w = rng.integers(1, height + 1), rng.integers(1, width + 1)
        boxes.append(Box(*map(int, (rng.integers(0, height - h + 1), rng.integers(0, width - w + 1), h, w))))
    for top, left, h, w in boxes:
        found = open_image(content, decoder).pixels(1, Box(top, left, h, w))
        np.testing.assert_array_equal(found, whole[top : top + h, left : left + w])


@each_row(("decoder", "package"), [("nvimgcodec", "nvidia.nvimgcodec"), ("simplejpeg", "simplejpeg")])
def test_a_decoder_that_is_not_installed_is_one_line(
    decoder: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    expected = r"auto or another where .* is missing \(pip install .*\)"
    with pytest.raises(ValueError, match=rf"^data\.decoder must be {expected}, got {decoder}$"):
        choose_decoder(decoder)
    assert choose_decoder("auto") in {*DECODERS} - {decoder}


@all_decoders
@settings(max_examples=100, deadline=None)
@given(st.data())
def test_damage_anywhere_ends_in_pixels_or_is_told(decoder: str, data: st.DataObject) -> None:
    content = bytearray(jpeg(PIXELS))
    for place in data.draw(st.lists(st.integers(2, len(content) - 3), min_size=1, max_size=20)):
        content[place] = data.draw(st.integers(0, 255))
    assert content.endswith(END)
    with suppress(BrokenImage):
        picture = open_image(bytes(content), decoder)
        height, width = max(1, picture.height // 2), max(1, picture.width // 2)  # a damaged header may say one pixel
        box = Box(picture.height // 3, picture.width // 4, height, width)
        assert picture.pixels(1, box).shape == (*box[2:], 3)


@all_decoders
@each_row("orientation", range(1, 9))
def test_an_image_that_its_exif_tag_turns_comes_out_upright(decoder: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    content = jpeg(PIXELS, exif=exif)
    upright = np.asarray(ImageOps.exif_transpose(Image.open(BytesIO(content))))
    picture = open_image(content, decoder)
    assert (picture.height, picture.width) == upright.shape[:2]
    np.testing.assert_array_equal(picture.pixels(1), upright)


@all_decoders
@each_row(("kind", "mode"), [("PNG", "RGB"), ("PNG", "RGBA"), ("PNG", "P"), ("GIF", "P"), ("BMP", "RGB")])
def test_another_format_under_the_name_of_a_jpeg_is_read(decoder: str, kind: str, mode: str) -> None:
    file = BytesIO()
    Image.fromarray(PIXELS).convert(mode).save(file, kind)
    np.testing.assert_array_equal(open_image(file.getvalue(), decoder).pixels(1), by_pillow(file.getvalue()))


@all_decoders
@each_row(
    ("content", "reason"),
    [
        (jpeg(PIXELS)[:4000], "cannot be decoded: .*truncated"),
        (jpeg(PIXELS)[:100], "cannot be decoded: "),
        (b"\xff\xd8\xff" + bytes(1000), "cannot be decoded: "),
        (b"<html>404</html>", "cannot be decoded: cannot identify image file"),
    ],
)
def test_damage_is_told_in_one_line(decoder: str, content: bytes, reason: str) -> None:
    with pytest.raises(BrokenImage, match=rf"^{reason}[^\n]*$"):
        open_image(content, decoder).pixels(1)


def test_a_file_that_is_empty_or_missing_is_broken(tmp_path: Path) -> None:
    (tmp_path / "empty.JPEG").touch()
    with pytest.raises(BrokenImage, match=r"^has 0 bytes$"):
        read_image(str(tmp_path / "empty.JPEG"), 0, -1)
    with pytest.raises(BrokenImage, match=r"^cannot be read: No such file or directory$"):
        read_image(str(tmp_path / "missing.JPEG"), 0, -1)
