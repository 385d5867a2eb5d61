"""Generate JPEG files with the sizes of ImageNet's, in the folders that ImageNet has.

Every class has a texture of its own: two colours, and the direction and width of stripes between them. Around it lie
blotches of any colour, and grain, so that a file of 500 x 375 takes about 110 kB, as ImageNet's do.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import uuid4

import numpy as np
from PIL import Image, ImageChops

from dsgd.data.images.decode import read_image
from dsgd.data.images.layout import TEST, TRAIN
from dsgd.host.files import expanded
from dsgd.host.resources import cores
from dsgd.streams import stream

STAMP = "generated.json"  # what the folder was made with
VERSION = 1  # of what is drawn
# height and width in units of the longer side of most, and how often; ImageNet's mean is about 400 x 350
SIZES = {(0.75, 1.0): 0.45, (0.667, 1.0): 0.2, (1.0, 0.75): 0.15, (1.0, 1.0): 0.05, (0.45, 0.6): 0.1, (1.2, 1.6): 0.05}
QUALITY = 93  # of the JPEG files
GRAIN = 24  # levels of 255 up and down: sets the size of the files
WAVE = [round(127.5 * (1 + math.sin(2 * math.pi * phase / 256))) for phase in range(256)]
COVER = [min(max(3 * level - 190, 0), 255) for level in range(256)]  # texture in about two thirds of the image


@dataclass(frozen=True)
class Generated:
    """A folder of generated images: the same numbers give the same bytes."""

    classes: int
    samples_per_class: int
    test_per_class: int
    seed: int
    side: int  # pixels, of the longer side of most images
    version: int = VERSION

    def make(self, folder: Path, made: Callable[[], object] = lambda: None) -> None:
        """Make the folder unless it is there already. It appears all at once, so several processes may call this.

        made: called after each file. Raises ValueError if there is something else."""
        if self.check(folder):
            return
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = folder.with_name(f".{folder.name}.{uuid4().hex}")
        try:
            self._write(draft, made)
            try:
                os.rename(draft, folder)
            except OSError:  # another process was faster
                if not self.check(folder):
                    raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def check(self, folder: Path) -> bool:
        """Return whether the folder is there. Raises ValueError if it holds something else."""
        if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
            return False
        try:
            stamp = json.loads(read_image(str(folder / STAMP), 0, -1))
            if not isinstance(stamp, dict):
                raise ValueError(f"{STAMP} must be a JSON object, got {type(stamp).__name__}")
        except (ValueError, RecursionError) as error:
            raise ValueError(f"data.path must be a new folder or one of generated images, got {folder}") from error
        if stamp != asdict(self):
            other = ", ".join(
                f"{key}={str(stamp.get(key))[:20]}" for key, value in asdict(self).items() if stamp.get(key) != value
            )
            raise ValueError(f"data.path must hold the images that are asked for, got {folder} made with {other}")
        return True

    def _write(self, draft: Path, made: Callable[[], object]) -> None:
        wanted = []
        for split, count in ((TRAIN, self.samples_per_class), (TEST, self.test_per_class)):
            for label in range(self.classes):
                folder = draft / split / f"class{label:04d}"
                folder.mkdir(parents=True)
                wanted += [(folder / f"{number:06d}.JPEG", split == TEST, label, number) for number in range(count)]

        def write(path: Path, test: bool, label: int, number: int) -> None:
            Image.fromarray(self.draw(test, label, number)).save(path, "JPEG", quality=QUALITY)

        with ThreadPoolExecutor(cores()) as threads:
            try:
                for _ in threads.map(write, *zip(*wanted, strict=True)):
                    made()
            except BaseException:
                threads.shutdown(cancel_futures=True)
                raise
        (draft / STAMP).write_text(json.dumps(asdict(self)), encoding="utf-8")

    def draw(self, test: bool, label: int, number: int) -> np.ndarray:
        """Draw one image [height, width, 3] uint8."""
        look = stream("class look", self.seed, label)
        light, dark = (tuple(colour) for colour in look.integers(0, 256, (2, 3)).tolist())
        angle, wave = look.uniform(0, np.pi), look.uniform(0.04, 0.16)
        rng = stream("generated image", self.seed, int(test), label, number)
        sizes = np.array(list(SIZES))[rng.choice(len(SIZES), p=list(SIZES.values()))]
        height, width = (max(16, round(self.side * size)) for size in sizes)
        y, x = np.ogrid[:height, :width]
        scale = 256 / (wave * self.side)  # a wave is 256 phases long
        phase = (np.cos(angle) * scale * x + rng.integers(0, 256)) + np.sin(angle) * scale * y
        stripes = Image.fromarray(phase.astype(np.int32).astype(np.uint8)).point(WAVE)
        size = stripes.size
        texture = Image.composite(Image.new("RGB", size, light), Image.new("RGB", size, dark), stripes)
        image = Image.composite(texture, _blotches(rng, size, 6, "RGB"), _blotches(rng, size, 5, "L").point(COVER))
        grain = Image.fromarray(rng.integers(0, 2 * GRAIN + 1, (height, width), np.uint8))
        return np.asarray(ImageChops.add(image, Image.merge("RGB", (grain,) * 3), offset=-GRAIN))


def default_folder(name: str) -> Path:
    """Return the folder in the user's cache for generated images of this name. Raises ValueError without a home."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return expanded(cache, "the default of data.path") / "dsgd" / "imagenet-like" / name


def _blotches(rng: np.random.Generator, size: tuple[int, int], cells: int, mode: str) -> Image.Image:
    """Draw smooth noise with about `cells` blotches a side. size: width and height."""
    shape = (cells, cells, 3) if mode == "RGB" else (cells, cells)
    coarse = Image.fromarray(rng.integers(0, 256, shape, np.uint8))
    return coarse.resize(size, Image.Resampling.BICUBIC)
