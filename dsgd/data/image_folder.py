"""Read the user's own images from folders of classes, at their own size or resized, and keep them in memory.

Every image is decoded when the configuration is checked: a file that cannot serve is named before any work begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image

from dsgd.data.images.decode import MAX_PIXELS, BrokenImage, Picture, choose_decoder, open_image, read_image
from dsgd.data.images.layout import ImageSource, Layout, choose_images, find_classes, find_files, find_folders
from dsgd.data.split import Arrays, ImageSet
from dsgd.keys import check_options
from dsgd.streams import stream

TRAIN, TESTS = "train", ("val", "test")  # folders in data.root
MOST_RESOLUTION = 1024
MOST_PIXELS = 2**27  # to configure: Pillow itself refuses little more
MOST_BYTES = 2**32  # of the pixels of one split, which are kept in memory
ELONGATED = 16  # above this ratio of sides, only the middle of an image is resized: the whole could take any memory


@dataclass(frozen=True)
class ImageFolder(ImageSet):
    """Images in root/train/CLASS/ and root/val/CLASS/ or root/test/CLASS/, or in root/CLASS/, as [3, height, width]."""

    root: str
    resolution: int | None = None  # pixels of a side: resized and cropped to it; null: unchanged, all of one size
    test_share: float | None = None  # of root/CLASS/: share of each class that is the test set, the same in every run
    max_pixels: int = MAX_PIXELS  # height x width: a file whose header says more is refused

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(
            self,
            resolution=f"in [1, {MOST_RESOLUTION}] or null",
            test_share="in (0, 1) or null",
            max_pixels=f"in [1, {MOST_PIXELS}]",
        )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of the first training image, or as resized. Raises ValueError."""
        return (3, *_size(self._layout.train, self.resolution, _Opener(self.max_pixels)))

    @property
    def classes(self) -> int:
        """Number of classes in the folder. Raises ValueError."""
        return len(self._layout.classes)

    def train_samples(self, nodes: int) -> int:
        """Count the images in the folder that are trained on. Raises ValueError."""
        return self.kept(len(self._layout.train.labels))

    def check(self, nodes: int, batch_size: int) -> None:
        super().check(nodes, batch_size)
        self.read()

    @property
    def _layout(self) -> Layout:
        return find_image_folder(self._folder, self.test_share)

    @property
    def _folder(self) -> Path:
        return Path(self.root).expanduser().absolute()

    def read(self) -> tuple[Arrays, Arrays]:
        return read_images(self._folder, self.resolution, self.test_share, self.max_pixels)


@lru_cache(maxsize=4)  # the options are asked for it many times
def find_image_folder(folder: Path, test_share: float | None) -> Layout:
    """Find the images below a folder. Raises ValueError, one line, if it has another layout."""
    wanted = "a folder with train/CLASS/ and val/CLASS/ or test/CLASS/, or with CLASS/ alone"
    if not folder.is_dir():
        raise ValueError(f"data.root must be {wanted}, found no folder {folder}")
    there = [name for name in (TRAIN, *TESTS) if (folder / name).is_dir()]
    if not there:
        return _divided(folder, test_share)
    if TRAIN not in there or len(there) != 2:
        rule = "train/ and one of val/ and test/"
        raise ValueError(f"data.root must have {rule}, found {' and '.join(there)} in {folder}")
    if test_share is not None:
        raise ValueError(f"data.test_share must be null, as {folder} has {there[1]}/, got {test_share}")
    return find_folders({name: folder / name for name in there}, "data.root", strict=False)


def _divided(folder: Path, test_share: float | None) -> Layout:
    """Divide the images of each class at random, in the same way in every run."""
    classes = find_classes(folder, "data.root")
    if test_share is None:
        rule = "a number, as 0.2, for a folder without train/ and test/"
        raise ValueError(f"data.test_share must be {rule}, got null with data.root={folder}")
    whole = find_files(folder, classes, "data.root", strict=False)
    rng, train, test = stream("test images"), list[np.ndarray](), list[np.ndarray]()
    for label, name in enumerate(classes):
        (members,) = (whole.labels == label).nonzero()
        if not 0 < (count := round(test_share * len(members))) < len(members):
            rule = f"leave images of every class for training and for test, got {test_share} of {len(members)}"
            raise ValueError(f"data.test_share must {rule} in {folder / name}")
        order = rng.permutation(members)
        test.append(np.sort(order[:count]))
        train.append(np.sort(order[count:]))
    splits = [choose_images(whole, np.concatenate(chosen)) for chosen in (train, test)]
    return Layout(splits[0], splits[1], tuple(classes))


