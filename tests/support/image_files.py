"""Small folders of images, and what torchvision makes of a file."""

from __future__ import annotations

import struct
import zlib
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from dsgd.data.imagenet import Generated
from dsgd.data.images.decode import choose_decoder
from dsgd.models import declare_missing_operators

DECODERS = ["simplejpeg", "pillow", *(["nvimgcodec"] if choose_decoder("auto") == "nvimgcodec" else [])]
IMAGES = Generated(classes=3, samples_per_class=8, test_per_class=3, seed=1, side=120)


def torchvision() -> Any:
    """Import it for the test that asks for it, not for all that are collected: it takes a second."""
    declare_missing_operators()
    import torchvision

    return torchvision


def photograph(height: int = 180, width: int = 240, seed: int = 0) -> np.ndarray:
    """[height, width, 3] uint8, with detail of many sizes and nothing symmetric."""
    rng = np.random.default_rng(seed)
    image = np.zeros((height, width, 3), np.float32)
    for cells in (3, 8, 30):
        coarse = Image.fromarray(rng.integers(0, 256, (cells, cells, 3), np.uint8))
        image += np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), np.float32) / 3
    return (image + rng.integers(-5, 6, (height, width, 1))).clip(0, 255).astype(np.uint8)


def jpeg(pixels: np.ndarray, mode: str = "RGB", **options: object) -> bytes:
    """As a JPEG file of this mode."""
    file = BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, "JPEG", **({"quality": 92} | options))
    return file.getvalue()


def by_pillow(content: bytes) -> np.ndarray:
    """[height, width, 3] uint8."""
    return np.asarray(Image.open(BytesIO(content)).convert("RGB"))


def truncate(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def saying(kind: str, height: int, width: int) -> bytes:
    """A small JPEG or PNG file whose header says that it has so many pixels; what follows is that of 64 x 64 ones."""
    file = BytesIO()
    small = Image.fromarray(photograph(64, 64))
    small.save(file, kind)
    content = bytearray(file.getvalue())
    if kind == "JPEG":
        at = content.index(b"\xff\xc0") + 5
        content[at : at + 4] = struct.pack(">HH", height, width)
    else:
        content[16:24] = struct.pack(">II", width, height)
        content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    return bytes(content)


def tiff_of_a_tile(side: int, tile: int) -> bytes:
    """A TIFF file of side x side pixels in one tile of tile x tile."""
    tags = {256: side, 257: side, 258: 8, 259: 5, 262: 1, 277: 1, 322: tile, 323: tile, 324: 0, 325: 64}
    start = 8 + 2 + 12 * len(tags) + 4
    entries = [struct.pack("<HHII", tag, 4, 1, start if tag == 324 else value) for tag, value in tags.items()]
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + b"".join(entries) + bytes(4 + 64)
