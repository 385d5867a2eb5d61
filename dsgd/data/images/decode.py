"""Decode a part of an image file to pixels, upright and in RGB, at full size or at 1/2, 1/4, 1/8.

simplejpeg is a third faster than Pillow; NVIDIA's nvImageCodec, on the CPU, decodes only the requested part. At
full size all three give the same pixels. Pillow decodes files that the faster ones do not support: CMYK, turned by
their EXIF tag, other formats under the name .jpg, damaged. So the set of broken files does not depend on the decoder.

A file is not trusted: the number of pixels in its header is compared with `data.max_pixels` before memory is allocated.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from io import BytesIO
from typing import NamedTuple, Protocol

import numpy as np
from PIL import Image
from PIL.TiffImagePlugin import TiffImageFile

from dsgd.host.files import regular_file

DECODERS = ("auto", "nvimgcodec", "simplejpeg", "pillow")
NARROW = 8  # columns: a narrower part decoded alone has other interpolated colours in libjpeg
END = b"\xff\xd9"  # the last two bytes of a JPEG file
# formats that Pillow may decode, for any name: others are rare, and one of them (EPS) would start a program
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "PPM", "TIFF", "WEBP")
MAX_PIXELS = 2**26  # of an image, unless configured otherwise
FILE_BYTES = 2**29  # no image takes more: 4 bytes for each of as many pixels as may be configured
TILE = (0x0142, 0x0143)  # TIFF tags for width and height of a tile, which the decoder allocates as a whole
ORIENTATION = 0x0112  # the EXIF tag, and the operation that undoes each of its values
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class BrokenImage(ValueError):
    """Raised for a file without an image, or with a part of one. The text says why, in one line."""


class Box(NamedTuple):
    """A part of an image, in pixels at full size."""

    top: int
    left: int
    height: int
    width: int


class Picture(Protocol):
    """An image that is opened and not yet decoded."""

    height: int
    width: int

    def pixels(self, factor: int, box: Box | None = None) -> np.ndarray:
        """Return what lies in the box, None: everything, of [ceil(height / f), ceil(width / f), 3] uint8.

        f is `factor` (1, 2, 4, 8) for formats that can be decoded at less than full size, otherwise 1.
        Raises BrokenImage."""
        ...


def choose_decoder(decoder: str) -> str:
    """Return the decoder, the fastest that is installed for `auto`. Raises ValueError if it cannot be loaded."""
    if decoder == "auto":
        for faster in ("nvimgcodec", "simplejpeg"):
            with suppress(ValueError):
                return choose_decoder(faster)
        return "pillow"
    needed = {"nvimgcodec": "nvidia-nvimgcodec-cu12", "simplejpeg": "simplejpeg"}
    try:
        if decoder != "pillow":
            importlib.import_module("simplejpeg")  # which reads the headers for nvimgcodec
        if decoder == "nvimgcodec":
            _check_nvimgcodec()
    except ImportError as error:
        expected = f"auto or another where {error.name} is missing (pip install {needed[decoder]})"
        raise ValueError(f"data.decoder must be {expected}, got {decoder}") from error
    return decoder


def read_image(path: str, offset: int, length: int) -> bytes:
    """Return the bytes of one image; length -1: to the end of the file. Raises BrokenImage if they cannot be read."""
    try:
        with regular_file(path) as (file, file_bytes):
            if (size := file_bytes if length < 0 else length) > FILE_BYTES:
                raise BrokenImage(f"has {size} bytes, more than the {FILE_BYTES} that an image may have")
            content = os.pread(file.fileno(), size, offset)
    except OSError as error:
        raise BrokenImage(f"cannot be read: {error.strerror}") from error
    if not content:
        raise BrokenImage("has 0 bytes")
    return content


def open_image(content: bytes, decoder: str, max_pixels: int = MAX_PIXELS) -> Picture:
    """Read the header of an image. decoder: result of `choose_decoder`. Raises BrokenImage, also for an image of more
    than `max_pixels` pixels."""
    if b"Exif\0\0" in content[:4096] and (picture := PillowPicture(content, max_pixels)).turned:
        return picture
    if decoder != "pillow" and content[:2] == b"\xff\xd8":
        import simplejpeg

        try:
            height, width, space, _ = simplejpeg.decode_jpeg_header(content)
        except ValueError:
            return PillowPicture(content, max_pixels)
        if space in ("YCbCr", "Gray"):
            _check_size(int(height), int(width), max_pixels)
            kind = JpegPartPicture if decoder == "nvimgcodec" and content.endswith(END) else JpegPicture
            return kind(content, int(height), int(width), max_pixels)
    return PillowPicture(content, max_pixels)


def _check_size(height: int, width: int, max_pixels: int) -> None:
    if height * width > max_pixels:
        raise BrokenImage(f"has {height} x {width} pixels, more than data.max_pixels = {max_pixels}")


class JpegPicture:
    """A JPEG file that simplejpeg decodes."""

    def __init__(self, content: bytes, height: int, width: int, max_pixels: int) -> None:
        self.content, self.height, self.width, self._max_pixels = content, height, width, max_pixels

    def pixels(self, factor: int, box: Box | None = None) -> np.ndarray:
        import simplejpeg

        height, width = -(-self.height // factor), -(-self.width // factor)
        try:
            pixels = simplejpeg.decode_jpeg(self.content, "RGB", min_height=height, min_width=width)
        except ValueError:  # it rejects files that Pillow accepts
            return PillowPicture(self.content, self._max_pixels).pixels(factor, box)
        return _cut(pixels, self, box)


class JpegPartPicture(JpegPicture):
    """A JPEG file. nvImageCodec decodes only its requested part, at full size. It misses damage elsewhere, so it is not
    for files without their end."""

    def pixels(self, factor: int, box: Box | None = None) -> np.ndarray:
        if factor == 1 and box is not None and box.width >= NARROW:
            pixels = _part_decoder()(self, box)
            if pixels is not None:
                return pixels
        return super().pixels(factor, box)


class PillowPicture:
    """A file of any format that Pillow decodes."""

    def __init__(self, content: bytes, max_pixels: int) -> None:
        try:
            self._image = Image.open(BytesIO(content), formats=FORMATS)
            width, height = self._image.size
            _check_size(height, width, max_pixels)
            if isinstance(self._image, TiffImageFile):
                width, height = (int(self._image.tag_v2.get(tag, 0)) for tag in TILE)
                _check_size(height, width, max_pixels)
            self._turn = TURNS.get(self._image.getexif().get(ORIENTATION, 1))  # decodes a PNG
        except (BrokenImage, MemoryError):
            raise
        except Image.DecompressionBombError as error:
            raise BrokenImage(f"has more pixels than data.max_pixels = {max_pixels}") from error
        except Exception as error:  # a damaged file may raise anything
            raise _as_broken(error) from error
        self.width, self.height = self._image.size
        if self._turn is not None and self._turn not in (TURNS[2], TURNS[3], TURNS[4]):
            self.width, self.height = self.height, self.width

    @property
    def turned(self) -> bool:
        """Return whether the EXIF tag says that the pixels are not upright."""
        return self._turn is not None

    def pixels(self, factor: int, box: Box | None = None) -> np.ndarray:
        try:
            if factor > 1:
                width, height = self._image.size
                self._image.draft("RGB", (width // factor, height // factor))
            image = self._image.convert("RGB")
        except MemoryError:
            raise
        except Exception as error:  # as above
            raise _as_broken(error) from error
        return _cut(np.array(image if self._turn is None else image.transpose(self._turn)), self, box)


def _cut(pixels: np.ndarray, picture: Picture, box: Box | None) -> np.ndarray:
    """Cut the box out of the pixels of the whole image, which may be at a reduced size."""
    if box is None:
        return pixels
    rows, columns = len(pixels) / picture.height, pixels.shape[1] / picture.width  # 1 at full size
    bottom, right = round((box.top + box.height) * rows), round((box.left + box.width) * columns)
    return pixels[round(box.top * rows) : bottom, round(box.left * columns) : right]


def _as_broken(error: Exception) -> BrokenImage:
    return BrokenImage(f"cannot be decoded: {' '.join(str(error).split()) or type(error).__name__}")


def _check_nvimgcodec() -> None:
    """Raise ImportError if nvImageCodec is missing or too old.

    Does not import it: that may initialise CUDA, which forked processes could not use then."""
    if importlib.util.find_spec("nvidia.nvimgcodec") is None:
        raise ImportError("missing", name="nvidia.nvimgcodec")
    for cuda in ("cu12", "cu13", "cu11"):
        with suppress(PackageNotFoundError):
            major, minor = version(f"nvidia-nvimgcodec-{cuda}").split(".")[:2]
            if (int(major), int(minor)) >= (0, 9):
                return
    raise ImportError("too old", name="nvidia.nvimgcodec >= 0.9")


@cache
def _part_decoder() -> Callable[[JpegPartPicture, Box], np.ndarray | None]:
    """Return a function from a JPEG file and a box to pixels; it returns None for files not supported."""
    with _silence():
        codec = importlib.import_module("nvidia.nvimgcodec")
    cpu = {"device_id": codec.NVIMGCODEC_DEVICE_CPU_ONLY, "backends": [codec.Backend(codec.CPU_ONLY)]}
    decoder = codec.Decoder(**cpu, max_num_cpu_threads=1)
    upright_rgb = codec.DecodeParams(apply_exif_orientation=False, sample_format=codec.I_RGB)

    def decode(picture: JpegPartPicture, box: Box) -> np.ndarray | None:
        region = codec.Region(box.top, box.left, box.top + box.height, box.left + box.width)
        try:
            stream = codec.CodeStream(picture.content)
            if (stream.height, stream.width) != (picture.height, picture.width):  # one of two headers
                return None
            part = stream.get_sub_code_stream(region=region)
        except RuntimeError:  # of its header
            return None
        image = decoder.decode(part, params=upright_rgb)
        return None if image is None else np.asarray(image)

    return decode


@contextmanager
def _silence() -> Iterator[None]:
    """Silence standard error, of C++ too: nvImageCodec names each codec of a GPU that it does not find."""
    try:
        kept = os.dup(2)
    except OSError:  # it is closed
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