@lru_cache(maxsize=1)  # all jobs of a sweep have the same
def read_images(
    folder: Path, resolution: int | None, test_share: float | None, max_pixels: int
) -> tuple[Arrays, Arrays]:
    """Return the images [n, 3, height, width] uint8 and labels [n] for training and for test. Read only.

    Raises ValueError, one line that names the first file that is damaged, cannot be read, or has another size."""
    layout, opener = find_image_folder(folder, test_share), _Opener(max_pixels)
    size = _size(layout.train, resolution, opener)
    for split in (layout.train, layout.test):
        if (count := 3 * size[0] * size[1] * len(split.labels)) > MOST_BYTES:
            rule = f"must hold images that fit in {MOST_BYTES / 2**30:g} GiB, got {len(split.labels)} of {_by(size)}"
            hint = "data.resolution makes them smaller; data=imagenet reads them from disk"
            raise ValueError(f"data.root {rule}, {count / 2**30:.3g} GiB, in {folder}; {hint}")
    train, test = (_pixels(split, size, resolution, opener) for split in (layout.train, layout.test))
    return train, test


def _pixels(split: ImageSource, size: tuple[int, int], resolution: int | None, opener: _Opener) -> Arrays:
    images = np.empty((len(split.labels), 3, *size), np.uint8)
    for sample, image in enumerate(images):
        picture = opener.open(split, sample)
        if resolution is None and (picture.height, picture.width) != size:
            here, first = _by((picture.height, picture.width)), _by(size)
            rule = f"be given for images of several sizes, got {here} in {split.name(sample)} and {first} before"
            raise ValueError(f"data.resolution must {rule}")
        try:
            pixels = picture.pixels(1)
        except BrokenImage as error:
            raise _unusable(split, sample, error) from error
        image[:] = (pixels if resolution is None else resized_and_cropped(pixels, resolution)).transpose(2, 0, 1)
    return images, split.labels


def resized_and_cropped(pixels: np.ndarray, side: int) -> np.ndarray:
    """Return the centre [side, side, 3] of an image [height, width, 3] whose shorter side is resized to `side`."""
    height, width = (min(length, ELONGATED * min(pixels.shape[:2])) for length in pixels.shape[:2])
    top, left = (pixels.shape[0] - height) // 2, (pixels.shape[1] - width) // 2
    short = min(height, width)
    rows, columns = side * height // short, side * width // short
    middle = Image.fromarray(pixels[top : top + height, left : left + width])
    resized = np.asarray(middle.resize((columns, rows), Image.Resampling.BILINEAR))
    down, right = round((rows - side) / 2), round((columns - side) / 2)
    return resized[down : down + side, right : right + side]


class _Opener:
    """Reads files, and the headers of their images."""

    def __init__(self, max_pixels: int) -> None:
        self._max_pixels, self._decoder = max_pixels, choose_decoder("auto")

    def open(self, split: ImageSource, sample: int) -> Picture:
        """Return an image that is not yet decoded. Raises ValueError."""
        try:
            return open_image(read_image(*split.locate(sample)), self._decoder, self._max_pixels)
        except BrokenImage as error:
            raise _unusable(split, sample, error) from error


def _size(split: ImageSource, resolution: int | None, opener: _Opener) -> tuple[int, int]:
    """Return height and width of the inputs."""
    if resolution is not None:
        return resolution, resolution
    first = opener.open(split, 0)
    return first.height, first.width


def _unusable(split: ImageSource, sample: int, error: BrokenImage) -> ValueError:
    return ValueError(f"data.root must hold images that can be read, got {split.name(sample)}, which {error}")


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]} pixels"
