"""Every kind of file comes out upright and in RGB, by any decoder; what is no image is said to be none."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from dsgd.data.images.decode import (
    END,
    ORIENTATION,
    Box,
    BrokenImage,
    JpegPartPicture,
    choose_decoder,
    open_image,
    read,
)
from tests.support.image_files import DECODERS, by_pillow, jpeg, photograph

PIXELS = photograph()
all_decoders = pytest.mark.parametrize("decoder", DECODERS)


@all_decoders
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("options", [{}, {"subsampling": 0}, {"progressive": True}, {"quality": 30}], ids=str)
def test_a_jpeg_of_any_mode_has_the_pixels_that_pillow_gives(decoder: str, mode: str, options: dict[str, int]) -> None:
    content = jpeg(PIXELS, mode, **options)
    picture = open_image(content, decoder)
    assert (picture.height, picture.width) == PIXELS.shape[:2]
    np.testing.assert_array_equal(picture.pixels(1), by_pillow(content))


@all_decoders
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("options", [{}, {"subsampling": 0}, {"subsampling": 1}, {"progressive": True}], ids=str)
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


@pytest.mark.skipif("nvimgcodec" not in DECODERS, reason="nvImageCodec is not installed")
def test_a_decoder_that_sees_only_a_part_gets_no_file_that_has_lost_its_end() -> None:
    content = jpeg(PIXELS)
    assert isinstance(open_image(content, "nvimgcodec"), JpegPartPicture)
    with pytest.raises(BrokenImage, match="truncated"):
        open_image(content[:-2000], "nvimgcodec").pixels(1, Box(0, 0, 8, 8))


@pytest.mark.parametrize(("decoder", "package"), [("nvimgcodec", "nvidia.nvimgcodec"), ("simplejpeg", "simplejpeg")])
def test_a_decoder_that_is_not_installed_is_one_line(
    decoder: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    expected = r"auto or another where .* is missing \(pip install .*\)"
    with pytest.raises(ValueError, match=rf"^data\.decoder must be {expected}, got {decoder}$"):
        choose_decoder(decoder)
    assert choose_decoder("auto") in {*DECODERS} - {decoder}


@pytest.mark.skipif("nvimgcodec" not in DECODERS, reason="nvImageCodec is not installed")
def test_the_choice_of_a_decoder_does_not_load_one_that_may_use_a_gpu() -> None:
    """Nothing that is forked of this process could use the GPU after that."""
    program = "import sys; from dsgd.data.images.decode import choose_decoder; print(choose_decoder('auto')); "
    program += "print([name for name in sys.modules if name.startswith('nvidia.')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["nvimgcodec", "[]"]


@pytest.mark.skipif("nvimgcodec" not in DECODERS, reason="nvImageCodec is not installed")
def test_a_package_that_is_too_old_is_as_good_as_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    older = tmp_path / "nvidia_nvimgcodec_cu12-0.8.1.dist-info"
    older.mkdir()
    (older / "METADATA").write_text("Metadata-Version: 2.1\nName: nvidia-nvimgcodec-cu12\nVersion: 0.8.1\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=r"where nvidia\.nvimgcodec >= 0\.9 is missing"):
        choose_decoder("nvimgcodec")
    assert choose_decoder("auto") == "simplejpeg"


@pytest.mark.parametrize("redirection", ["", " 2>&-"], ids=["standard error", "none"])
def test_what_the_decoder_says_about_missing_gpus_is_not_passed_on(redirection: str) -> None:
    program = "from dsgd.data.images.decode import choose_decoder; print(choose_decoder('auto'))"
    command = ["sh", "-c", f'"$0" -c "$1"{redirection}', sys.executable, program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == (choose_decoder("auto"), "")


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
        box = Box(picture.height // 3, picture.width // 4, picture.height // 2, picture.width // 2)
        assert picture.pixels(1, box).shape == (*box[2:], 3)


@all_decoders
@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_that_its_exif_tag_turns_comes_out_upright(decoder: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    content = jpeg(PIXELS, exif=exif)
    upright = np.asarray(ImageOps.exif_transpose(Image.open(BytesIO(content))))
    picture = open_image(content, decoder)
    assert (picture.height, picture.width) == upright.shape[:2]
    np.testing.assert_array_equal(picture.pixels(1), upright)


@all_decoders
@pytest.mark.parametrize(
    ("kind", "mode"), [("PNG", "RGB"), ("PNG", "RGBA"), ("PNG", "P"), ("GIF", "P"), ("BMP", "RGB")]
)
def test_another_format_under_the_name_of_a_jpeg_is_read(decoder: str, kind: str, mode: str) -> None:
    file = BytesIO()
    Image.fromarray(PIXELS).convert(mode).save(file, kind)
    np.testing.assert_array_equal(open_image(file.getvalue(), decoder).pixels(1), by_pillow(file.getvalue()))


@all_decoders
@pytest.mark.parametrize("factor", [2, 4, 8])
@pytest.mark.parametrize("size", [(180, 240), (181, 243)])
def test_decoding_at_a_fraction_of_the_size_gives_the_image_made_smaller(
    decoder: str, factor: int, size: tuple[int, int]
) -> None:
    """Mean difference to the box filter below 4 of 255: what the discrete cosine transform leaves out is detail."""
    pixels = photograph(*size)
    small = open_image(jpeg(pixels, quality=98, subsampling=0), decoder).pixels(factor)
    assert small.shape == (-(-size[0] // factor), -(-size[1] // factor), 3)
    height, width = size[0] // factor, size[1] // factor
    boxes = pixels[: height * factor, : width * factor].reshape(height, factor, width, factor, 3).mean(axis=(1, 3))
    assert abs(small[:height, :width] - boxes).mean() < 4


@all_decoders
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
    with pytest.raises(BrokenImage, match=rf"^{reason}[^\n]*$"):
        open_image(content, decoder).pixels(1)


def test_a_file_that_is_empty_or_missing_is_broken(tmp_path: Path) -> None:
    (tmp_path / "empty.JPEG").touch()
    with pytest.raises(BrokenImage, match=r"^has 0 bytes$"):
        read(str(tmp_path / "empty.JPEG"), 0, -1)
    with pytest.raises(BrokenImage, match=r"^cannot be read: No such file or directory$"):
        read(str(tmp_path / "missing.JPEG"), 0, -1)
