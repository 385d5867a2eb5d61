"""Sweeps over a user's own data, model and algorithm: what is handed from process to process is the configuration."""

from __future__ import annotations

from pathlib import Path

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
    # by the process that checks the command line and the one that starts the jobs, however many there are
    assert calls.read_text() == ".."
