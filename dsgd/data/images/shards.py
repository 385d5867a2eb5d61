"""Read and write tar shards with the names of webdataset: 000017.jpg beside 000017.cls, the label in digits.

The headers are read once, from then on every image is found by its offset: samples can come in any order, the same as
from folders. The library webdataset reads shards from front to back, so it cannot serve that order.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO, FileIO
from itertools import chain
from pathlib import Path
from typing import IO, cast

import numpy as np

from dsgd.host.files import regular_file

NAME_BYTES = 2**20  # of a member, at most; its headers may say more
LABEL_DIGITS = 9
IMAGES = ("jpg", "jpeg", "png", "ppm", "pgm", "bmp", "tif", "tiff", "webp")


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
    """A tar file as tarfile reads it: only its headers, however long they say that a name is."""

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
    at = 0  # where the next header is
    try:
        with tarfile.open(fileobj=cast("IO[bytes]", Headers(file)), mode="r:") as archive:
            while (member := archive.next()) is not None:
                archive.members.clear()  # pyright: ignore[reportAttributeAccessIssue]  # tarfile keeps every header
                at = archive.offset
                yield member
    except tarfile.ReadError:
        pass  # what lies there says more than the error
    except OverflowError as error:
        raise ValueError(f"{problem}no tar header at {at}: a length beyond every file's") from error
    except RecursionError as error:  # each of the headers before a member has the next one read
        raise ValueError(f"{problem}no tar header at {at}: too many headers of one member") from error
    except ValueError as error:
        raise ValueError(f"{problem}no tar header at {at}: {error}") from error
    end = os.pread(file.fileno(), tarfile.BLOCKSIZE, at)  # zeros, unless headers go on that tarfile cannot read
    if len(end) < tarfile.BLOCKSIZE:
        raise ValueError(f"{problem}cut off at {os.fstat(file.fileno()).st_size} bytes")
    if end.strip(b"\0"):
        raise ValueError(f"{problem}no tar header at {at}")


def _shown(name: str) -> str:
    """Return a name out of a file as it may stand in a line."""
    return name if name.isprintable() and len(name) <= 100 else repr(name[:100])


def write_shards(folder: Path, split: str, samples: Iterable[tuple[bytes, int]], bytes_per_shard: int = 10**9) -> int:
    """Write (content of an image file, label) as folder/split-000000.tar and so on. Returns how many shards.

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
