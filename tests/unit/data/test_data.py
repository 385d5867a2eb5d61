from __future__ import annotations

import hashlib
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from dsgd.data import Cifar, Data, DataConfig, Digits, Idx, Quadratic, Shapes, Text
from dsgd.data.built_in import read_digits
from dsgd.data.cifar import LAYOUT, read_batch
from dsgd.data.in_memory import PAD, channel_statistics, move_and_mirror
from tests.support.each_row import each_row
from tests.support.idx_files import write_idx

torch.set_num_threads(1)


# --- all data sets


def write_cifar(root: Path, classes: int, each: int = 20) -> dict[str, dict[bytes, Any]]:
    """Files as the authors' archive has them, `each` images a file. Returns their contents by file name."""
    folder, train, test, label_key = LAYOUT[classes]
    (root / folder).mkdir(parents=True)
    rng = np.random.default_rng(classes)
    contents: dict[str, dict[bytes, Any]] = {}
    for name in (*train, test):
        contents[name] = {
            b"batch_label": name.encode(),
            label_key.encode(): rng.integers(0, classes, each).tolist(),
            b"data": rng.integers(0, 256, (each, 3072), dtype=np.uint8),
            b"filenames": [b"image_%d.png" % i for i in range(each)],
        }
        with (root / folder / name).open("wb") as file:
            pickle.dump(contents[name], file, protocol=2)
    return contents


@pytest.fixture(params=["digits", "shapes", "cifar10", "cifar100", "mnist", "letters", "quadratic", "text"])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> DataConfig:
    match request.param:
        case "digits":
            return Digits()
        case "shapes":
            return Shapes(train_size=200, test_size=50)
        case "quadratic":
            return Quadratic(dim=5)
        case "text":
            return Text(context=16, generated_bytes=5000)
        case "mnist":
            write_idx(tmp_path, "mnist")
            return Idx("mnist", root=str(tmp_path), augment=True)
        case "letters":
            write_idx(tmp_path, "emnist", "letters")
            return Idx("emnist", "letters", root=str(tmp_path), resolution=7)
        case name:
            classes = int(name.removeprefix("cifar"))
            write_cifar(tmp_path, classes)
            return Cifar(classes, root=str(tmp_path))


def load(config: DataConfig, seed: int = 3, nodes: int = 4) -> Data:
    size = 1 if isinstance(config, Quadratic) else 4
    config.check(nodes, size)
    return config.load(nodes, size, seed, torch.float64)


def test_what_a_configuration_promises_is_what_it_loads(config: DataConfig):
    """Shape, classes and samples are known before; batches and whole sets have them."""
    data = load(config)
    assert data.samples == config.train_samples(4) == len(data.train_set[0]) == len(data.train_set[1])
    assert data.classes == config.classes
    for inputs, targets in (data.train_set, data.test_set, data.batch(1, 2)):
        assert data.input_shape == config.input_shape == inputs.shape[1:]
        assert len(inputs) == len(targets)
        assert inputs.dtype == (torch.int64 if isinstance(config, Text) else torch.float64)
        if data.classes is not None:
            assert targets.dtype == torch.int64
            assert targets.min() >= 0
            assert targets.max() < data.classes


def test_batches_are_a_pure_function_of_rank_and_step(config: DataConfig):
    """Loaded twice and asked in another order: the same bits; another step or seed: another batch."""
    keys = [(0, 0), (3, 1), (0, 7), (2, 19)]
    one, two = load(config), load(config)
    batches = {key: one.batch(*key) for key in keys}
    for key in reversed(keys):
        for before, after in zip(batches[key], two.batch(*key), strict=True):
            assert torch.equal(before, after)
    assert not torch.equal(batches[0, 0][-1], batches[0, 7][-1])
    assert not torch.equal(batches[0, 0][-1], load(config, seed=4).batch(0, 0)[-1])


def test_a_batch_larger_than_a_workers_share_is_refused(config: DataConfig):
    """Before anything is loaded, naming the share; the quadratic has one sample a worker."""
    with pytest.raises(
        ValueError, match=r"^batch_size must be (<= \d+ \(a worker's share: |1 with data=quadratic, got)"
    ):
        config.check(nodes=4, batch_size=1000)


# --- classification


