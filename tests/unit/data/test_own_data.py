"""Data of your own, by import path."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from dsgd.data import DataLost
from dsgd.data.imported import ImportedData
from dsgd.data.items import Items
from dsgd.data.partition import Partition
from tests.support.each_row import each_row
from tests.support.simulate import experiment

HERE = "tests.unit.data.test_own_data."
SIZE, CLASSES = 3, 4
LINE = ["data=import", f"data.classes={CLASSES}", "nodes=2", "batch_size=5"]


class Blobs:
    """Points about one of four corners each, moved a little whenever they are read."""

    def __init__(self, count: int, seed: int, move: float = 0.1) -> None:
        rng = np.random.default_rng(seed)
        self.labels = rng.integers(0, CLASSES, count)
        self.points = np.eye(CLASSES, SIZE)[self.labels] * 2 + 0.1 * rng.standard_normal((count, SIZE))
        self.move = move

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(self.points[index]) + self.move * torch.randn(SIZE), self.labels[index]


def blobs(count: int = 40) -> tuple[Blobs, Blobs]:
    return Blobs(count, 0), Blobs(12, 1)


def still() -> list[TensorDataset]:
    """As people have it in memory, in single precision."""
    sets = Blobs(40, 0), Blobs(12, 1)
    return [TensorDataset(torch.from_numpy(of.points).float(), torch.from_numpy(of.labels)) for of in sets]


def mean() -> int:
    raise RuntimeError("no disk today\nand a second line")


def three() -> list[int]:
    return [1, 2, 3]


def empty() -> tuple[Blobs, list[int]]:
    return Blobs(40, 0), []


def words() -> tuple[list[tuple[str, int]], list[int]]:
    return [("a", 1)] * 20, [1]


def labelled(label: Any, value: Any = 0.5) -> list[list[tuple[list[Any], Any]]]:
    """Sets whose last samples have this label and this value."""
    return [[([0.5], 0)] * 19 + [([value], label)], [([0.5], 0), ([value], label)]]


def of_types(train: str, test: str) -> list[list[tuple[np.ndarray, int]]]:
    """Sets of arrays of these types, or shapes."""
    one = {"rows": np.zeros((1, SIZE)), "scalar": np.float32(1.0)}
    return [[(one[kind] if kind in one else np.zeros(SIZE, kind), 1)] * 20 for kind in (train, test)]


class NoLength(Blobs):
    def __len__(self) -> int:
        raise NotImplementedError("a stream")


def endless() -> tuple[Blobs, Blobs]:
    return NoLength(40, 0), Blobs(12, 1)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[tuple[Any, int]]:
        return iter(Blobs(40, 0))


class StreamWithLength(Stream):
    def __len__(self) -> int:
        return 40


def iterable(kind: str) -> Sequence[Any]:
    """Two sets that can be iterated only."""
    if kind == "generator":
        return [(sample for sample in Blobs(40, 0)) for _ in range(2)]
    if kind == "DataLoader":
        return [DataLoader(still()[0]) for _ in range(2)]
    return [Stream(), Stream()] if kind == "Stream" else [blobs()[0], StreamWithLength()]


class Changing(Dataset[tuple[torch.Tensor, int]]):
    """Samples that are there for every index, and a length that is `later` from the n-th question on."""

    def __init__(self, n: int, later: Any) -> None:
        self.n, self.later, self.asked = n, later, 0
        self.targets = [index % CLASSES for index in range(40)]

    def __len__(self) -> int:
        self.asked += 1
        if self.asked >= self.n and self.later is None:
            raise RuntimeError("closed")
        return 40 if self.asked < self.n else self.later

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.ones(SIZE), index % CLASSES


def changing(n: int, later: Any, test: bool) -> list[Dataset[tuple[torch.Tensor, int]]]:
    sets: list[Dataset[tuple[torch.Tensor, int]]] = [Changing(99, 0), Changing(n, later)]
    return sets if test else sets[::-1]


def with_targets(last: Any) -> list[TensorDataset]:
    sets = still()
    setattr(sets[0], "targets", [1.0] * 39 + [last])  # noqa: B010, not declared
    return sets


def uneven() -> tuple[list[tuple[list[float], int]], list[tuple[list[float], int]]]:
    return [([1.0], 0), *[([1.0, 2.0], 0)] * 18, ([1.0], 0)], [([1.0], 0)]


def test_batches_are_a_function_of_seed_rank_and_step_random_reading_included() -> None:
    config = ImportedData(f"{HERE}blobs", CLASSES, {"count": 30})
    data, again = (config.load(2, 5, 7, torch.float64) for _ in range(2))
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    inputs, labels = data.batch(1, 2)
    assert torch.equal(torch.rand(2), expected)  # nobody else's random numbers are used up
    again.batch(0, 0)
    assert torch.equal(again.batch(1, 2)[0], inputs)
    assert inputs.shape == (5, SIZE)
    assert inputs.dtype == torch.float64
    indices = data.partition.indices(1, 2)
    assert labels.tolist() == Blobs(30, 0).labels[indices].tolist()
    assert 0 < float((inputs - torch.from_numpy(Blobs(30, 0).points[indices])).abs().max()) < 1
    assert not torch.equal(inputs, config.load(2, 5, 8, torch.float64).batch(1, 2)[0])


def test_evaluation_reads_every_sample_once_and_always_alike() -> None:
    data = ImportedData(f"{HERE}blobs", CLASSES, {"count": 600}).load(1, 5, 0, torch.float32)
    whole = list(data.evaluation(test=False))
    assert [len(inputs) for inputs, _ in whole] == [256, 256, 88]
    assert sorted(torch.cat([labels for _, labels in whole]).tolist()) == sorted(Blobs(600, 0).labels.tolist())
    assert torch.equal(next(data.evaluation(test=False))[0], whole[0][0])
    assert sum(len(inputs) for inputs, _ in data.evaluation(test=True, limit=7)) == 7


def test_the_shape_comes_from_the_data_and_the_model_fits_it() -> None:
    of = experiment(*LINE, f"data.target={HERE}blobs", "+data.arguments={count: 50}", "model.hidden=[]")
    assert of.data.input_shape == (SIZE,)
    assert of.epoch_samples == 50


@each_row("label", [3, 3.0, True, np.int8(3), np.float32(3), np.bool_(True), torch.tensor(3), [3], [[3.0]]])
def test_a_label_is_one_whole_number_of_whichever_type(label: Any) -> None:
    data = ImportedData(f"{HERE}labelled", CLASSES, {"label": label}).load(1, 20, 0, torch.float32)
    assert data.batch(0, 0)[1].sum() == (1 if label in (True, np.bool_(True)) and label != 3 else 3)


@each_row(
    ("label", "rule"),
    [
        (0.25, "the label of sample 19 must be one whole number, got 0.25"),
        (1j, "the label of sample 19 must be one whole number, got 1j"),
        ([0, 0, 1, 0], "the label of sample 19 must be one whole number, got 4 numbers"),
        (-1, r"the label of sample 19 must be in \[0, data\.classes = 4\), got -1"),
        ("3", "sample 19 must be a tensor or array, and a label; "),
    ],
)
def test_a_label_that_is_none_is_named_before_the_start(label: Any, rule: str) -> None:
    with pytest.raises(ValueError, match=f"data.target={HERE}labelled: {rule}"):
        ImportedData(f"{HERE}labelled", CLASSES, {"label": label}).check(1, 5)


@each_row(
    ("target", "arguments", "rule"),
    [
        ("labelled", {"label": 1, "value": 1j}, "sample 19 must be of real numbers, got complex"),
        (
            "of_types",
            {"train": "float32", "test": "int64"},
            "sample 0 of the test set must be float32 as the first one",
        ),
        (
            "of_types",
            {"train": "float32", "test": "rows"},
            "sample 0 of the test set must be 3 as the first one, got 1 x 3",
        ),
        ("endless", {}, "must give two data sets with a length: NotImplementedError: a stream"),
    ],
)
def test_samples_that_are_not_alike_are_named_before_the_start(target: str, arguments: Any, rule: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"data.target={HERE}{target}")) as raised:
        ImportedData(f"{HERE}{target}", CLASSES, arguments).check(1, 5)
    assert rule in str(raised.value)


@each_row("kind", ["generator", "DataLoader", "Stream", "StreamWithLength"])
def test_sets_that_can_be_iterated_only_are_named(kind: str) -> None:
    rule = rf"must give two data sets with len\(...\) and \[index\], got {kind}, which is only iterable: a list of"
    with pytest.raises(ValueError, match=f"data.target={HERE}iterable {rule}"):
        ImportedData(f"{HERE}iterable", CLASSES, {"kind": kind}).check(1, 5)


@each_row(
    ("later", "got"), [(None, "RuntimeError: closed"), (-1, "ValueError: "), (4.5, "TypeError: "), (0, "0"), (50, "50")]
)
def test_a_length_that_changes_is_named_or_is_never_met(later: Any, got: str) -> None:
    for n, test, split in itertools.product(range(2, 6), (False, True), ("iid", "label")):
        for decode in ("auto", "once", "each_read"):
            arguments = {"n": n, "later": later, "test": test}
            config = ImportedData(f"{HERE}changing", CLASSES, arguments, decode=decode, split=split)
            try:
                config.check(2, 5)
                data = config.load(2, 5, 0, torch.float32)
                assert (data.count(test=False), data.count(test=True)) == (40, 40)
                list(data.evaluation(test=True))
            except ValueError as error:
                kind = " of the test set" if test else ""
                text = f"data.target={HERE}changing must keep its length, 40 samples{kind}, got {got}"
                assert str(error).startswith(text)  # noqa: PT017, which of both is free
                assert decode != "each_read"


@each_row(("train", "test"), [("uint8", "int64"), ("float64", "float16"), ("bool", "uint8")])
def test_types_of_the_same_meaning_may_differ(train: str, test: str) -> None:
    ImportedData(f"{HERE}of_types", CLASSES, {"train": train, "test": test}).check(1, 5)


@each_row("value", [float("nan"), float("inf"), 1e300])
def test_inputs_are_finite_in_the_precision_of_the_run(value: float) -> None:
    """Else the loss is none, and the algorithm would be blamed for it."""
    rule = "sample 19 must be of finite numbers in float32"
    with pytest.raises(ValueError, match=rule):
        ImportedData(f"{HERE}labelled", CLASSES, {"label": 1, "value": value}).load(1, 20, 0, torch.float32)
    config = ImportedData(f"{HERE}labelled", CLASSES, {"label": 1, "value": value}, decode="each_read")
    with pytest.raises(DataLost, match=rule):
        config.load(1, 20, 0, torch.float32).batch(0, 0)


@each_row("last", [0.25, -1, 4, float("nan")])
def test_targets_that_are_no_labels_are_named(last: float) -> None:
    with pytest.raises(ValueError, match=rf"targets must be whole numbers in \[0, 4\), got {last}"):
        ImportedData(f"{HERE}with_targets", CLASSES, {"last": last}, split="label").check(2, 5)


def test_targets_may_be_whole_numbers_of_any_type() -> None:
    ImportedData(f"{HERE}with_targets", CLASSES, {"last": 3.0}, split="label").load(2, 5, 0, torch.float32)


def test_inputs_take_no_graph_along() -> None:
    data = Items("x", [(torch.ones(2, requires_grad=True), 1)], [], 2, (2,), Partition(1, 1, 1, 0), torch.float32)
    assert not data.batch(0, 0)[0].requires_grad


def test_a_sample_of_another_shape_is_named_when_it_is_met() -> None:
    data = ImportedData(f"{HERE}uneven", CLASSES, decode="each_read").load(1, 20, 0, torch.float32)
    rule = r"^data\.target=tests\.unit\.data\.test_own_data\.uneven: sample \d+ must be 1 as the first one, got 2$"
    with pytest.raises(DataLost, match=rule):
        data.batch(0, 0)
