"""Find the images of a data set: in a folder for each class, or in tar shards, which are also written here. Knows
neither torch nor decoders.

Shards have the names of webdataset: 000017.jpg and 000017.cls, the label in digits. Their headers are read once; then
every image is read at its offset, so samples can be in any order, the same as from folders. The library webdataset
reads shards from front to back, so it cannot serve that order.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO, FileIO
from itertools import chain
from pathlib import Path
from typing import IO, Protocol, cast

import numpy as np

from dsgd.host.files import expanded, regular_file

NAME_BYTES = 2**20  # of a member, at most; its headers may say more
LABEL_DIGITS = 9
IMAGES = ("jpg", "jpeg", "png", "ppm", "pgm", "bmp", "tif", "tiff", "webp")
EXTENSIONS = tuple(f".{extension}" for extension in IMAGES)
TRAIN, TEST = "train", "val"  # as the folders and shards are called
ImageLocation = tuple[str, int, int]  # file, offset and length in bytes; length -1: to the end


@dataclass(frozen=True, eq=False)
class Shards:
    """Images in tar files, in the order in which they lie there."""

    paths: tuple[str, ...]
    shard: np.ndarray  # [n] int32, position in paths
    offset: np.ndarray  # [n] int64, bytes
    length: np.ndarray  # [n] int64, bytes
    labels: np.ndarray  # [n] int64

    def locate(self, sample: int) -> tuple[str, int, int]:
        return self.paths[self.shard[sample]], int(self.offset[sample]), int(self.length[sample])

    def name(self, sample: int) -> str:
        return f"{self.paths[self.shard[sample]]}, {self.length[sample]} bytes from {self.offset[sample]}"


def read_shards(paths: Sequence[str]) -> Shards:
    """Index the samples of these files. Raises ValueError, naming the file, if one is no tar file, is cut off, or
    has an image without a label or a label without an image."""
    rows = [np.array(list(_samples(path)), np.int64) for path in paths]
    shard = np.repeat(np.arange(len(paths), dtype=np.int32), [len(of_one) for of_one in rows])
    return Shards(tuple(paths), shard, *np.concatenate(rows).T.copy())


def _samples(path: str) -> Iterator[tuple[int, int, int]]:
    """Yield (offset, length, label) of each image of a shard."""
    problem = f"data.path must hold pairs of KEY.jpg and KEY.cls, got {path}: "
    images: dict[str, tuple[int, int]] = {}
    labels: dict[str, int] = {}
    for name, offset, length, opening in _members(path):
        parent, slash, base = name.rpartition("/")
        stem, _, extension = base.partition(".")
        key = parent + slash + stem
        if extension.lower() in IMAGES:
            if key in images:
                raise ValueError(f"{problem}two images of key {_shown(key)}")
            images[key] = offset, length
        elif extension == "cls":
            text = opening[:length].strip()
            if not text.isdigit() or len(text) > LABEL_DIGITS or length > len(opening):
                rule = f"must hold an integer >= 0 of at most {LABEL_DIGITS} digits"
                raise ValueError(f"{problem}{_shown(name)} {rule}")
            labels[key] = int(text)
    if not images:
        raise ValueError(f"{problem}no image")
    if lonely := images.keys() ^ labels.keys():
        raise ValueError(f"{problem}{_shown(min(lonely))} is alone")
    for key, (offset, length) in images.items():
        yield offset, length, labels[key]


class Headers:
    """A tar file for tarfile, which reads only its headers, with a limit on the length of names."""

    def __init__(self, file: FileIO) -> None:
        self._file = file
        self.tell, self.seek = file.tell, file.seek

    def read(self, size: int) -> bytes:
        if not 0 <= size <= NAME_BYTES:
            raise ValueError(f"a name of {size} bytes")
        return self._file.read(size)


def _members(path: str) -> Iterator[tuple[str, int, int, bytes]]:
    """Yield (name, offset, length, first 512 bytes) of each file in a tar file. A million files take about 24 s."""
    problem = f"data.path must hold readable tar files, got {path}: "
    try:
        with regular_file(path) as (file, size):
            for member in _headers(file, problem):
                end = member.offset_data + member.size
                if member.size < 0 or member.sparse is not None:
                    raise ValueError(f"{problem}{_shown(member.name)} is {member.size} bytes, or has holes")
                if end > size:
                    got = f"ends at {end}, cut off at {size} bytes"
                    raise ValueError(f"{problem}{_shown(member.name)} {got}")
                if member.isreg():
                    opening = os.pread(file.fileno(), tarfile.BLOCKSIZE, member.offset_data)
                    yield member.name, member.offset_data, member.size, opening
    except OSError as error:
        raise ValueError(f"{problem}{error.strerror}") from error


def _headers(file: FileIO, problem: str) -> Iterator[tarfile.TarInfo]:
    """Yield the header of each member. Raises ValueError, with `problem` before the reason."""
    at = 0  # offset of the next header
    try:
        with tarfile.open(fileobj=cast("IO[bytes]", Headers(file)), mode="r:") as archive:
            while (member := archive.next()) is not None:
                archive.members.clear()  # pyright: ignore[reportAttributeAccessIssue]  # tarfile keeps every header
                at = archive.offset
                yield member
    except tarfile.ReadError:
        pass  # the content there explains more than the error
    except OverflowError as error:
        raise ValueError(f"{problem}no tar header at {at}: a length beyond every file's") from error
    except RecursionError as error:  # each of the headers before a member has the next one read
        raise ValueError(f"{problem}no tar header at {at}: too many headers of one member") from error
    except ValueError as error:
        raise ValueError(f"{problem}no tar header at {at}: {error}") from error
    end = os.pread(file.fileno(), tarfile.BLOCKSIZE, at)  # zeros, unless headers follow that tarfile cannot read
    if len(end) < tarfile.BLOCKSIZE:
        raise ValueError(f"{problem}cut off at {os.fstat(file.fileno()).st_size} bytes")
    if end.strip(b"\0"):
        raise ValueError(f"{problem}no tar header at {at}")


def _shown(name: str) -> str:
    """Return a name out of a file in a form that fits into one line."""
    return name if name.isprintable() and len(name) <= 100 else repr(name[:100])


def write_shards(folder: Path, split: str, samples: Iterable[tuple[bytes, int]], bytes_per_shard: int = 10**9) -> int:
    """Write (content of an image file, label) as folder/split-000000.tar and so on. Returns the number of shards.

    Raises FileExistsError rather than write over a shard."""
    count, left = 0, enumerate(samples)
    for first in left:
        with tarfile.open(folder / f"{split}-{count:06d}.tar", "x:", format=tarfile.USTAR_FORMAT) as archive:
            for number, (content, label) in chain([first], left):
                for extension, data in (("jpg", content), ("cls", str(label).encode())):
                    member = tarfile.TarInfo(f"{number:08d}.{extension}")
                    member.size = len(data)
                    archive.addfile(member, BytesIO(data))
                if archive.offset >= bytes_per_shard:
                    break
        count += 1
    return count


class ImageSource(Protocol):
    """The images of one split, in an order that depends only on their names."""

    @property
    def labels(self) -> np.ndarray:
        """[n] int64."""
        ...

    def locate(self, sample: int) -> ImageLocation:
        """Return the location of a sample's bytes."""
        ...

    def name(self, sample: int) -> str:
        """Return the name of a sample in messages."""
        ...


