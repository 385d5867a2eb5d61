"""A user's data sets that are read once: when they are, and that no number depends on it."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from dsgd.data.decoding import DecodedSamples
from dsgd.data.imported import ImportedData
from dsgd.data.in_memory import Classification
from dsgd.data.items import Items
from dsgd.data.own_sets import sharing
from dsgd.data.protocols import data_digest, difference
from tests.support.each_row import each_row

HERE = "tests.unit.data.test_decoding."
COUNT, CLASSES = 60, 3
READ: list[int] = []  # the samples that `counted` was asked for


class Made:
    """Sample i as a function makes it. count: samples that there are, said: that it has."""

    def __init__(self, make: Callable[[int], Any], count: int = COUNT, said: int | None = None) -> None:
        self.make, self.count, self.said = make, count, count if said is None else said

    def __len__(self) -> int:
        return self.said

    def __getitem__(self, index: int) -> Any:
        if index >= self.count:
            raise IndexError(index)
        return self.make(index)


def pixels(index: int, shape: tuple[int, ...] = (2, 8, 8)) -> np.ndarray:
    return np.random.default_rng(index).integers(0, 256, shape, np.uint8)


def images(kind: str) -> list[Any]:
    """Two sets of the same images: of bytes, of doubles, of a TensorDataset, or one list of Python's for each."""
    if kind == "tensors":
        inputs = torch.from_numpy(np.stack([pixels(i) for i in range(COUNT)])).float() / 255
        return [TensorDataset(inputs, torch.arange(COUNT) % CLASSES)] * 2
    make = {
        "bytes": lambda i: (pixels(i), i % CLASSES),
        "doubles": lambda i: (pixels(i) / 255, float(i % CLASSES)),
        "features": lambda i: (pixels(i, (5,)).tolist(), np.int16(i % CLASSES)),
    }[kind]
    return [Made(make), Made(make, 20)]


def counted() -> list[Made]:
    def make(index: int) -> tuple[np.ndarray, int]:
        READ.append(index)
        return pixels(index), 0

    return [Made(make, 1000)] * 2


STATE = {"rng": np.random.default_rng(0), "reads": 0}


def counting(index: int) -> tuple[np.ndarray, int]:
    STATE["reads"] += 1
    return np.full(2, float(STATE["reads"])), 0


def changing(how: str) -> list[Made]:
    make: dict[str, Callable[[int], tuple[Any, Any]]] = {
        "torch": lambda i: (torch.rand(2), 0),
        "unused": lambda i: (torch.zeros(2) + 0 * torch.rand(()), 0),
        "numpy": lambda i: (np.random.rand(2), 0),
        "python": lambda i: ([random.random()], 0),
        "own": lambda i: (STATE["rng"].random(2), 0),
        "count": counting,
        "label": lambda i: ([1.0], int(STATE["rng"].integers(2))),
        "type": lambda i: (np.zeros(2, np.uint8 if i < 40 else np.int64), 0),
    }
    return [Made(make[how])] * 2


