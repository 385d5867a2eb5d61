"""Read CIFAR-10 and CIFAR-100 from the files that torchvision leaves on disk (the authors' "python version").

Source: Krizhevsky 2009, Learning multiple layers of features from tiny images. The files are pickles; they are read
here, not by torchvision, because torchvision would run any code that a pickle names, and insists on the original
archives.
"""

from __future__ import annotations

import json
import pickle
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from dsgd.data.split import Arrays, ImageSet
from dsgd.host.files import expanded, regular_file, version_of
from dsgd.host.foreign_pickles import unpickled

LARGEST = 2**28  # bytes of a file: the largest has 155 MB
# classes: folder, training files, test file, key of the labels
LAYOUT = {
    10: ("cifar-10-batches-py", tuple(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "labels"),
    100: ("cifar-100-python", ("train",), "test", "fine_labels"),
}


@dataclass(frozen=True)
class Cifar(ImageSet):
    """Photographs of 32 x 32 pixels in 10 or 100 classes; 50,000 for training and 10,000 for test in the full files."""

    classes: int = 10
    root: str = "data"  # folder that holds cifar-10-batches-py or cifar-100-python
    augment: bool = field(default=True, kw_only=True)  # usual on CIFAR since He et al. 2015

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.classes not in LAYOUT:
            raise ValueError(f"classes must be 10 or 100, got {self.classes}")

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (3, 32, 32)

    def train_samples(self, nodes: int) -> int:
        """Count the samples in the training files, read once. Raises ValueError if they are missing or damaged."""
        return self.kept(len(self._read(test=False)[0]))

    def check(self, nodes: int, batch_size: int) -> None:
        super().check(nodes, batch_size)
        self._read(test=True)

    def read(self) -> tuple[Arrays, Arrays]:
        return self._read(test=False), self._read(test=True)

    def _read(self, test: bool) -> Arrays:
        name, train_files, test_file, label_key = LAYOUT[self.classes]
        folder = expanded(self.root, "data.root") / name
        missing = [file for file in (*train_files, test_file) if not (folder / file).is_file()]
        if missing:
            download = f"datasets.CIFAR{self.classes}({json.dumps(self.root)}, download=True)"
            fetch = shlex.quote(f'from dsgd.models import imported; imported("torchvision").{download}')
            raise ValueError(
                f"data.root must be a folder with {name}, found no {missing[0]} in {folder.absolute()}; "
                f"get the files by: python -c {fetch}"
            )
        paths = tuple(folder / file for file in ((test_file,) if test else train_files))
        return _batches(paths, tuple(map(version_of, paths)), label_key, self.classes)


@lru_cache(maxsize=2)  # training and test: all runs of a sweep have the same
def _batches(paths: Sequence[Path], _versions: Sequence[tuple[int, ...]], label_key: str, classes: int) -> Arrays:
    """Read the images and labels of several files, one after the other."""
    images, labels = zip(*(read_batch(path, label_key, classes) for path in paths), strict=True)
    return np.concatenate(images), np.concatenate(labels)


def read_batch(path: Path, label_key: str, classes: int) -> Arrays:
    """Read images [n, 3, 32, 32] uint8 and labels [n] int64, in [0, classes), from one file.

    Runs no code that the file names. Raises ValueError, naming the file, if it is damaged or something else."""
    try:
        with regular_file(path) as (file, size):
            pickled = file.read(min(size, LARGEST))
        content = unpickled(pickled, _ALLOWED, "bytes")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except Exception as error:  # a damaged pickle may raise anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path} is damaged or not a CIFAR file: {reason}; delete and download it again") from error
    problem = f"{path} is not a CIFAR-{classes} file: "
    if not isinstance(content, dict):
        raise ValueError(f"{problem}expected a dictionary, got {type(content).__name__}")
    # Python 2 wrote the keys as bytes, other writers use text
    content = {key.decode("latin1") if isinstance(key, bytes) else key: value for key, value in content.items()}
    if absent := {"data", label_key} - content.keys():
        raise ValueError(f"{problem}no {' and no '.join(sorted(absent))} in it")
    images, labels = content["data"], np.asarray(content[label_key])
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.ndim != 2 or images.shape[1] != 3072:
        raise ValueError(f"{problem}data must be bytes of shape [n, 3072]")
    if not len(images):
        raise ValueError(f"{problem}no image in it")
    if labels.shape != images.shape[:1] or labels.dtype.kind not in "iu":
        raise ValueError(f"{problem}{label_key} must be {len(images)} integers, one for each image")
    if labels.min() < 0 or labels.max() >= classes:
        raise ValueError(f"{problem}labels must be in [0, {classes}), got {labels.min()} to {labels.max()}")
    return images.reshape(-1, 3, 32, 32), labels.astype(np.int64)


def _integer_dtype(name: bytes | str, *_flags: object) -> np.dtype:
    """Replace numpy.dtype(name, align, copy): Python 2 wrote the flags as 0 and 1, which NumPy warns about."""
    text = name.decode("latin1") if isinstance(name, bytes) else name
    if not re.fullmatch("[iu][1248]", text):
        raise pickle.UnpicklingError(f"it holds an array of {text}, not of integers")
    return np.dtype(text, copy=True)  # the pickle sets the byte order of this object


def _latin1(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it asks for the encoding {encoding!r}, which is not allowed")
    return text.encode("latin1")


def _empty_array(*_: object) -> np.ndarray:
    """Replace numpy's function, which would allocate any shape: later operations set shape and contents."""
    return np.empty(0, np.int8)


# NumPy arrays of integers in built-in containers
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _empty_array,  # NumPy 1
    ("numpy._core.multiarray", "_reconstruct"): _empty_array,  # NumPy 2
    ("numpy", "ndarray"): "ndarray",  # an argument, not to be called
    ("numpy", "dtype"): _integer_dtype,
    ("_codecs", "encode"): _latin1,  # Python 3's form of bytes in protocol 2,
    ("__builtin__", "bytes"): lambda: b"",  # and of empty ones
}
