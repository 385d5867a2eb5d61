"""From the bytes of an image file to its pixels, upright and in RGB, at full size or at 1/2, 1/4, 1/8 of it.

simplejpeg is a third faster than Pillow, and gives the same pixels at full size. What it does not take (CMYK, files
turned by their EXIF tag, other formats under the name .jpg, damage) goes to Pillow: so a file is broken when Pillow
says so, whichever decoder is chosen.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from io import BytesIO
from typing import Protocol

import numpy as np
from PIL import Image

DECODERS = ("auto", "simplejpeg", "pillow")
ORIENTATION = 0x0112  # the EXIF tag, and what undoes each of its values
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class Broken(ValueError):
    """A file that holds no image, or not all of one. The text says why, in one line."""


class Picture(Protocol):
    """An image that is opened and not yet decoded."""

    height: int
    width: int

    def pixels(self, factor: int) -> np.ndarray:
        """[ceil(height / f), ceil(width / f), 3] uint8, f being `factor` (1, 2, 4, 8) where the format knows how to
        decode at less than full size, otherwise 1. Raises Broken."""
        ...


def chosen(decoder: str) -> str:
    """`auto` as the fastest decoder there is. Raises ValueError for one that is not installed."""
    installed = find_spec("simplejpeg") is not None
    if decoder == "simplejpeg" and not installed:
        raise ValueError("data.decoder must be auto or pillow without simplejpeg (pip install simplejpeg)")
    if decoder == "auto":
        return "simplejpeg" if installed else "pillow"
    return decoder


def read(path: str, offset: int, length: int) -> bytes:
    """The bytes of one image. Raises Broken if they cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            content = file.read() if length < 0 else os.pread(file.fileno(), length, offset)
    except OSError as error:
        raise Broken(f"cannot be read: {error.strerror}") from error
    if not content:
        raise Broken("has 0 bytes")
    return content


def opened(content: bytes, decoder: str) -> Picture:
    """decoder: simplejpeg or pillow. Raises Broken."""
    if b"Exif\0\0" in content[:4096] and (picture := PillowPicture(content)).turned:
        return picture
    if decoder == "simplejpeg" and content[:2] == b"\xff\xd8":
        import simplejpeg

        try:
            height, width, space, _ = simplejpeg.decode_jpeg_header(content)
        except ValueError:
            return PillowPicture(content)
        if space in ("YCbCr", "Gray"):
            return JpegPicture(content, int(height), int(width))
    return PillowPicture(content)


class JpegPicture:
    """By simplejpeg."""

    def __init__(self, content: bytes, height: int, width: int) -> None:
        self.content, self.height, self.width = content, height, width

    def pixels(self, factor: int) -> np.ndarray:
        import simplejpeg

        height, width = -(-self.height // factor), -(-self.width // factor)
        try:
            return simplejpeg.decode_jpeg(self.content, "RGB", min_height=height, min_width=width)
        except ValueError:  # it is strict about what Pillow lets pass
            return PillowPicture(self.content).pixels(factor)


class PillowPicture:
    """By Pillow."""

    def __init__(self, content: bytes) -> None:
        try:
            self._image = Image.open(BytesIO(content))
            self._turn = TURNS.get(self._image.getexif().get(ORIENTATION, 1))
        except MemoryError:
            raise
        except Exception as error:  # a damaged file may raise anything
            raise _broken(error) from error
        self.width, self.height = self._image.size
        if self._turn is not None and self._turn not in (TURNS[2], TURNS[3], TURNS[4]):
            self.width, self.height = self.height, self.width

    @property
    def turned(self) -> bool:
        """Whether the pixels in the file are not upright."""
        return self._turn is not None

    def pixels(self, factor: int) -> np.ndarray:
        try:
            if factor > 1:
                width, height = self._image.size
                self._image.draft("RGB", (width // factor, height // factor))
            image = self._image.convert("RGB")
        except MemoryError:
            raise
        except Exception as error:  # as above
            raise _broken(error) from error
        return np.array(image if self._turn is None else image.transpose(self._turn))


def _broken(error: Exception) -> Broken:
    return Broken(f"cannot be decoded: {' '.join(str(error).split()) or type(error).__name__}")
