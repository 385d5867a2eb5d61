"""Read Fashion-MNIST, MNIST, KMNIST and EMNIST from IDX files, packed by gzip or not, in torchvision's folder layout.

Sources: Xiao, Rasul, Vollgraf 2017, Fashion-MNIST, arXiv 1708.07747; LeCun et al. 1998, Gradient-based learning applied
to document recognition; Clanuwat et al. 2018, Deep learning for classical Japanese literature, arXiv 1812.01718; Cohen
et al. 2017, EMNIST, arXiv 1702.05373. An IDX file is a magic number, the size of each axis as 32-bit big-endian
integers, and bytes.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from dsgd.data.split import Arrays, ImageSet
from dsgd.host.files import version_of
from dsgd.keys import check_options

SIDE = 28  # pixels of every image
MOST_SAMPLES = 2**20  # bounds the memory; the largest set, EMNIST by class, has 697,932
UNSIGNED_BYTES = 0x08  # the type of the elements, in the magic number
PACKED_AT_ONCE = 2**20  # bytes that are unpacked at a time


class Source(NamedTuple):
    """The location of a collection's files. folder: folder below data.root, named as torchvision's class. system:
    folder of Debian's package. first_labels: first labels of the training set, which identify the collection."""

    folder: str
    system: str | None = None
    first_labels: tuple[int, ...] = ()


COLLECTIONS = {
    "fashion_mnist": Source("FashionMNIST", "/usr/share/datasets/fashion-mnist", (9, 0, 0, 3, 0, 2, 7, 2, 5, 5)),
    "mnist": Source("MNIST", None, (5, 0, 4, 1, 9, 2, 1, 3, 1, 4)),
    "kmnist": Source("KMNIST"),
    "emnist": Source("EMNIST"),
}
# Subsets of EMNIST, with the number of classes. The labels of `letters` begin at 1.
SUBSETS = {"balanced": 47, "byclass": 62, "bymerge": 47, "digits": 10, "letters": 26, "mnist": 10}


@dataclass(frozen=True)
class Idx(ImageSet):
    """Grey images of 28 x 28 pixels; 60,000 for training and 10,000 for test, more in most subsets of EMNIST."""

    collection: str = "fashion_mnist"  # fashion_mnist | mnist | kmnist | emnist
    subset: str | None = None  # of emnist: balanced | byclass | bymerge | digits | letters | mnist
    root: str = "data"  # folder that holds FashionMNIST/raw and its like
    resolution: int = SIDE  # pixels of a side: a divisor of 28; each pixel is the mean of a square of the file's pixels

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self, collection=COLLECTIONS)
        if self.collection == "emnist" and self.subset not in SUBSETS:
            raise ValueError(f"subset must be one of {', '.join(SUBSETS)}, got {self.subset!r}")
        if self.collection != "emnist" and self.subset is not None:
            raise ValueError(f"subset must be null with collection={self.collection}, got {self.subset!r}")
        if self.resolution < 4 or SIDE % self.resolution:
            raise ValueError(f"resolution must be 4, 7, 14 or 28, got {self.resolution}")

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (1, self.resolution, self.resolution)

    @property
    def classes(self) -> int:
        return SUBSETS[self.subset] if self.subset else 10

    def train_samples(self, nodes: int) -> int:
        """Count the samples in the training files, read once. Raises ValueError if they are missing or damaged."""
        return self.kept(len(self._train[0]))

    def check(self, nodes: int, batch_size: int) -> None:
        super().check(nodes, batch_size)
        self._read(test=True)

    def read(self) -> tuple[Arrays, Arrays]:
        return self._train, self._read(test=True)

    @cached_property
    def _train(self) -> Arrays:
        return self._read(test=False)

    def _read(self, test: bool) -> Arrays:
        """Read images [n, 1, resolution, resolution] uint8 and labels [n] int64. Raises ValueError, naming the file."""
        part = "t10k" if test and self.collection != "emnist" else "test" if test else "train"
        prefix = f"emnist-{self.subset}-" if self.subset else ""
        image_path, label_path = (self._path(f"{prefix}{part}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1"))
        # the files of EMNIST have the axes of an image in the other order
        swapped, side = self.collection == "emnist", SIDE // self.resolution
        images = _images(image_path, version_of(image_path), swapped, side)
        labels = read_idx(label_path, axes=1).astype(np.int64)
        if len(images) != len(labels):
            raise ValueError(f"{label_path} must hold {len(images)} labels, one for each image, got {len(labels)}")
        first = 1 if self.subset == "letters" else 0
        if labels.min() < first or labels.max() >= first + self.classes:
            expected = f"in [{first}, {first + self.classes})"
            raise ValueError(f"{label_path}: labels must be {expected}, got {labels.min()} to {labels.max()}")
        if not test:
            self._check_collection(labels, label_path)
        return images, labels - first

    def _path(self, name: str) -> Path:
        """Return the path of a file, packed or not. Raises ValueError if it is missing."""
        source = COLLECTIONS[self.collection]
        wanted = Path(self.root).expanduser() / source.folder / "raw"
        for folder in (wanted, Path(source.system)) if source.system else (wanted,):
            for path in (folder / name, folder / f"{name}.gz"):
                if path.is_file():
                    return path
        subset = f", split={self.subset!r}" if self.subset else ""
        fetch = f"import torchvision; torchvision.datasets.{source.folder}({self.root!r}{subset}, download=True)"
        debian = f"; or, on Debian, apt-get install dataset-{Path(source.system).name}" if source.system else ""
        raise ValueError(
            f"data.root must be a folder with {source.folder}/raw, found no {name} in {wanted.absolute()}; "
            f'get the files by: python -c "{fetch}"{debian}'
        )

    def _check_collection(self, labels: np.ndarray, path: Path) -> None:
        """Raise ValueError if the training labels belong to another collection."""
        first = tuple(labels[:10].tolist())
        for name, source in COLLECTIONS.items():
            if name != self.collection and first == source.first_labels:
                raise ValueError(f"{path} must be a file of {self.collection}, got one of {name}")


