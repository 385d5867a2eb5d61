"""Ranks that build different models, or load different data, each for itself."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from dsgd.problem.problem import build_problem
from dsgd.problem.problem_digest import complaint, problem_digest
from tests.engine.dist.launch.test_torchrun import free_port, static
from tests.support.prefork import Prefork, Run
from tests.support.simulate import experiment

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


def sets(part: str) -> list[list[tuple[np.ndarray, int]]]:
    """That differ in one part on rank 1."""
    other = rank() == 1
    count = 41 if other and part == "training samples" else 40
    train = [
        (np.full(3, index, np.float32), (index + (other and part == "training labels")) % 2) for index in range(count)
    ]
    test = [(np.full(3, index + (other and part == "test inputs"), np.float32), index % 2) for index in range(10)]
    return [train, test]


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


def test_data_of_ranks_are_told_apart_by_what_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    for part in ("training samples", "training labels", "test inputs"):
        data = ("data=import", "data.classes=2", f"data.target={HERE}sets", f"data.arguments={{part: {part}}}")
        digests = []
        for number in (0, 1):
            monkeypatch.setenv("RANK", str(number))
            of = build_problem(experiment(*data, "nodes=2", "batch_size=4", "model.hidden=[]"))
            digests.append(problem_digest(of))
        assert complaint(digests[1], digests[0], "rank 0") == f"other data than rank 0: {part} differ"


def test_other_data_on_a_rank_are_one_line(prefork: Prefork, tmp_path: Path) -> None:
    options = ("data=import", "data.classes=2", f"data.target={HERE}sets", "data.arguments={part: test inputs}")
    first, second = launched(prefork, tmp_path, *options, "model.hidden=[]")
    assert 0 not in (first.poll(), second.poll())
    assert "rank 1 has other data than rank 0: test inputs differ\n" in first.err + second.err
    assert first.summary["status"] == "failed"


def test_another_model_on_a_rank_is_one_line(prefork: Prefork, tmp_path: Path) -> None:
    options = ("model=import", f"model.target={HERE}OfEveryRank", "model.arguments={wide: true}")
    first, second = launched(prefork, tmp_path, *options)
    assert 0 not in (first.poll(), second.poll())
    assert "rank 1 has another model than rank 0: parameters differ\n" in first.err + second.err
