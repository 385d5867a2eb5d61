"""Configure ImageNet (ILSVRC 2012), any photographs in such folders or tar shards, and generated ones like them.

Source: Russakovsky et al. 2015, ImageNet large scale visual recognition challenge. Nothing is downloaded.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from dsgd.checks import check_options
from dsgd.data.images import SIDE
from dsgd.data.images.decode import DECODERS, MAX_PIXELS, choose_decoder
from dsgd.data.images.generate import Generated, default_folder
from dsgd.data.images.layout import Layout, choose_images, find_images
from dsgd.data.split import Split
from dsgd.host.files import expanded

if TYPE_CHECKING:
    import torch

    from dsgd.data.images.loader import Images

ON_ERROR = ("skip", "fail")
SHAPE = (3, SIDE, SIDE)
MOST_PIXELS = 2**27  # to configure: Pillow itself refuses little more
MOST_WORKERS = 1024  # decoding processes, more than any machine has cores for
MOST_SIDE = 4096  # pixels, of generated images: all of them are below MAX_PIXELS
IMAGES_SEED = 0  # of generated images; the run's seed only orders them
MOST_IMAGES = 10**7  # generated: a thousand gigabytes


@dataclass(frozen=True, kw_only=True)
class ImageFiles(Split):
    """The options by which images are decoded from their files, whichever these are."""

    decoder: str = "auto"  # auto | nvimgcodec | simplejpeg | pillow
    max_pixels: int = MAX_PIXELS  # height x width: a file whose header says more is broken
    on_error: str = "skip"  # a broken file: skip replaces it by the next one, fail ends the run
    workers: int | None = None  # decoding processes of each process that trains; None: its share of the cores

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
