"""Small folders of images, and what torchvision makes of a file."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from dsgd.data.images.decode import choose_decoder
from dsgd.data.images.generate import Generated

DECODERS = ["simplejpeg", "pillow", *(["nvimgcodec"] if choose_decoder("auto") == "nvimgcodec" else [])]
IMAGES = Generated(classes=3, samples_per_class=8, test_per_class=3, seed=1, side=120)


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
