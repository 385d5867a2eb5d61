"""Every kind of file comes out upright and in RGB, by either decoder; what is no image is said to be none."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from dsgd.data.images.decode import ORIENTATION, Broken, opened, read
from tests.data_images.files import jpeg, photograph

PIXELS = photograph()
both_decoders = pytest.mark.parametrize("decoder", ["simplejpeg", "pillow"])


def by_pillow(content: bytes) -> np.ndarray:
    return np.asarray(Image.open(BytesIO(content)).convert("RGB"))


@both_decoders
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("options", [{}, {"subsampling": 0}, {"progressive": True}, {"quality": 30}], ids=str)
def test_a_jpeg_of_any_mode_has_the_pixels_that_pillow_gives(decoder: str, mode: str, options: dict[str, int]) -> None:
    content = jpeg(PIXELS, mode, **options)
    picture = opened(content, decoder)
    assert (picture.height, picture.width) == PIXELS.shape[:2]
    np.testing.assert_array_equal(picture.pixels(1), by_pillow(content))


@both_decoders
@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_that_its_exif_tag_turns_comes_out_upright(decoder: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    content = jpeg(PIXELS, exif=exif)
    upright = np.asarray(ImageOps.exif_transpose(Image.open(BytesIO(content))))
    picture = opened(content, decoder)
    assert (picture.height, picture.width) == upright.shape[:2]
    np.testing.assert_array_equal(picture.pixels(1), upright)


@both_decoders
@pytest.mark.parametrize(
    ("kind", "mode"), [("PNG", "RGB"), ("PNG", "RGBA"), ("PNG", "P"), ("GIF", "P"), ("BMP", "RGB")]
)
def test_another_format_under_the_name_of_a_jpeg_is_read(decoder: str, kind: str, mode: str) -> None:
    file = BytesIO()
    Image.fromarray(PIXELS).convert(mode).save(file, kind)
    np.testing.assert_array_equal(opened(file.getvalue(), decoder).pixels(1), by_pillow(file.getvalue()))


@both_decoders
@pytest.mark.parametrize("factor", [2, 4, 8])
@pytest.mark.parametrize("size", [(180, 240), (181, 243)])
def test_decoding_at_a_fraction_of_the_size_gives_the_image_made_smaller(
    decoder: str, factor: int, size: tuple[int, int]
) -> None:
    """Mean difference to the box filter below 4 of 255: what the discrete cosine transform leaves out is detail."""
    pixels = photograph(*size)
    small = opened(jpeg(pixels, quality=98, subsampling=0), decoder).pixels(factor)
    assert small.shape == (-(-size[0] // factor), -(-size[1] // factor), 3)
    height, width = size[0] // factor, size[1] // factor
    boxes = pixels[: height * factor, : width * factor].reshape(height, factor, width, factor, 3).mean(axis=(1, 3))
    assert abs(small[:height, :width] - boxes).mean() < 4


@both_decoders
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (jpeg(PIXELS)[:4000], "cannot be decoded: .*truncated"),
        (jpeg(PIXELS)[:100], "cannot be decoded: "),
        (b"\xff\xd8\xff" + bytes(1000), "cannot be decoded: "),
        (b"<html>404</html>", "cannot be decoded: cannot identify image file"),
    ],
    ids=["cut in half", "cut in its header", "zeros", "something else"],
)
def test_damage_is_told_in_one_line(decoder: str, content: bytes, reason: str) -> None:
    with pytest.raises(Broken, match=rf"^{reason}[^\n]*$"):
        opened(content, decoder).pixels(1)


def test_a_file_that_is_empty_or_missing_is_broken(tmp_path: Path) -> None:
    (tmp_path / "empty.JPEG").touch()
    with pytest.raises(Broken, match=r"^has 0 bytes$"):
        read(str(tmp_path / "empty.JPEG"), 0, -1)
    with pytest.raises(Broken, match=r"^cannot be read: No such file or directory$"):
        read(str(tmp_path / "missing.JPEG"), 0, -1)
