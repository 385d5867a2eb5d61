"""Shares of the workers' own: all samples, equally many, the same in every epoch, and as different as was asked for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dsgd.data import DataConfig, Digits, Shapes
from dsgd.data.imported import ImportedData
from dsgd.data.partition import OwnShares, Partition
from dsgd.data.split import Split, by_dirichlet
from tests.support.each_row import each_row

HERE = f"{__name__}."


def shares_of(config: Split, labels: np.ndarray, nodes: int, seed: int = 0) -> list[np.ndarray]:
    partition = config.partition(labels, nodes, 1, seed)
    assert isinstance(partition, OwnShares)
    return list(partition.shares)


@st.composite
def partitions(draw: st.DrawFn) -> OwnShares:
    nodes = draw(st.integers(1, 12))
    share = draw(st.integers(1, 30))
    samples = nodes * share + draw(st.integers(0, nodes - 1))
    labels = np.random.default_rng(draw(st.integers(0, 99))).integers(0, draw(st.integers(1, 5)), samples)
    config = Split(
        split=draw(st.sampled_from(["dirichlet", "label"])), split_alpha=draw(st.sampled_from([1e-9, 0.1, 9]))
    )
    found = config.partition(labels, nodes, draw(st.integers(1, share)), draw(st.integers(0, 2**40)))
    assert isinstance(found, OwnShares)
    return found


@given(partitions())
def test_every_sample_is_one_workers_and_all_have_equally_many(partition: OwnShares) -> None:
    assert np.array_equal(np.sort(np.concatenate(partition.shares)), np.arange(partition.samples))
    assert {len(share) - partition.samples // partition.nodes for share in partition.shares} <= {0, 1}


@given(partitions(), st.lists(st.tuples(st.integers(0, 11), st.integers(0, 90)), min_size=1, max_size=20))
def test_an_epoch_of_a_worker_is_a_permutation_of_its_share(partition: OwnShares, asked: list[tuple[int, int]]) -> None:
    """Of which the last samples may not fill a batch; in whatever order batches are asked for, one or several."""
    asked = [(rank % partition.nodes, step) for rank, step in asked]
    several = partition.several(*zip(*asked, strict=True))
    for (rank, step), found in zip(asked, several, strict=True):
        assert np.array_equal(partition.indices(rank, step), found)
        begin = step - step % partition.steps_per_epoch
        epoch = [partition.indices(rank, begin + batch) for batch in range(partition.steps_per_epoch)]
        assert len(np.unique(epoch)) == np.size(epoch) == partition.steps_per_epoch * partition.batch_size
        assert np.isin(epoch, partition.shares[rank]).all()


def test_epochs_differ_and_seeds_draw_other_shares() -> None:
    labels = np.arange(400) % 10
    partition = Split(split="dirichlet").partition(labels, 4, 50, 1)
    batches = [partition.indices(0, step) for step in (0, 2, 4)]
    assert len({tuple(batch) for batch in batches}) == 3
    for split in ("dirichlet", "label"):
        config = Split(split=split)
        one, again, other = (shares_of(config, labels, 4, seed) for seed in (1, 1, 2))
        assert all(map(np.array_equal, one, again))
        assert not any(map(np.array_equal, one, other))
    assert type(Split().partition(labels, 4, 50, 1)) is Partition


def test_the_samples_of_a_class_go_to_the_workers_by_a_symmetric_dirichlet() -> None:
    """Where there is room for all: two of a class have the same worker with probability (alpha + 1) / (p alpha + 1)."""
    labels, p = np.arange(40_000) % 800, 6
    for alpha in (0.1, 1.0, 10.0):
        owners = by_dirichlet(labels, np.full(p, len(labels)), alpha, np.random.default_rng(0))
        counts = np.array([np.bincount(owners[labels == label], minlength=p) for label in range(800)])
        together = (counts * (counts - 1)).sum(axis=1) / (50 * 49)
        assert together.mean() == pytest.approx((alpha + 1) / (p * alpha + 1), abs=4 * together.std() / 800**0.5)
        assert counts.sum(axis=0) / len(labels) == pytest.approx(1 / p, abs=0.06)


class Labelled(torch.utils.data.TensorDataset):
    """Inputs that say the label."""

    def __init__(self, targets: object = None) -> None:
        labels = torch.arange(40) % 2
        super().__init__(labels.view(-1, 1).double(), labels)
        self.targets = labels if targets is None else targets


def labelled(targets: object = None) -> tuple[Labelled, Labelled]:
    return Labelled(targets), Labelled()


def bare() -> tuple[list[tuple[list[float], int]], list[tuple[list[float], int]]]:
    return [([1.0], 0)] * 40, [([1.0], 0)]


@each_row("validation", [0.0, 0.25])
@each_row("name", ["shapes", "import"])
def test_data_sets_serve_each_worker_its_own_labels(name: str, validation: float) -> None:
    options = {"split": "label", "validation": validation}
    config = {
        "shapes": lambda: Shapes(classes=2, train_size=40, test_size=4, resolution=8, **options),
        "import": lambda: ImportedData(f"{HERE}labelled", 2, **options),
    }[name]()
    assert_own_labels(config)


def assert_own_labels(config: DataConfig) -> None:
    """Hold the first of two workers to the first of two classes, but for what validation has made uneven."""
    batch = config.train_samples(2) // 2
    config.check(2, batch)
    data = config.load(2, batch, 0, torch.float64)
    labels = torch.stack([data.batch(rank, step)[1].sort().values for rank in range(2) for step in (0, 1)])
    assert torch.equal(labels[::2], labels[1::2])  # the same samples in every epoch
    assert torch.equal(labels[::2].flatten(), labels[::2].flatten().sort().values)
    assert labels[0, 0] == 0
    assert labels[2, -1] == 1


def test_evaluation_and_normalisation_stay_over_all_data() -> None:
    alike, apart = (Digits(split=split).load(8, 4, 0, torch.float64) for split in ("iid", "label"))
    for one, other in zip((*alike.train_set, *alike.test_set), (*apart.train_set, *apart.test_set), strict=True):
        assert torch.equal(one, other)


@each_row(
    ("targets", "got"),
    [(None, "none"), ([0, 1], "int64 of shape (2,)"), ([0.5] * 40, "whole numbers in [0, 2), got 0.5")],
)
def test_labels_that_are_none_are_refused(targets: list[float] | None, got: str) -> None:
    """Before the start, by the check of the configuration."""
    target, arguments = ("bare", {}) if targets is None else ("labelled", {"targets": targets})
    config = ImportedData(f"{HERE}{target}", 2, arguments, split="label", decode="each_read")
    with pytest.raises(ValueError, match=r"targets.*got") as error:
        config.check(2, 4)
    assert str(error.value).endswith(got)
