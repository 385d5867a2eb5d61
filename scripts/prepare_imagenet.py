"""Get ImageNet (ILSVRC 2012) ready for data=imagenet, or see whether a folder is.

    python scripts/prepare_imagenet.py FOLDER                       check the folder: layout, classes, counts
    python scripts/prepare_imagenet.py FOLDER --archives DOWNLOADS  unpack the official files into it, then check
    python scripts/prepare_imagenet.py FOLDER --verify              also decode every image, and name the broken ones
    python scripts/prepare_imagenet.py FOLDER --shards SHARDS       also write it as tar shards, in another folder

DOWNLOADS holds what image-net.org gives to those who are registered: ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar
and ILSVRC2012_devkit_t12.tar.gz, which tells the classes of the test images and how many images a class has. When
unpacking was broken off, the same command goes on: a file that is there in its full size is not written again.
"""

from __future__ import annotations

import argparse
import os
import sys
import tarfile
import warnings
import zlib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from multiprocessing import get_context
from pathlib import Path
from typing import IO

import numpy as np
from rich.progress import Progress, track

from dsgd.data.images.decode import FILE_BYTES, BrokenImage, choose_decoder, open_image, read_image
from dsgd.data.images.layout import TEST, TRAIN, ImageLocation, ImageSource, Layout, find_images, write_shards
from dsgd.host.resources import cores

TRAIN_TAR, TEST_TAR = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"
META, TRUTH = "data/meta.mat", "data/ILSVRC2012_validation_ground_truth.txt"
OFFICIAL = (1000, 1_281_167, 50_000)  # classes, training and test images


@dataclass(frozen=True)
class Expected:
    """Content of the development kit. counts: training images of each class. truth: class of each test image."""

    counts: dict[str, int]
    truth: list[str]


