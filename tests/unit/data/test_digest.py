"""Digests of data: the same for the same data, however they are read, and others for others."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from dsgd.data.items import Items
from dsgd.data.partition import Partition
from dsgd.data.protocols import data_digest, difference
from dsgd.runner.configuration import configure
from tests.support.each_row import each_row
from tests.support.simulate import values_of
from tests.unit.data.test_decoding import Made

SIZE = 300


def plain(index: int) -> tuple[torch.Tensor, int]:
    return torch.tensor([float(index), 1.0]), index % 3


def listed(sample: Callable[[int], tuple[Any, int]], count: int = SIZE) -> Made:
    """Return a set whose sample i a function gives."""
    return Made(sample, count)


def items(train: Made | None = None, test: Made | None = None, classes: int = 3) -> Items:
    train, test = train or listed(plain), test or listed(plain, 40)
    return Items("mine", train, test, classes, (2,), Partition(len(train), 2, 4, 0), torch.float32)


def changed(number: int, value: Sequence[float] | None = None, label: int | None = None) -> Callable[[int], Any]:
    def sample(index: int) -> tuple[torch.Tensor, int]:
        inputs, own = plain(index)
        if index != number:
            return inputs, own
        return inputs if value is None else torch.tensor(value), own if label is None else label

    return sample


@each_row("data", [(), ("experiment=quadratic",), ("data=shapes",)])
def test_the_same_data_have_one_digest(data: tuple[str, ...]) -> None:
    def digest(*options: str) -> Any:
        config = configure(values_of(*data, *options)).experiment.data
        return data_digest(config.load(2, 1, 0, torch.float32))

    first = digest()
    assert difference(first, digest()) is None
    assert all(first.values())


def test_one_other_sample_or_label_shows() -> None:
    first = data_digest(items())
    assert difference(first, data_digest(items())) is None
    for part, other in {
        "training samples": items(listed(plain, SIZE - 1)),
        "test samples": items(test=listed(plain, 39)),
        "numbers of classes": items(classes=4),
        "training labels": items(listed(changed(7, label=0))),
        "training inputs": items(listed(changed(299, value=[299.0, 1.5]))),
        "test labels": items(test=listed(changed(0, label=1), 40)),
        "test inputs": items(test=listed(changed(39, value=[0.0, 0.0]), 40)),
    }.items():
        assert difference(first, data_digest(other)) == part


def test_what_is_drawn_from_global_streams_while_reading_is_no_difference() -> None:
    """And whoever draws from them afterwards does not notice."""

    def drawn(index: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([random.random(), np.random.rand()]) + torch.randn(2), index % 3

    def later() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    expected = later()
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    first = data_digest(items(listed(drawn)))
    assert later() == expected
    assert first["training inputs"]
    assert difference(first, data_digest(items(listed(drawn)))) is None


def test_inputs_that_never_come_twice_are_not_compared_and_their_labels_are() -> None:
    rng = np.random.default_rng()

    def drawn(index: int) -> tuple[np.ndarray, int]:
        return rng.random(2), index % 3

    first = data_digest(items(listed(drawn)))
    assert first["training inputs"] == {}
    assert difference(first, data_digest(items(listed(drawn)))) is None
    others = listed(lambda index: (rng.random(2), (index + 1) % 3))
    assert difference(first, data_digest(items(others))) == "training labels"


def test_data_that_take_long_to_read_are_compared_as_far_as_both_have_come(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = data_digest(items())
    monkeypatch.setattr("dsgd.data.protocols.LIMIT_S", 0.0)
    part = data_digest(items())
    assert set(part["training labels"]) < set(whole["training labels"])
    assert difference(part, whole) is None
    assert difference(whole, part) is None
    assert difference(data_digest(items(listed(lambda index: (plain(index)[0], 0)))), whole) == "training labels"
