"""Batches of real files by real processes: pure functions of (seed, rank, step), whoever asks, in whatever order."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from dsgd.data import DataLost
from dsgd.data.imagenet import ImageNet
from dsgd.data.images.augment import DEVIATION, DRAWS, MEAN, evaluation_pixels, train_pixels
from dsgd.data.images.decode import open_image
from dsgd.data.images.layout import find_images
from dsgd.data.images.loader import IN_A_ROW, DecodingPool, Images
from dsgd.data.partition import Partition
from dsgd.host.fork import run_in_child
from dsgd.streams import stream
from tests.support.command import shell
from tests.support.image_files import IMAGES, truncate
from tests.support.proc import is_alive

NODES, BATCH, SEED = 2, 4, 5  # 24 samples: 3 steps an epoch
torch.set_num_threads(1)


def loaded(path: Path | str, on_error: str = "skip", dtype: torch.dtype = torch.float32) -> Images:
    return ImageNet(str(path), on_error=on_error, workers=1).load(NODES, BATCH, SEED, dtype)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "images"
    IMAGES.make(path)
    return path


@pytest.fixture(scope="module")
def images(folder: Path) -> Iterator[Images]:
    data = loaded(folder)
    yield data
    data.close()


def expected(
    path: Path, rank: int, step: int, substitutes: dict[int, int] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The batch as the definitions say, one image after the other in this process."""
    source = find_images(str(path)).train
    samples = Partition(len(source.labels), NODES, BATCH, SEED).indices(rank, step)
    samples = np.array([(substitutes or {}).get(sample, sample) for sample in samples.tolist()])
    draws = stream("augmentation", SEED, rank, step).random((BATCH, DRAWS))
    pixels = np.empty((BATCH, 3, 224, 224), np.uint8)
    for row, sample in enumerate(samples):
        content = Path(source.name(int(sample))).read_bytes()
        train_pixels(open_image(content, "simplejpeg"), draws[row].tolist(), pixels[row])
    mean, deviation = (values.reshape(3, 1, 1) for values in (MEAN, DEVIATION))
    return ((pixels - mean) / deviation).astype(np.float32), source.labels[samples]


def test_a_batch_is_what_partition_and_augmentation_define(images: Images, folder: Path) -> None:
    """To 1e-6: one multiplication and one addition in float32 in place of a subtraction and a division."""
    for rank, step in [(0, 0), (1, 0), (1, 4)]:
        inputs, labels = images.batch(rank, step)
        pixels, targets = expected(folder, rank, step)
        np.testing.assert_allclose(inputs.numpy(), pixels, atol=1e-6)
        np.testing.assert_array_equal(labels.numpy(), targets)


def test_batches_do_not_depend_on_the_order_in_which_they_are_asked_for(images: Images) -> None:
    """In order (decoded ahead), backwards, with jumps, and twice; what follows a jump is as if there had been none."""
    in_order = {(rank, step): images.batch(rank, step) for step in range(7) for rank in range(NODES)}
    for rank, step in [(0, 6), (0, 5), (1, 2), (1, 2), (0, 1), (0, 2), (0, 3), (1, 3), (1, 6)]:
        inputs, labels = images.batch(rank, step)
        assert torch.equal(inputs, in_order[rank, step][0])
        assert torch.equal(labels, in_order[rank, step][1])


def test_pixels_are_the_batch_before_it_is_normalised(images: Images) -> None:
    pixels, labels = images.pixels(0, 1)
    inputs, targets = images.batch(0, 1)
    assert pixels.dtype == torch.uint8
    torch.testing.assert_close((pixels * images.scale + images.shift).float(), inputs, rtol=0, atol=1e-6)
    assert torch.equal(labels, targets)


def test_evaluation_sees_every_sample_once_at_the_centre(images: Images, folder: Path) -> None:
    source = find_images(str(folder)).test
    expected = []
    for sample, label in enumerate(source.labels):
        pixels = np.empty((3, 224, 224), np.uint8)
        evaluation_pixels(open_image(Path(source.name(sample)).read_bytes(), "simplejpeg"), pixels)
        expected.append((int(label), int(pixels.sum())))
    found = []
    for inputs, labels in images.evaluation(test=True):
        pixels = ((inputs - images.shift) / images.scale).round()
        found += [
            (int(label), int(image.sum(dtype=torch.float64))) for label, image in zip(labels, pixels, strict=True)
        ]
    assert sorted(found) == sorted(expected)


def test_a_limited_evaluation_has_the_first_samples_of_a_whole_one(images: Images) -> None:
    def sums(limit: int | None) -> list[float]:
        return [float(image.sum()) for inputs, _ in images.evaluation(False, limit) for image in inputs]

    assert len(set(sums(None))) == images.samples
    assert sums(10) == sums(None)[:10]


def test_a_limited_evaluation_has_all_classes(images: Images) -> None:
    labels = torch.cat([labels for _, labels in images.evaluation(False, limit=12)])
    assert set(labels.tolist()) == {0, 1, 2}


# --- broken files


@pytest.fixture(scope="module")
def damaged(folder: Path) -> Path:
    """Of the training samples 2, 3 and the last, 23, are broken; of the test samples all."""
    copy = folder.with_name("damaged")
    shutil.copytree(folder, copy)
    truncate(copy / "train" / "class0000" / "000002.JPEG")
    (copy / "train" / "class0000" / "000003.JPEG").write_bytes(b"no image")
    (copy / "train" / "class0002" / "000007.JPEG").write_bytes(b"")
    for path in (copy / "val").rglob("*.JPEG"):
        path.write_bytes(b"no image")
    return copy