def test_digits_split_is_the_same_in_every_run_and_loses_no_image():
    """1,437 + 360 of the 1,797 images, each once, whatever the seed of the run."""
    one, two = Digits().load(8, 32, 0, torch.float64), Digits().load(2, 16, 1, torch.float64)
    assert [len(one.train_set[1]), len(one.test_set[1])] == [1437, 360]
    for a, b in zip((*one.train_set, *one.test_set), (*two.train_set, *two.test_set), strict=True):
        assert torch.equal(a, b)
    pixels, labels = read_digits()
    counts = torch.bincount(torch.cat((one.train_set[1], one.test_set[1])))
    assert np.array_equal(counts.numpy(), np.bincount(labels))
    images = torch.cat((one.train_set[0], one.test_set[0])).reshape(1797, 64)
    assert len(images.unique(dim=0)) == len(np.unique(pixels, axis=0))


def test_digits_are_those_of_the_published_test_set_to_the_bit():
    """The checksum was taken of what scikit-learn 1.9.1 loads; the counts are those that its authors give."""
    images, labels = read_digits()
    assert (images.shape, images.dtype, labels.dtype) == ((1797, 8, 8), np.uint8, np.uint8)
    digest = hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest()
    assert digest == "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_training_images_have_mean_0_and_deviation_1_in_every_channel(tmp_path: Path):
    """To rounding in float64; the test images are scaled by the same two numbers, so theirs differ."""
    write_cifar(tmp_path, 10)
    for config in (Digits(), Shapes(channels=3, train_size=300), Cifar(10, str(tmp_path))):
        data = config.load(1, 1, 0, torch.float64)
        images = data.train_set[0]
        zeros = torch.zeros(images.shape[1], dtype=torch.float64)
        torch.testing.assert_close(images.mean(dim=(0, 2, 3)), zeros, rtol=0, atol=1e-12)
        torch.testing.assert_close(images.std(dim=(0, 2, 3), correction=0), zeros + 1, rtol=1e-12, atol=0)
        assert (data.test_set[0].mean(dim=(0, 2, 3)).abs() > 1e-6).all()


def test_a_constant_channel_stays_finite():
    """Deviation 0 is replaced by 1; the statistics of the others are those of NumPy in float64."""
    images = np.random.default_rng(0).integers(0, 256, (50, 2, 4, 4), dtype=np.uint8)
    images[:, 1] = 77
    mean, deviation = channel_statistics(images)
    assert mean == pytest.approx([images[:, 0].mean(), 77], rel=1e-12)
    assert deviation == pytest.approx([images[:, 0].std(), 1], rel=1e-12)


def test_batches_without_augmentation_are_rows_of_the_training_set():
    """The same bits as gathering the normalised set by the partition's indices; the loss is the mean cross entropy."""
    data = Digits().load(4, 8, 5, torch.float32)
    for rank, step in [(0, 0), (3, 44), (1, 50)]:
        indices = torch.from_numpy(data.partition.indices(rank, step))
        inputs, labels = data.batch(rank, step)
        assert torch.equal(inputs, data.train_set[0][indices])
        assert torch.equal(labels, data.train_set[1][indices])
    logits = torch.randn(8, 10)
    by_hand = -torch.log_softmax(logits, dim=1)[torch.arange(8), labels].mean()
    torch.testing.assert_close(data.loss(logits, labels), by_hand)


def test_augmentation_is_pad_crop_and_flip_to_the_pixel():
    """Against one image at a time: zeros around, a window of the old size, mirrored or not; every shift occurs."""
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.integers(1, 256, (81 * 2, 3, 8, 10), dtype=np.uint8))
    shifts = [(d, r, m) for d in range(-PAD, PAD + 1) for r in range(-PAD, PAD + 1) for m in (False, True)]
    down, right, mirror = map(torch.tensor, zip(*shifts, strict=True))
    moved = move_and_mirror(images, down, right, mirror)
    for i, (d, r, m) in enumerate(shifts):
        padded = F.pad(images[i], (PAD, PAD, PAD, PAD))
        window = padded[:, PAD - d : PAD - d + 8, PAD - r : PAD - r + 10]
        assert torch.equal(moved[i], window.flip(-1) if m else window)


# --- shapes


