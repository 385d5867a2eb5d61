"""JPEG/s per core of the input pipeline, beside torchvision's ImageFolder with a DataLoader and a bare decoding loop.

    python benchmarks/input.py [--path FOLDER] [--batches 12] [--batch-size 64] [--repeats 3]

Generated JPEG files with the sizes of ImageNet's unless --path names others; training batches, decoded, augmented and
normalised to fp32. The pipelines have one decoding process for each core. The ways take turns, medians are printed;
files are in the page cache. The bare loop is a process on each core that reads and decodes the same files with
simplejpeg, at full size, and does nothing else. Then the milliseconds of each part for one image on one core, alone.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dsgd.data.imagenet import ImageNet, ImageNetLike
from dsgd.data.images import SIDE
from dsgd.data.images.augment import DRAWS, crop, resized
from dsgd.data.images.decode import choose_decoder, open_image, read_image
from dsgd.data.images.layout import ImageSource, find_images
from dsgd.host.resources import cores
from dsgd.models import declare_missing_operators

CORES = cores()
REST_S = 3.0  # until the processes of one way have worked ahead, and leave the cores to the next
MEAN, DEVIATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", help="folder with train/<class>/ and val/<class>/")
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    path = options.path or generated()
    ways = {
        "ours": ours(path, options.batch_size, "auto"),
        "ours, Pillow": ours(path, options.batch_size, "pillow"),
        "torchvision": torchvision(path, options.batch_size),
    }
    rates: dict[str, list[float]] = {name: [] for name in [*ways, "bare decoding"]}
    cpu_ms: dict[str, list[float]] = {name: [] for name in rates}
    images = options.batches * options.batch_size
    for way in ways.values():
        next(way)  # start the processes
    for _ in range(options.repeats):
        for name, way in ways.items():
            for _ in range(4):  # what was made ahead is not counted
                next(way)
            start, cpu = time.perf_counter(), cpu_s()
            for _ in range(options.batches):
                next(way)
            rates[name].append(images / (time.perf_counter() - start) / CORES)
            cpu_ms[name].append(1e3 * (cpu_s() - cpu) / images)
            time.sleep(REST_S)
        rate, milliseconds = bare(path, images)
        rates["bare decoding"].append(rate)
        cpu_ms["bare decoding"].append(milliseconds)
    middle = {name: statistics.median(found) for name, found in rates.items()}
    print(f"{CORES} cores, decoder {choose_decoder('auto')}, batches of {options.batch_size}")
    for name, rate in middle.items():
        spread = f"{min(rates[name]):.0f} to {max(rates[name]):.0f}"
        work = statistics.median(cpu_ms[name])
        ratio = f"{middle['ours'] / rate:.2f} by the wall, {work / statistics.median(cpu_ms['ours']):.2f} by CPU time"
        print(f"{name:15} {rate:5.0f} JPEG/s per core ({spread}), {work:.2f} ms of CPU time; ours is {ratio}")
    print()
    for name, milliseconds in parts(find_images(path).train).items():
        print(f"{name:32} {milliseconds:6.2f} ms")


def generated() -> str:
    config = ImageNetLike(classes=20, samples_per_class=50, test_per_class=5)
    config.load(1, 1, 0, torch.float32)
    return str(config.folder)


def ours(path: str, batch_size: int, decoder: str) -> Iterator[None]:
    data = ImageNet(path, decoder=decoder).load(1, batch_size, 0, torch.float32)
    step = 0
    while True:
        data.batch(0, step)
        step += 1
        yield


def torchvision(path: str, batch_size: int) -> Iterator[None]:
    declare_missing_operators()
    from torch.utils.data import DataLoader, RandomSampler
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(SIDE),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, DEVIATION),
        ]
    )
    folder = ImageFolder(str(Path(path) / "train"), transform)
    order = RandomSampler(folder, replacement=True, num_samples=10**8)  # one long epoch: no waiting between epochs
    for _ in DataLoader(folder, batch_size, sampler=order, num_workers=CORES):
        yield


def cpu_s() -> float:
    """Processor time of this process and its children so far."""
    total = 0.0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) == os.getpid() or stat.parent.name == str(os.getpid()):
                total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def bare(path: str, count: int) -> tuple[float, float]:
    """JPEG/s of a process, one on each core at once, and milliseconds of processor time for one image."""
    program = f"""
import time
import simplejpeg
from dsgd.data.images.decode import read_image
from dsgd.data.images.layout import find_images
source = find_images({path!r}).train
start, cpu = time.perf_counter(), time.process_time()
for sample in range({count // CORES}):
    simplejpeg.decode_jpeg(read_image(*source.place(sample * 7919 % len(source.labels))))
print({count // CORES} / (time.perf_counter() - start), 1e3 * (time.process_time() - cpu) / {count // CORES})
"""
    command = [sys.executable, "-c", program]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(CORES)]
    rates, milliseconds = zip(*(map(float, process.communicate()[0].split()) for process in running), strict=True)
    return statistics.mean(rates), statistics.mean(milliseconds)


def parts(source: ImageSource, count: int = 200) -> dict[str, float]:
    """Milliseconds of each part of the work on one image, means over images, one after the other on one core."""
    rng = np.random.default_rng(0)
    spent: dict[str, list[float]] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        found = work()
        spent.setdefault(name, []).append(1e3 * (time.perf_counter() - start))
        return found

    out, shared = np.empty((3, SIDE, SIDE), np.float32), np.empty((3, SIDE, SIDE), np.uint8)
    scale, shift = np.ones((3, 1, 1), np.float32), np.ones((3, 1, 1), np.float32)

    def normalise() -> None:
        out[...] = shared
        np.add(np.multiply(out, scale, out=out), shift, out=out)

    decoder = choose_decoder("auto")
    for sample in rng.integers(0, len(source.labels), count):
        content = timed("read the file", lambda s=sample: read_image(*source.locate(int(s))))
        picture = timed("read its header", lambda c=content: open_image(c, decoder))
        box = timed("choose the crop", lambda p=picture: crop(p.height, p.width, list(rng.random(DRAWS))))
        timed("(decode the whole)", lambda p=picture: p.pixels(1))
        pixels = timed("decode the crop", lambda p=picture, b=box: p.pixels(1, b))
        small = timed("resize it", lambda p=pixels: resized(p, SIDE, SIDE))
        timed("mirror it into shared memory", lambda s=small: np.copyto(shared, s[:, :, ::-1]))
        timed("normalise (asking process)", normalise)
    return {name: statistics.mean(found[len(found) // 10 :]) for name, found in spent.items()}


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
