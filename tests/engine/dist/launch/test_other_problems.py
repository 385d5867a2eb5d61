"""Ranks that build different models, or load different data, each for itself."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.engine.dist.launch.test_torchrun import free_port, static
from tests.support.prefork import Prefork, Run

HERE = f"{__name__}."
RUN = ("nodes=2", "batch_size=4", "budget.epochs=null", "budget.steps=6", "eval.every_epochs=null", "algo=sync")


def rank() -> int:
    return int(os.environ["RANK"])


class OfEveryRank(nn.Module):
    """Whose weights and buffers each rank draws for itself."""

    def __init__(self, wide: bool = False) -> None:
        super().__init__()
        torch.manual_seed(rank())
        self.linear = nn.Linear(64, 10, bias=not (wide and rank() == 1))
        self.norm = nn.BatchNorm1d(64)
        self.norm.running_mean = torch.rand(64) + rank()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.linear(self.norm(inputs.flatten(1)))


def sets() -> list[list[tuple[np.ndarray, int]]]:
    """Whose test inputs are others on rank 1."""
    train = [(np.full(3, index, np.float32), index % 2) for index in range(40)]
    return [train, [(np.full(3, index + (rank() == 1), np.float32), index % 2) for index in range(10)]]


def launched(prefork: Prefork, folder: Path, *options: str) -> list[Run]:
    """Start a run of two ranks, as torchrun does, and wait for its end. Rank 0 has the record."""
    port = free_port()
    runs = [prefork.start(folder / f"rank{rank}", *RUN, *options, **static(rank, port)) for rank in (0, 1)]
    for run in runs:
        run.wait()
    return runs


def test_every_rank_starts_from_the_parameters_and_buffers_of_rank_0(prefork: Prefork, tmp_path: Path) -> None:
    options = ("model=import", f"model.target={HERE}OfEveryRank", "optimizer.lr=1e-9")
    first, second = launched(prefork, tmp_path, *options)
    assert (first.poll(), second.poll()) == (0, 0), first.err
    assert [mark["discrepancy"] for mark in first.marks] == [0.0, 0.0]
    # buffers are averaged over the workers: nobody's began elsewhere
    assert first.marks[-1]["test_loss"] == pytest.approx(first.marks[0]["test_loss"], rel=0.2)


def test_other_data_on_a_rank_are_one_line(prefork: Prefork, tmp_path: Path) -> None:
    options = ("data=import", "data.classes=2", f"data.target={HERE}sets")
    first, second = launched(prefork, tmp_path, *options, "model.hidden=[]")
    assert 0 not in (first.poll(), second.poll())
    assert "rank 1 has other data than rank 0: test inputs differ\n" in first.err + second.err
    assert first.summary["status"] == "failed"


def test_another_model_on_a_rank_is_one_line(prefork: Prefork, tmp_path: Path) -> None:
    options = ("model=import", f"model.target={HERE}OfEveryRank", "model.arguments={wide: true}")
    first, second = launched(prefork, tmp_path, *options)
    assert 0 not in (first.poll(), second.poll())
    assert "rank 1 has another model than rank 0: parameters differ\n" in first.err + second.err