@dataclass(frozen=True, eq=False)
class Folder:
    """Files in folder/class/. Their names are one array: a million Python strings would take 100 MB, and be copied to
    every forked process by counting references."""

    folder: str
    names: np.ndarray  # [n] bytes, class/file
    labels: np.ndarray  # [n] int64

    def locate(self, sample: int) -> ImageLocation:
        return self.name(sample), 0, -1

    def name(self, sample: int) -> str:
        return os.path.join(self.folder, os.fsdecode(self.names[sample]))


@dataclass(frozen=True, eq=False)
class ChosenImages:
    """Some images of a split. indices: their indices in it."""

    source: ImageSource
    indices: np.ndarray
    labels: np.ndarray  # [n] int64

    def locate(self, sample: int) -> ImageLocation:
        return self.source.locate(int(self.indices[sample]))

    def name(self, sample: int) -> str:
        return self.source.name(int(self.indices[sample]))


def choose_images(source: ImageSource, indices: np.ndarray) -> ImageSource:
    """Return some images of a split. indices: their indices in it."""
    return ChosenImages(source, indices, source.labels[indices])


@dataclass(frozen=True)
class Layout:
    """Both splits. classes: their names; the label of a sample is a position in it."""

    train: ImageSource
    test: ImageSource
    classes: tuple[str, ...]