@pytest.fixture(scope="module")
def damaged_images(damaged: Path) -> Iterator[Images]:
    data = loaded(damaged)
    yield data
    data.close()


def test_broken_files_are_counted_named_and_replaced_by_the_next(
    damaged_images: Images, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whichever batch they are in and in whichever order batches come; all other images are what they would be."""
    before = damaged_images.broken
    for rank, step in [(1, 7), *((rank, step) for step in range(6) for rank in range(NODES)), (0, 1), (0, 0)]:
        inputs, labels = damaged_images.batch(rank, step)
        pixels, targets = expected(folder, rank, step, {2: 4, 3: 4, 23: 0})
        np.testing.assert_allclose(inputs.numpy(), pixels, atol=1e-6)
        np.testing.assert_array_equal(labels.numpy(), targets)
    assert damaged_images.broken - before == 3
    told = capfd.readouterr().err
    for name in (
        "0000/000002.JPEG cannot be decoded: ",
        "0000/000003.JPEG cannot be dec",
        "0002/000007.JPEG has 0 bytes",
    ):
        assert told.count(f"/train/class{name}") == 1
    assert len(told.splitlines()) == 3


def test_a_data_set_of_nothing_but_broken_files_ends_the_run(damaged_images: Images) -> None:
    broken = min(IN_A_ROW, 9)
    with pytest.raises(DataLost, match=rf"^data\.path must hold images, got {broken} broken ones in a row up to "):
        list(damaged_images.evaluation(test=True))


def ask_for(data: Images, steps: int) -> None:
    for step in range(steps):
        for rank in range(NODES):
            data.batch(rank, step)


# --- processes


def wait_for_the_end(pids: list[int]) -> None:
    deadline = time.monotonic() + 60
    while any(map(is_alive, pids)):
        assert time.monotonic() < deadline, f"of {pids} some still run"
        time.sleep(0.05)


PROGRAM = """
import os, signal, sys, time
import numpy as np
from dsgd.data.images.layout import find_images
from dsgd.data.images.loader import DecodingPool, PendingImages
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells let jobs in the background ignore it
source = find_images(sys.argv[1]).train
pool = DecodingPool(int(sys.argv[3]), "auto", 2**20, None, None, 0)
def decode():
    batch = PendingImages(source, np.arange(24), None)
    pool.submit(batch)
    for _ in pool.pixels(batch):
        pass
decode()
if sys.argv[2] == "fork" and os.fork() == 0:
    time.sleep(60)
print(*(process.pid for process in pool.processes), flush=True)
while sys.argv[2] != "end":
    decode()
"""


@pytest.mark.parametrize(("how", "processes"), [("end", 1), ("SIGINT", 1), ("SIGKILL", 2), ("fork", 1)])
def test_processes_end_with_the_one_that_started_them(folder: Path, how: str, processes: int) -> None:
    """By its own end, Ctrl-C, kill -9, and kill -9 while a forked child of it still holds its side of the link."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder), how, str(processes)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == processes
        try:
            if how == "SIGINT":
                os.killpg(parent.pid, signal.SIGINT)
            elif how != "end":
                parent.kill()
            wait_for_the_end(pids)
        finally:
            if how == "fork":
                os.killpg(parent.pid, signal.SIGKILL)  # the forked child
    ended = {"end": (0,), "SIGINT": (1, -signal.SIGINT)}.get(how, (-signal.SIGKILL,))
    assert parent.returncode in ended


def test_a_forked_process_gets_its_own_and_the_same_batches(images: Images) -> None:
    def sums() -> str:
        return str([images.batch(0, step)[0].sum().item() for step in range(3)])

    def forked() -> str:
        images.close()
        found = sums()
        images.close()
        return found

    assert run_in_child(forked).text == sums()
    assert images.batch(0, 3)[0].shape == (BATCH, 3, 224, 224)  # ours goes on


def test_a_decoding_process_that_is_killed_is_told_in_one_line(folder: Path) -> None:
    data = loaded(folder)
    try:
        data.batch(0, 0)
        assert isinstance(data._pool, DecodingPool)
        (process,) = data._pool.processes
        process.kill()
        with pytest.raises(DataLost, match=rf"^data: decoding process {process.pid} ended by signal 9$"):
            ask_for(data, steps=100)
    finally:
        data.close()


def test_real_workers_say_how_fast_they_load_and_how_fast_the_model_is(folder: Path, tmp_path: Path) -> None:
    """Before the run, and as the first of them: whether training will wait for its input."""
    line = f"dsgd-run data=imagenet data.path={folder} model=resnet8 nodes=2 batch_size=4 budget.steps=1 engine=dist"
    ended = shell(f"{line} eval.train_samples=4 hydra.run.dir=run", tmp_path)
    assert ended.returncode == 0, ended.stderr
    here = r"worker 0 loads [\d.e+]+ images/s \(\d+ cores for 2 workers\), its model takes [\d.e+]+(; it will wait)?"
    assert len(re.findall(here, ended.stderr)) == 1, ended.stderr