def test_shapes_do_not_depend_on_the_runs_seed():
    """Another run seed or number of training images leaves the test images alone."""
    base = Shapes(train_size=100, test_size=50)
    same = Shapes(train_size=60, test_size=50).load(2, 1, 9, torch.float32)._test_images
    assert torch.equal(base.load(1, 1, 0, torch.float32)._test_images, same)


@each_row(("resolution", "classes", "channels"), [(8, 2, 1), (13, 12, 3), (64, 5, 3)])
def test_shapes_come_in_any_resolution_with_balanced_classes(resolution: int, classes: int, channels: int):
    """Counts of the classes differ by at most one; every image has both the shape and its background."""
    images, labels = Shapes(resolution, classes, channels).draw(31, np.random.default_rng(0))
    assert images.shape == (31, channels, resolution, resolution)
    counts = np.bincount(labels, minlength=classes)
    assert len(counts) == classes
    assert counts.max() - counts.min() <= 1
    assert (np.ptp(images.reshape(31, -1).astype(int), axis=1) > 80).all()


# --- cifar


@each_row("classes", [10, 100])
def test_cifar_files_are_read_as_written(tmp_path: Path, classes: int):
    """Images and labels in the order of the files; red, green, blue planes of 32 rows; test apart from training."""
    contents = write_cifar(tmp_path, classes)
    _, train, test, label_key = LAYOUT[classes]
    data = Cifar(classes, str(tmp_path), augment=False).load(1, 1, 0, torch.float64)
    assert data.samples == 20 * len(train)
    pixels = np.concatenate([contents[name][b"data"] for name in train])
    assert np.array_equal(data._train_images.numpy().reshape(-1, 3072), pixels)
    assert np.array_equal(data._test_images.numpy().reshape(-1, 3072), contents[test][b"data"])
    assert data.train_set[1].tolist() == [label for name in train for label in contents[name][label_key.encode()]]
    assert data.test_set[1].tolist() == contents[test][label_key.encode()]
    assert data._train_images[0, 1, 0, 2] == pixels[0, 1024 + 2]


def test_cifar_files_written_by_python_2_are_read(tmp_path: Path):
    """The published files are such: byte strings without marks, numpy.core, dtype flags as integers."""
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3072), dtype=np.uint8)
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"
        b"(K\x01(K\x02M\x00\x0ctcnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89T" + struct.pack("<i", pixels.size) + pixels.tobytes() + b"tb"
    )
    path = tmp_path / "batch"
    path.write_bytes(b"\x80\x02}(U\x04data" + array + b"U\x06labels](K\x03K\x09eu.")
    images, labels = read_batch(path, "labels", 10)
    assert np.array_equal(images.reshape(2, 3072), pixels)
    assert labels.tolist() == [3, 9]


class Malicious:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_pickle_that_runs_code_is_refused_before_it_runs(tmp_path: Path):
    """The same bytes do make the folder when read by pickle itself."""
    path, folder = tmp_path / "batch", tmp_path / "made by the pickle"
    path.write_bytes(pickle.dumps({b"data": Malicious(folder), b"labels": [0]}, protocol=2))
    with pytest.raises(
        ValueError, match=r"batch is damaged or not a CIFAR file: it asks for (posix|nt)\.mkdir"
    ) as error:
        read_batch(path, "labels", 10)
    assert "\n" not in str(error.value)
    assert not folder.exists()
    pickle.loads(path.read_bytes())
    assert folder.exists()


def test_a_truncated_file_is_refused_wherever_it_ends(tmp_path: Path):
    """Cut at 200 places: always one line that names the file, from `check`, before the run."""
    write_cifar(tmp_path, 100, each=4)
    path = tmp_path / "cifar-100-python" / "train"
    whole = path.read_bytes()
    for length in np.linspace(0, len(whole) - 1, 200, dtype=int):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"cifar-100-python/train is damaged or not a CIFAR file: .+") as error:
            Cifar(100, str(tmp_path)).check(1, 1)
        assert "\n" not in str(error.value)