def main(argv: list[str] | None = None) -> int:
    """Run the command. Returns 0 if the folder is complete, 1 if images are missing or broken, 2 if it is unusable."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--archives", type=Path)
    parser.add_argument("--verify", action="store_true")
    parser.add_argument("--shards", type=Path)
    options = parser.parse_args(argv)
    try:
        expected = None if options.archives is None else unpack(options.archives, options.folder)
        layout = find_images(str(options.folder))
        complete = compare(layout, expected)
        if options.verify:
            complete = verify(layout) and complete
        if options.shards is not None:
            options.shards.mkdir(parents=True, exist_ok=True)
            for split, source in ((TRAIN, layout.train), (TEST, layout.test)):
                count = write_shards(options.shards, split, contents(source, split))
                print(f"{split}: {count} shards in {options.shards}")
    except (OSError, ValueError, tarfile.TarError) as error:
        print(error, file=sys.stderr)
        return 2
    except (EOFError, zlib.error, OverflowError, MemoryError, RecursionError) as error:  # of headers that lie
        problem = f"{type(error).__name__} {error}".strip()
        print(f"--archives must hold whole archives, got {options.archives}: {problem}", file=sys.stderr)
        return 2
    return 0 if complete else 1


def unpack(archives: Path, folder: Path) -> Expected:
    """Unpack the official files. Raises ValueError for one that is missing or not what its name says."""
    for name in (TRAIN_TAR, TEST_TAR, DEVKIT):
        if not (archives / name).is_file():
            raise ValueError(f"--archives must hold {TRAIN_TAR}, {TEST_TAR} and {DEVKIT}, found no {archives / name}")
    expected = read_devkit(archives / DEVKIT)
    with Progress() as progress:
        with (archives / TRAIN_TAR).open("rb") as file, tarfile.open(fileobj=file) as outer:
            task = progress.add_task("training images", total=os.fstat(file.fileno()).st_size)
            for member in outer:
                label = member.name.removesuffix(".tar")
                if label not in expected.counts:
                    raise ValueError(f"{TRAIN_TAR} must hold a tar file for each class, got {member.name}")
                inner_file = outer.extractfile(member)
                assert inner_file is not None
                with tarfile.open(fileobj=inner_file) as inner:
                    for image in inner:
                        write(inner, image, folder / TRAIN / label / base_name(image))
                        progress.update(task, completed=file.tell())
        with tarfile.open(archives / TEST_TAR) as archive:
            task = progress.add_task("test images", total=len(expected.truth))
            for image in archive:
                label = expected.truth[number_of(image, len(expected.truth))]
                write(archive, image, folder / TEST / label / base_name(image))
                progress.advance(task)
    return expected


def read_devkit(path: Path) -> Expected:
    """Read the development kit. Raises ValueError if the file is something else."""
    try:
        from scipy.io import loadmat
    except ModuleNotFoundError as error:
        raise ValueError("--archives must find SciPy installed, got none: pip install scipy") from error

    with tarfile.open(path) as archive:
        found: dict[str, IO[bytes]] = {}
        for member in archive:
            for name in (META, TRUTH):
                if member.name.endswith(name) and (content := archive.extractfile(member)) is not None:
                    found[name] = BytesIO(content.read(bounded(path, member)))
    if missing := {META, TRUTH} - found.keys():
        raise ValueError(f"{path} must hold {META} and {TRUTH}, found no {' and no '.join(sorted(missing))}")
    try:
        rows = loadmat(found[META], squeeze_me=True)["synsets"]
        leaves = {int(row["ILSVRC2012_ID"]): row for row in rows if not int(row["num_children"])}
        names = {number: str(row["WNID"]) for number, row in leaves.items()}
        counts = {names[number]: int(row["num_train_images"]) for number, row in leaves.items()}
        return Expected(counts, [names[int(number)] for number in found[TRUTH].read().split()])
    except Exception as error:  # SciPy may raise anything for what is no such file
        raise ValueError(f"{path} must hold {META} and {TRUTH} of ILSVRC 2012, got others ({error})") from error


def bounded(path: str | Path, member: tarfile.TarInfo) -> int:
    """Return the bytes of a member. Raises ValueError for one with holes, or larger than any of the official files."""
    if not 0 <= member.size <= FILE_BYTES or member.sparse is not None:
        raise ValueError(f"{path} must hold files of at most {FILE_BYTES} bytes, got {member.name!r} of {member.size}")
    return member.size


def number_of(image: tarfile.TarInfo, count: int) -> int:
    """Return the number of a test image, from 0, by its name: ILSVRC2012_val_00000001.JPEG."""
    digits = Path(image.name).stem.rpartition("_")[2]
    if not digits.isdigit() or not 1 <= int(digits) <= count:
        raise ValueError(f"{TEST_TAR} must hold ILSVRC2012_val_00000001.JPEG to {count:08d}, got {image.name}")
    return int(digits) - 1


def base_name(image: tarfile.TarInfo) -> str:
    """Return the name without folders: an archive must not write anywhere else."""
    return Path(image.name).name


def write(archive: tarfile.TarFile, image: tarfile.TarInfo, path: Path) -> None:
    """Write a file, under its name only when it is complete."""
    if path.is_file() and path.stat().st_size == image.size:
        return
    content = archive.extractfile(image)
    if content is None:
        raise ValueError(f"{archive.name} must hold files, got {image.name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(content.read(bounded(str(archive.name), image)))
    part.replace(path)


def compare(layout: Layout, expected: Expected | None) -> bool:
    """Print what is there, and what is not."""
    labels = {TRAIN: layout.train.labels, TEST: layout.test.labels}
    found = (len(layout.classes), len(labels[TRAIN]), len(labels[TEST]))
    print(f"{found[0]} classes, {found[1]:,} training and {found[2]:,} test images")
    if expected is None:
        if found != OFFICIAL:
            print(f"ILSVRC 2012 has {OFFICIAL[0]} classes, {OFFICIAL[1]:,} training and {OFFICIAL[2]:,} test images")
        return found == OFFICIAL or found[0] != OFFICIAL[0]  # other classes: another data set, which may be complete
    wanted = {TRAIN: expected.counts, TEST: {label: expected.truth.count(label) for label in set(expected.truth)}}
    complete = True
    for split, counts in wanted.items():
        there = dict(zip(layout.classes, np.bincount(labels[split], minlength=found[0]).tolist(), strict=True))
        for label in sorted(counts.keys() | there.keys()):
            if there.get(label, 0) != counts.get(label, 0):
                print(f"{split}/{label} has {there.get(label, 0)} images, expected {counts.get(label, 0)}")
                complete = False
    return complete


def verify(layout: Layout) -> bool:
    """Decode every image, in one process for each core, and print the broken ones."""
    broken, decoder = 0, choose_decoder("auto")
    context = get_context("spawn")
    quiet = partial(warnings.filterwarnings, "ignore", module="PIL")  # a broken image is told by its name
    with ProcessPoolExecutor(cores(), mp_context=context, initializer=quiet) as processes:
        for split, source in ((TRAIN, layout.train), (TEST, layout.test)):
            count = len(source.labels)
            places = map(source.locate, range(count))
            problems = processes.map(partial(problem, decoder), places, chunksize=64)
            for sample, text in enumerate(track(problems, f"decoding {split}", total=count)):
                if text is not None:
                    print(f"{source.name(sample)} {text}")
                    broken += 1
    print(f"{broken} broken images")
    return not broken


def problem(decoder: str, place: ImageLocation) -> str | None:
    """Return what is wrong with an image, or None."""
    try:
        open_image(read_image(*place), decoder).pixels(1)
    except BrokenImage as error:
        return str(error)
    return None


def contents(source: ImageSource, split: str) -> Iterator[tuple[bytes, int]]:
    """Yield (content, label) in a random order, the same every time, so that shards may be read front to back, too."""
    order = np.random.default_rng(0).permutation(len(source.labels))
    for sample in track(order.tolist(), f"writing {split}"):
        yield read_image(*source.locate(sample)), int(source.labels[sample])


if __name__ == "__main__":
    sys.exit(main())