@lru_cache(maxsize=2)  # training and test: all runs of a sweep have the same
def _images(path: Path, _version: tuple[int, ...], swapped: bool, side: int) -> np.ndarray:
    """Read images, [n, 1, height, width] uint8, each pixel the mean of a square. swapped: the file has the columns
    first."""
    images = read_idx(path, axes=3)
    if images.shape[1:] != (SIDE, SIDE):
        sides = " x ".join(map(str, images.shape[1:]))
        raise ValueError(f"{path} must hold images of {SIDE} x {SIDE} pixels, got {sides}")
    return averaged(images.transpose(0, 2, 1) if swapped else images, side)[:, None]


def read_idx(path: Path, axes: int) -> np.ndarray:
    """Read an array of bytes with `axes` axes from an IDX file. Raises ValueError, naming the file, if it is damaged or
    another file, without allocating more memory than its header may request."""
    header = 4 * (1 + axes)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            start = file.read(header)
            magic, *shape = struct.unpack(f">{1 + axes}I", start) if len(start) == header else (0, 0)
            if magic != UNSIGNED_BYTES << 8 | axes:
                raise ValueError(f"{path} must be an IDX file of bytes with {axes} axes, got something else")
            if not 0 < shape[0] <= MOST_SAMPLES or not all(0 < size <= 1024 for size in shape[1:]):
                sizes = " x ".join(map(str, shape))
                raise ValueError(f"{path} must hold 1 to {MOST_SAMPLES} samples, got a header that says {sizes}")
            content = bytearray().join(_at_most(file, math.prod(shape) + 1))  # which torch may share, unlike bytes
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if len(content) != math.prod(shape):
        got = "fewer" if len(content) < math.prod(shape) else "more"
        raise ValueError(f"{path} must have the {math.prod(shape)} bytes that its header says, got {got}")
    return np.frombuffer(content, np.uint8).reshape(shape)


def _at_most(file: IO[bytes] | gzip.GzipFile, count: int) -> Iterator[bytes]:
    """Yield the next bytes of a file, at most `count`."""
    while count and (part := file.read(min(count, PACKED_AT_ONCE))):
        count -= len(part)
        yield part


def averaged(images: np.ndarray, side: int) -> np.ndarray:
    """Return images whose pixels are the means, rounded half up, of squares of side x side pixels.

    images: [n, height, width] uint8, whose height and width `side` divides."""
    if side == 1:
        return np.ascontiguousarray(images)
    n, height, width = images.shape
    squares = images.reshape(n, height // side, side, width // side, side)
    total = squares.sum(axis=(2, 4), dtype=np.uint32)
    return ((2 * total + side**2) // (2 * side**2)).astype(np.uint8)
