"""Training samples that are held out: never trained on, and all that is evaluated where options are chosen by them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dsgd.data import Digits, Shapes
from dsgd.data.imported import ImportedData
from dsgd.data.protocols import evaluation_batches
from tests.support.each_row import each_row


class Numbered(torch.utils.data.Dataset):
    """Inputs that are the sample's number; those from `first` on, of which the test set's may not be read."""

    def __init__(self, first: int, count: int, readable: bool = True) -> None:
        self.first, self.count, self.readable = first, count, readable

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        assert self.readable, "a test sample was read"
        return torch.tensor([float(self.first + index)]), index % 2


def numbered(readable: bool = True) -> tuple[Numbered, Numbered]:
    return Numbered(0, 50), Numbered(1000, 20, readable)


def evaluated(config: Any, nodes: int = 2) -> torch.Tensor:
    data = config.load(nodes, 5, 0, torch.float64)
    return torch.cat([inputs for inputs, _ in evaluation_batches(data, test=True)]).flatten(1)


def trained(config: Any, nodes: int = 2) -> torch.Tensor:
    """Return all samples of the first epoch."""
    data = config.load(nodes, 5, 0, torch.float64)
    steps = config.train_samples(nodes) // nodes // 5
    return torch.cat([data.batch(rank, step)[0] for rank in range(nodes) for step in range(steps)]).flatten(1)


def rows(samples: torch.Tensor) -> set[tuple[float, ...]]:
    return {tuple(row) for row in samples.tolist()}


def test_no_test_sample_is_read_where_options_are_chosen() -> None:
    path = f"{__name__}.numbered"
    arguments = {"readable": False}
    config = ImportedData(path, 2, arguments, validation=0.2, evaluate="validation")
    assert rows(evaluated(config)).isdisjoint(rows(trained(config)))
    assert len(evaluated(config)) == 10
    assert config.train_samples(2) == 40
    with pytest.raises(Exception, match="a test sample was read"):
        evaluated(ImportedData(path, 2, arguments, validation=0.2))


@each_row("config", [Digits, lambda **options: Shapes(resolution=8, train_size=200, **options)])
def test_what_is_held_out_is_evaluated_and_not_trained_on(config: Any) -> None:
    chosen, reported = config(validation=0.2, evaluate="validation"), config(validation=0.2)
    held_out = evaluated(chosen)
    assert len(held_out) == round(0.2 * config().train_samples(1))
    assert rows(held_out).isdisjoint(rows(trained(chosen)))
    assert torch.equal(trained(chosen), trained(reported))
    assert len(evaluated(reported)) == len(evaluated(config()))
