"""Configure ImageNet (ILSVRC 2012), any photographs in such folders or tar shards, and generated ones like them.

Source: Russakovsky et al. 2015, ImageNet large scale visual recognition challenge. Nothing is downloaded.

Generated JPEG files have the sizes of ImageNet's, in the folders that ImageNet has. Every class has a texture of its
own: two colours, and the direction and width of stripes between them. Around it lie blotches of any colour, and grain,
so that a file of 500 x 375 takes about 110 kB, as ImageNet's do.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import numpy as np
from PIL import Image, ImageChops

from dsgd.data.images import SIDE
from dsgd.data.images.decode import DECODERS, MAX_PIXELS, choose_decoder, read_image
from dsgd.data.images.layout import TEST, TRAIN, Layout, choose_images, find_images
from dsgd.data.split import Split
from dsgd.host.files import expanded
from dsgd.host.resources import cores
from dsgd.keys import check_options
from dsgd.streams import stream

if TYPE_CHECKING:
    import torch

    from dsgd.data.images.loader import Images


STAMP = "generated.json"  # options with which the folder was made
VERSION = 1  # version of the drawn images
# height and width in units of the usual longer side, and their frequency; ImageNet's mean is about 400 x 350
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


ON_ERROR = ("skip", "fail")
SHAPE = (3, SIDE, SIDE)
MOST_PIXELS = 2**27  # to configure: Pillow itself refuses little more
MOST_WORKERS = 1024  # decoding processes, more than any machine has cores for
MOST_SIDE = 4096  # pixels, of generated images: all of them are below MAX_PIXELS
IMAGES_SEED = 0  # of generated images; the run's seed only orders them
MOST_IMAGES = 10**7  # generated: a thousand gigabytes


@dataclass(frozen=True, kw_only=True)
class ImageFiles(Split):
    """The options of decoding images from any files."""

    decoder: str = "auto"  # auto | nvimgcodec | simplejpeg | pillow
    max_pixels: int = MAX_PIXELS  # height x width: a file whose header says more is broken
    on_error: str = "skip"  # a broken file: skip replaces it by the next one, fail ends the run
    workers: int | None = None  # decoding processes of each training process; None: its share of the cores

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self, decoder=DECODERS, on_error=ON_ERROR)
        check_options(self, max_pixels=f"in [1, {MOST_PIXELS}]", workers=f"in [1, {MOST_WORKERS}] or null")

    @property
    def input_shape(self) -> tuple[int, ...]:
        return SHAPE

    def check(self, nodes: int, batch_size: int) -> None:
        choose_decoder(self.decoder)
        super().check(nodes, batch_size)

    def layout_of(self, path: str) -> Layout:
        return find_images(path, strict=self.on_error == "fail")

    def load_from(self, whole: Layout, nodes: int, batch_size: int, seed: int, dtype: torch.dtype) -> Images:
        """Load the images of a folder, as `DataConfig.load`."""
        from dsgd.data.images.loader import Images

        train, test = self.parts(whole.train, whole.test, choose_images, len(whole.train.labels))
        partition = self.partition(train.labels, nodes, batch_size, seed)
        decoder = choose_decoder(self.decoder)
        return Images(
            Layout(train, test, whole.classes), partition, dtype, decoder, self.max_pixels, self.on_error, self.workers
        )


@dataclass(frozen=True)
class ImageNet(ImageFiles):
    """Photographs in train/ and val/, as inputs of 3 x 224 x 224 with the standard augmentation."""

    path: str  # folder with train/<class>/*.JPEG and val/<class>/*.JPEG, or with train-*.tar and val-*.tar

    @property
    def classes(self) -> int:
        """Number of classes in the folder. Raises ValueError."""
        return len(self._layout.classes)

    def train_samples(self, nodes: int) -> int:
        """Count the images in the folder that are trained on. Raises ValueError."""
        return self.kept(len(self._layout.train.labels))

    def load(self, nodes: int, batch_size: int, seed: int, dtype: torch.dtype) -> Images:
        return self.load_from(self._layout, nodes, batch_size, seed, dtype)

    @cached_property
    def _layout(self) -> Layout:
        return self.layout_of(self.path)


@dataclass(frozen=True)
class ImageNetLike(ImageFiles):
    """Generated JPEG files with the sizes and folders of ImageNet's; made once, on first use, then kept."""

    classes: int = 10
    samples_per_class: int = 100  # for training
    test_per_class: int = 20
    side: int = 500  # pixels, of the longer side of most images; small ones decode fast
    path: str | None = None  # folder to keep them in; None: one in the user's cache

    def __post_init__(self) -> None:
        super().__post_init__()
        for key, least in (("classes", 2), ("samples_per_class", 1), ("test_per_class", 1), ("side", 16)):
            if getattr(self, key) < least:
                raise ValueError(f"{key} must be >= {least}, got {getattr(self, key)}")
        for key, most in (("classes", 10_000), ("side", MOST_SIDE)):
            if getattr(self, key) > most:
                raise ValueError(f"{key} must be <= {most}, got {getattr(self, key)}")
        most = MOST_IMAGES // self.classes
        for key in ("samples_per_class", "test_per_class"):
            if getattr(self, key) > most:
                raise ValueError(f"{key} must be <= {most} with classes={self.classes}, got {getattr(self, key)}")

    def train_samples(self, nodes: int) -> int:
        return self.kept(self.classes * self.samples_per_class)

    def check(self, nodes: int, batch_size: int) -> None:
        super().check(nodes, batch_size)
        self._images.check(self.folder)

    def load(self, nodes: int, batch_size: int, seed: int, dtype: torch.dtype) -> Images:
        if not self._images.check(self.folder):
            count = self.classes * (self.samples_per_class + self.test_per_class)
            print(f"data: generating {count} images in {self.folder}, once", file=sys.stderr)
            self._images.make(self.folder)
        return self.load_from(self.layout_of(str(self.folder)), nodes, batch_size, seed, dtype)

    @property
    def folder(self) -> Path:
        """Folder of the images, whether they are made already or not."""
        if self.path is not None:
            return expanded(self.path, "data.path").absolute()
        numbers = (self.classes, self.samples_per_class, self.test_per_class, self.side, IMAGES_SEED)
        return default_folder("-".join(map(str, numbers)))

    @property
    def _images(self) -> Generated:
        return Generated(self.classes, self.samples_per_class, self.test_per_class, IMAGES_SEED, self.side)
