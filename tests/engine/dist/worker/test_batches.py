from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from dsgd.data import DataLost
from dsgd.engines.dist.worker.batches import Batches, Pixels, normalised

CPU = torch.device("cpu")


class Squares:
    """Eight-bit images, other ones for every rank and step; step 9 cannot be read. threads: that have asked."""

    samples, classes, input_shape = 1000, 10, (3, 4, 4)

    def __init__(self) -> None:
        self.scale = torch.rand(3, 1, 1, dtype=torch.float64) + 0.01
        self.shift = torch.randn(3, 1, 1, dtype=torch.float64)
        self.asked: list[tuple[int, int]] = []
        self.threads: set[str] = set()
        self.train_set = self.test_set = self.batch(0, 0)

    def pixels(self, rank: int, step: int, pinned: bool = False) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(100 * rank + step)
        found = torch.randint(256, (5, 3, 4, 4), dtype=torch.uint8, generator=generator)
        return found, torch.randint(10, (5,), generator=generator)

    def batch(self, rank: int, step: int) -> tuple[Tensor, Tensor]:
        self.asked.append((rank, step))
        self.threads.add(threading.current_thread().name)
        if step == 9:
            raise DataLost("data: gone")
        pixels, labels = self.pixels(rank, step)
        return (pixels * self.scale + self.shift).float(), labels

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        raise AssertionError("batches have no loss")


@pytest.fixture
def data() -> Squares:
    of = Squares()
    of.asked.clear()
    of.threads.clear()
    return of


@pytest.fixture
def batches(data: Squares) -> Iterator[Batches]:
    of = Batches(data, torch.float32, [CPU])
    yield of
    of.close()


def assert_is(batches: Batches, rank: int, step: int) -> None:
    inputs, labels = Squares.batch(batches._data, rank, step)  # pyright: ignore[reportArgumentType]
    (found,) = batches.get(rank, step)
    found.wait()
    assert torch.equal(found.inputs, inputs)
    assert torch.equal(found.targets, labels)


def test_what_is_fetched_ahead_is_the_batch_that_is_asked_for(batches: Batches, data: Squares) -> None:
    for step in range(4):
        (found,) = batches.get(1, step)
        batches.prefetch(1, step + 1)
        assert torch.equal(found.targets, data.pixels(1, step)[1])
    batches.close()
    assert data.asked[:4] == [(1, step) for step in range(4)]
    assert any(name.startswith("batches") for name in data.threads)


def test_another_batch_than_the_expected_one_is_right_too(batches: Batches) -> None:
    batches.prefetch(0, 3)
    assert_is(batches, 0, 7)
    assert_is(batches, 0, 8)
    batches.prefetch(0, 2)
    assert_is(batches, 1, 2)


def test_data_that_are_lost_are_so_when_they_are_asked_for(batches: Batches) -> None:
    batches.prefetch(0, 9)
    with pytest.raises(DataLost, match=r"^data: gone$"):
        batches.get(0, 9)
    assert_is(batches, 0, 1)


def test_pixels_that_are_normalised_later_are_the_inputs(data: Squares) -> None:
    """Relative to the largest, 255."""
    assert isinstance(data, Pixels)
    pixels, _ = data.pixels(2, 3)
    expected = pixels * data.scale + data.shift
    for dtype, tolerance in ((torch.float32, 1e-6), (torch.float64, 1e-14)):
        found = normalised(pixels, data, dtype)
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=255 * tolerance)