@each_row(
    ("content", "message"),
    [
        ([1, 2], "expected a dictionary, got list"),
        ({b"data": 1}, "no labels in it"),
        ({b"data": 1, b"labels": [1]}, "data must be bytes of shape [n, 3072]"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1, 10]}, "labels must be in [0, 10), got 1 to 10"),
        ({b"data": np.zeros((0, 3072), np.uint8), b"labels": []}, "no image in it"),
    ],
)
def test_files_of_another_content_are_refused(tmp_path: Path, content: object, message: str):
    """Readable pickles, but not images with a label each."""
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the whole text is compared
        read_batch(path, "labels", 10)
    assert str(error.value) == f"{path} is not a CIFAR-10 file: {message}"


@each_row("missing", ["everything", "test_batch", "data_batch_3"])
def test_missing_files_say_which_where_and_how_to_get_them(tmp_path: Path, missing: str):
    """One line, from `check`, with the folder looked for and a command that fetches."""
    if missing != "everything":
        write_cifar(tmp_path, 10)
        (tmp_path / "cifar-10-batches-py" / missing).unlink()
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the whole text is compared
        Cifar(10, str(tmp_path)).check(1, 1)
    name = "data_batch_1" if missing == "everything" else missing
    assert str(error.value) == (
        f"data.root must be a folder with cifar-10-batches-py, found no {name} in {tmp_path / 'cifar-10-batches-py'}; "
        "get the files by: python -c 'from dsgd.models import imported; "
        f'imported("torchvision").datasets.CIFAR10("{tmp_path}", download=True)\''
    )


# --- quadratic


def test_quadratic_targets_are_those_of_the_definition():
    """c, z and h as the docstring of dsgd.data.quadratic has them, written out; the mean of the c_i is c."""
    config = Quadratic(dim=6, condition=100.0, spread=2.0, noise=0.0)
    rng = np.random.default_rng(11)
    c = rng.standard_normal(6)
    z = rng.standard_normal((4, 6))
    z -= z.mean(axis=0)
    data = config.load(4, 1, 11, torch.float64)
    assert np.array_equal(data.train_set[1][:, 0].numpy(), c + 2.0 * z)
    assert np.array_equal(data.test_set[1][0, 0].numpy(), c)
    assert config.curvature() == pytest.approx([100 ** (-j / 5) for j in range(6)], rel=1e-14)
    assert Quadratic(dim=1).curvature().tolist() == [1.0]
    torch.testing.assert_close(data.train_set[1][:, 0].mean(dim=0), data.test_set[1][0, 0], rtol=0, atol=1e-14)


def test_gradient_noise_has_the_stated_deviation_and_no_mean():
    """20,000 draws: standard error of the mean noise / 141, of the deviation noise / 200; bounds at 5 of them."""
    config = Quadratic(dim=20, noise=0.5)
    draws = np.array([config.gradient_noise(0, rank, step) for rank in range(10) for step in range(100)])
    assert abs(draws.mean()) < 5 * 0.5 / 141
    assert abs(draws.std() - 0.5) < 5 * 0.5 / 200


@each_row("curvature_spread", [0.7, 1e15])
def test_workers_with_curvatures_of_their_own_have_the_same_mean_objective(curvature_spread: float):
    """The mean of the h_i is h, and the common target minimises the mean loss, to which the test loss is what is left;
    even where every coordinate is one worker's alone."""
    config = Quadratic(dim=5, condition=10.0, curvature_spread=curvature_spread)
    data, nodes = config.load(6, 1, 4, torch.float64), 6
    hs, (c, minima) = config.curvatures(nodes, 4), config.targets(nodes, 4)
    assert hs.mean(axis=0) == pytest.approx(config.curvature(), rel=1e-14)
    assert (hs * minima).sum(axis=0) / hs.sum(axis=0) == pytest.approx(c, rel=1e-12)
    spreads = np.log(config.curvatures(2000, 4)).std(axis=0) if curvature_spread < 1 else curvature_spread
    assert spreads == pytest.approx(curvature_spread, rel=0.1)
    x = torch.from_numpy(np.random.default_rng(1).standard_normal((1, 5)))

    def loss(point: torch.Tensor, of: tuple[torch.Tensor, torch.Tensor]) -> float:
        return data.loss(point.expand(len(of[0]), -1), of[1]).item()

    excess = loss(x, data.train_set) - loss(torch.from_numpy(c[None]), data.train_set)
    assert loss(x, data.test_set) == pytest.approx(excess, rel=1e-10)
