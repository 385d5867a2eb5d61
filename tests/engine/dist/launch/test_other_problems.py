"""Processes of torchrun that build different models, or load different data, each for itself."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from dsgd.problem.problem import build_problem
from dsgd.problem.problem_digest import complaint, problem_digest
from tests.engine.dist.launch.test_torchrun import PATIENCE_S, launched
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


def test_every_rank_starts_from_the_parameters_and_buffers_of_rank_0(tmp_path: Path) -> None:
    options = ("model=import", f"model.target={HERE}OfEveryRank", "optimizer.lr=1e-9")
    with launched(tmp_path / "run", *RUN, *options) as (process, _):
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    marks = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [mark["discrepancy"] for mark in marks] == [0.0, 0.0]
    # buffers are averaged over the workers: nobody's began elsewhere
    assert marks[-1]["test_loss"] == pytest.approx(marks[0]["test_loss"], rel=0.2)


@pytest.mark.parametrize("part", ["training samples", "training labels", "test inputs"])
def test_data_of_ranks_are_told_apart_by_what_differs(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = ("data=import", "data.classes=2", f"data.target={HERE}sets", f"data.arguments={{part: {part}}}")
    digests = []
    for number in (0, 1):
        monkeypatch.setenv("RANK", str(number))
        digests.append(problem_digest(build_problem(experiment(*data, "nodes=2", "batch_size=4", "model.hidden=[]"))))
    assert complaint(digests[1], digests[0], "rank 0") == f"other data than rank 0: {part} differ"


def test_other_data_on_a_rank_are_one_line(tmp_path: Path) -> None:
    options = ("data=import", "data.classes=2", f"data.target={HERE}sets", "data.arguments={part: test inputs}")
    with launched(tmp_path / "run", *RUN, *options, "model.hidden=[]") as (process, _):
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode != 0
    assert "rank 1 has other data than rank 0: test inputs differ\n" in err
    assert json.loads((tmp_path / "run/summary.json").read_text())["status"] == "failed"


def test_another_model_on_a_rank_is_one_line(tmp_path: Path) -> None:
    options = ("model=import", f"model.target={HERE}OfEveryRank", "model.arguments={wide: true}")
    with launched(tmp_path / "run", *RUN, *options) as (process, _):
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode != 0
    assert "rank 1 has another model than rank 0: parameters differ\n" in err
