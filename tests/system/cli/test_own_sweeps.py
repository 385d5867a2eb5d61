"""Sweeps over a user's own data, model and algorithm, which fail and hold what they like."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import shell, summary

MODULE = """
from dataclasses import dataclass
from pathlib import Path
import torch
from dsgd.worker import Algorithm


class Points:
    def __init__(self, count):
        self.count, self.transform = count, lambda value: value + 1

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.transform(torch.full((3,), float(index))), index % 2


def load(calls):
    with open(calls, "a") as file:
        file.write(".")
    return Points(40), Points(10)


@dataclass(frozen=True)
class Alone(Algorithm):
    def __post_init__(self):
        object.__setattr__(self, "function", lambda: None)

    async def train(self, worker):
        while not worker.done:
            worker.step(await worker.gradient())


@dataclass(frozen=True)
class Linear:
    def __post_init__(self):
        object.__setattr__(self, "file", open(__file__))

    def check(self, input_shape, classes):
        pass

    def build(self, input_shape, classes):
        return torch.nn.Linear(3, 2)
"""
DATA = "data=import data.target=mine.load data.classes=2"
OWN = "algo._target_=mine.Alone ~algo.overlap ~algo.backups ~algo.elastic model._target_=mine.Linear ~model.hidden"
LINE = "nodes=2 batch_size=4 cluster.gradient_s=0.01 engine=sim budget.epochs=1 seed=0,1,2 hydra.sweep.dir=swept"


def test_what_cannot_be_pickled_is_swept_as_anything_else(tmp_path: Path) -> None:
    """Data with a function, an algorithm with one, a model with a file."""
    (tmp_path / "mine.py").write_text(MODULE)
    calls = tmp_path / "calls"
    line = f"dsgd-run -m {DATA} 'data.arguments={{calls: {calls}}}' {LINE} {OWN}"
    ended = shell(line, tmp_path, PYTHONPATH=str(tmp_path))
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    records = sorted((tmp_path / "swept").glob("*/summary.json"))
    assert [summary(path.parent)["status"] for path in records] == ["completed"] * 3
    assert calls.read_text() == "."  # once, however many jobs there are


BROKEN = """
from dataclasses import dataclass
from dsgd.models import MLP

@dataclass(frozen=True)
class Failing(MLP):
    def build(self, input_shape, classes):
        raise {error}("it broke")
"""


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [("RuntimeError", 1, "RuntimeError: it broke"), ("ValueError", 2, "it broke")],
)
def test_an_error_of_a_users_own_code_has_its_traceback(tmp_path: Path, error: str, status: int, line: str) -> None:
    """But for a ValueError in the midst of building a model, which is what models say of wrong options."""
    (tmp_path / "own.py").write_text(BROKEN.format(error=error))
    result = shell(
        "dsgd-run model=mlp model._target_=own.Failing nodes=2 budget.steps=5 cluster.gradient_s=1 hydra.run.dir=run",
        tmp_path,
        PYTHONPATH=str(tmp_path),
    )
    assert result.returncode == status
    assert result.stderr.splitlines()[-1] == line
    assert ("Traceback" in result.stderr) is (status == 1)


THREADED = """
import os, threading
from dataclasses import dataclass
from dsgd.data.quadratic import Quadratic

@dataclass(frozen=True)
class Threaded(Quadratic):
    def load(self, *arguments):
        with open("loaded.txt", "a") as file:
            print(os.getpid(), threading.active_count(), file=file)
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        return super().load(*arguments)
"""


def test_a_job_of_a_sweep_inherits_nothing_of_the_one_before(tmp_path: Path) -> None:
    """Threads, say, which a fork would not survive: a job in real processes comes after one in the simulator."""
    (tmp_path / "own.py").write_text(THREADED)
    line = (
        "dsgd-run -m engine=sim,dist experiment=quadratic data._target_=own.Threaded nodes=2 budget.steps=3 algo=sync"
    )
    swept = shell(f"{line} hydra.sweep.dir=swept", tmp_path, PYTHONPATH=str(tmp_path))
    assert swept.returncode == 0, swept.stderr
    assert swept.stdout.count("completed") == 2
    (first, one), (second, other) = (line.split() for line in (tmp_path / "loaded.txt").read_text().splitlines())
    assert first != second
    assert one == other == "1"