def broken(how: str) -> list[Made]:
    def at(index: int) -> Callable[[int], tuple[Any, Any]]:
        values: dict[str, tuple[Any, Any]] = {
            "length": (np.zeros(3), 0), "type": (np.zeros(2, np.int64), 0), "label": (np.zeros(2), CLASSES),
        }  # fmt: skip
        return lambda i: values[how] if i == index else (np.zeros(2), 0)

    if how == "lies":
        return [Made(lambda i: (np.zeros(2), 0), said=100), Made(lambda i: (np.zeros(2), 0))]
    if how == "raises":
        return [Made(lambda i: (np.zeros(2), 0) if i != 31 else 1 // 0)] * 2
    return [Made(at(31)), Made(lambda i: (np.zeros(2), 0))]


def config(target: str, decode: str = "auto", options: Any = None, **arguments: Any) -> ImportedData:
    return ImportedData(f"{HERE}{target}", CLASSES, arguments, decode=decode, **(options or {}))


@each_row("dtype", [torch.float32, torch.float64])
@each_row(
    ("kind", "options"),
    [
        *((kind, options) for kind in ("bytes", "doubles", "tensors") for options in ({}, {"augment": True})),
        ("features", {}),
        ("bytes", {"validation": 0.2, "evaluate": "validation"}),
    ],
)
def test_every_bit_is_that_of_samples_read_one_by_one(kind: str, options: Any, dtype: torch.dtype) -> None:
    data, read = (config("images", how, options, kind=kind).load(3, 5, 7, dtype) for how in ("auto", "each_read"))
    assert isinstance(data, DecodedSamples)
    assert isinstance(read, Items)
    steps = [(0, 0), (2, 1), (1, 9)]
    batches = [read.batch(*step) for step in steps]
    inputs, labels = data.batches(*zip(*steps, strict=True))
    for row, (step, batch) in enumerate(zip(steps, batches, strict=True)):
        for value, right in zip((*data.batch(*step), inputs[row], labels[row]), (*batch, *batch), strict=True):
            assert torch.equal(value, right)
            assert value.dtype == right.dtype
    for test, limit in ((False, None), (True, 7)):
        pairs = zip(data.evaluation(test, limit), read.evaluation(test, limit), strict=True)
        assert all(torch.equal(a, b) for ours, theirs in pairs for a, b in zip(ours, theirs, strict=True))
    assert difference(data_digest(data), data_digest(read)) is None


def test_samples_keep_their_type_and_tensors_are_not_copied(capsys: pytest.CaptureFixture[str]) -> None:
    of_bytes = config("images", kind="bytes")
    data = of_bytes.load(1, 5, 0, torch.float32)
    assert isinstance(data, Classification)
    assert torch.as_tensor(data.train[0]).dtype == torch.uint8
    assert f"data.target={HERE}images: 60 and 20 samples in memory, 0.0 MiB" in capsys.readouterr().err
    of_tensors = config("images", kind="tensors")
    data = of_tensors.load(1, 5, 0, torch.float32)
    assert isinstance(data, Classification)
    assert torch.as_tensor(data.train[0]).data_ptr() == of_tensors._source.sets[0].tensors[0].data_ptr()  # type: ignore[attr-defined]
    assert "60 and 60 samples in memory, as they are" in capsys.readouterr().err


def test_what_the_data_take_is_said_once_in_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    """By the runs that are measured; those that tune take no sample of the test set, and have the same in memory."""
    tuning = {"validation": 0.2, "evaluate": "validation"}
    with sharing({}):
        for options in (None, tuning, None, tuning):
            config("images", options=options, kind="bytes").load(1, 5, 0, torch.float32)
    assert capsys.readouterr().err.count("in memory") == 1


def test_all_runs_of_a_command_read_every_sample_once() -> None:
    """And a few of them twice more, to see whether they stay as they are."""
    READ.clear()
    with sharing({}):
        for seed in range(3):
            config("counted").load(2, 5, seed, torch.float32).batch(0, 0)
    assert len(READ) < 1.3 * 2 * 1000
    assert set(READ) == set(range(1000))


@each_row(
    ("how", "reason"),
    [
        ("torch", "reading them draws random numbers of torch"),
        ("unused", "reading them draws random numbers of torch"),
        ("numpy", "reading them draws random numbers of NumPy"),
        ("python", "reading them draws random numbers of Python"),
        ("own", "differs from one reading to the next"),
        ("count", "differs from one reading to the next"),
        ("label", "differs from one reading to the next"),
        ("type", "sample 40 is of int64, and the first one uint8"),
    ],
)
def test_samples_that_change_are_read_each_time_and_a_line_says_why(
    how: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert isinstance(config("changing", how=how).load(1, 5, 0, torch.float32), Items)
    assert capsys.readouterr().err.count(reason) == 1


def test_random_samples_can_be_fixed_on_purpose() -> None:
    """The same ones in every process, and nobody else's random numbers are used up."""
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    data = [config("changing", "once", how="torch").load(1, 5, 0, torch.float32) for _ in range(2)]
    assert torch.equal(torch.rand(2), expected)
    assert torch.equal(data[0].batch(0, 0)[0], data[1].batch(0, 0)[0])
    with pytest.raises(ValueError, match=r"that can be read once with .*: sample 40 is of int64"):
        config("changing", "once", how="type").check(1, 5)


@each_row(
    ("how", "rule"),
    [
        ("length", "sample 31 must be 2 as the first one, got 3"),
        ("type", "sample 31 must be float64 as the first one, got int64"),
        ("label", r"the label of sample 31 must be in \[0, data.classes = 3\), got 3"),
        ("lies", "sample 99 must be a tensor or array, and a label; IndexError: 99"),
        ("raises", "sample 31 must be a tensor or array, and a label; ZeroDivisionError"),
    ],
)
@each_row("decode", ["auto", "once"])
def test_a_bad_sample_half_way_is_named_before_the_start(how: str, rule: str, decode: str) -> None:
    with pytest.raises(ValueError, match=rule):
        config("broken", decode, how=how).check(1, 5)


def test_a_set_that_does_not_fit_in_memory_is_read_each_time_or_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """More than half of the memory of the machine, or more than is free."""
    monkeypatch.setattr("dsgd.data.decoding.total_memory", lambda: 2**13)
    reason = r"its samples take 1.01e-05 GiB, more than half of the memory, 3.81e-06 GiB"
    assert isinstance(config("images", kind="bytes").load(1, 5, 0, torch.float32), Items)
    assert len(re.findall(rf"samples are read whenever they are needed, as {reason}", capsys.readouterr().err)) == 1
    with pytest.raises(ValueError, match=f"read once with data.decode=once: {reason}"):
        config("images", "once", kind="bytes").check(1, 5)
    monkeypatch.undo()
    monkeypatch.setattr("dsgd.data.decoding.available_memory", lambda: 2**12)
    rule = "needs 1.01e-05 GiB of memory for its samples, got 3.81e-06 GiB; data.decode=each_read reads them whenever"
    with pytest.raises(ValueError, match=rule):
        config("images", kind="bytes").check(1, 5)