def find_images(path: str, strict: bool = False) -> Layout:
    """Find the images in `path`: train/<class>/ and val/<class>/, or train-*.tar and val-*.tar.

    strict: also check every file's size and permissions. Raises ValueError, one line, if the folders or shards are
    missing, the two splits have different classes, or a class is empty."""
    root = expanded(path, "data.path").absolute()
    wanted = f"a folder with {TRAIN}/ and {TEST}/, or with {TRAIN}-*.tar and {TEST}-*.tar"
    if not root.is_dir():
        raise ValueError(f"data.path must be {wanted}, found no folder {root}")
    shards = {split: sorted(map(str, root.glob(f"{split}-*.tar"))) for split in (TRAIN, TEST)}
    folders = {split: root / split for split in (TRAIN, TEST) if (root / split).is_dir()}
    if any(shards.values()) and folders:
        raise ValueError(f"data.path must be {wanted}, found both in {root}")
    missing = [split for split in (TRAIN, TEST) if not shards[split] and split not in folders]
    if missing:
        raise ValueError(f"data.path must be {wanted}, found no {' and no '.join(missing)} in {root}")
    return _of_shards(root, shards) if any(shards.values()) else find_folders(folders, "data.path", strict)


def _of_shards(root: Path, shards: dict[str, list[str]]) -> Layout:
    train, test = (read_shards(shards[split]) for split in (TRAIN, TEST))
    seen = [set(np.unique(source.labels).tolist()) for source in (train, test)]
    _same_classes(*({str(label) for label in labels} for labels in seen), key="data.path", splits=(TRAIN, TEST))
    empty = next((label for label in range(len(seen[0])) if label not in seen[0]), None)
    if empty is not None:
        raise ValueError(f"data.path must hold images of every class, found none of label {empty} in {root}")
    return Layout(train, test, tuple(map(str, sorted(seen[0]))))


def find_folders(folders: Mapping[str, Path], key: str, strict: bool) -> Layout:
    """Find the images in two folders, for training and for test, with a folder for each class. folders: {split:
    folder}. key: configuration key, for errors. Otherwise as `find_images`."""
    classes = {split: find_classes(folder, key) for split, folder in folders.items()}
    _same_classes(*(set(names) for names in classes.values()), key=key, splits=tuple(folders))
    train, test = (find_files(folder, classes[split], key, strict) for split, folder in folders.items())
    return Layout(train, test, tuple(next(iter(classes.values()))))


def find_classes(folder: Path, key: str) -> list[str]:
    """Return the names of the folders in a folder, in order. Raises ValueError if there are none."""
    entries = _entries(folder, key)
    names = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        loose = any(entry.name.lower().endswith(EXTENSIONS) for entry in entries)
        sorts = loose and key == "data.path"  # of ImageNet
        hint = "; scripts/prepare_imagenet.py sorts the official files into such folders" if sorts else ""
        raise ValueError(f"{key} must hold a folder for each class, found none in {folder}{hint}")
    return names


def _same_classes(train: set[str], test: set[str], key: str, splits: tuple[str, ...]) -> None:
    for here, there, split in ((train, test, splits[0]), (test, train, splits[1])):
        if only := sorted(here - there):
            more = f" and {len(only) - 1} more" if len(only) > 1 else ""
            both = f"{splits[0]} and {splits[1]}"
            raise ValueError(f"{key} must hold the same classes in {both}, got {only[0]}{more} only in {split}")


def find_files(folder: Path, classes: Sequence[str], key: str, strict: bool) -> Folder:
    """Find the images of these classes in a folder. strict: also check every file's size and permissions. Raises
    ValueError for a class without images."""
    names: list[np.ndarray] = []  # by class
    for label in classes:
        entries = [entry for entry in _entries(folder / label, key) if entry.name.lower().endswith(EXTENSIONS)]
        if not entries:
            raise ValueError(f"{key} must hold images of every class, found none in {folder / label}")
        if strict:
            _check_files(entries)
        names.append(np.array([os.fsencode(f"{label}/{name}") for name in sorted(entry.name for entry in entries)]))
    labels = np.repeat(np.arange(len(classes)), [len(of_one) for of_one in names])
    return Folder(str(folder), np.concatenate(names), labels)


def _entries(folder: Path, key: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise ValueError(f"{key} must be readable, got {folder}: {error.strerror}") from error


def _check_files(entries: list[os.DirEntry[str]]) -> None:
    for entry in entries:
        try:
            size = entry.stat().st_size
        except OSError as error:
            raise ValueError(f"data.path must hold readable files, got {entry.path}: {error.strerror}") from error
        if not size or not os.access(entry.path, os.R_OK):
            problem = "no right to read it" if size else "0 bytes"
            raise ValueError(f"data.path must hold readable files (data.on_error=fail), got {entry.path}: {problem}")
