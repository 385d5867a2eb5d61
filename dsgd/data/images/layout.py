"""Find the images of a data set: a folder for each class, or tar shards. Knows neither torch nor decoders."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from dsgd.data.images.shards import IMAGES, read_shards
from dsgd.host.files import expanded

EXTENSIONS = tuple(f".{extension}" for extension in IMAGES)
TRAIN, TEST = "train", "val"  # as the folders and shards are called
ImageLocation = tuple[str, int, int]  # file, offset and length in bytes; length -1: to the end


class ImageSource(Protocol):
    """The images of one split, in an order that depends only on their names."""

    @property
    def labels(self) -> np.ndarray:
        """[n] int64."""
        ...

    def locate(self, sample: int) -> ImageLocation:
        """Return where the bytes of a sample are."""
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
    """Some images of a split. indices: of them in it."""

    source: ImageSource
    indices: np.ndarray
    labels: np.ndarray  # [n] int64

    def locate(self, sample: int) -> ImageLocation:
        return self.source.locate(int(self.indices[sample]))

    def name(self, sample: int) -> str:
        return self.source.name(int(self.indices[sample]))


def choose_images(source: ImageSource, indices: np.ndarray) -> ImageSource:
    """Return some images of a split. indices: of them in it."""
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
    """Find the images in two folders, for training and for test, with a folder for each class. folders: by the names of
    the splits. key: of the configuration, for errors. As `find_images`."""
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
