"""A model or data set that raises SystemExit or KeyboardInterrupt: one line before any work, a failed run after it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import shell, summary

CODE = """
import sys
import torch
from torch import nn

class Samples:
    def __init__(self, error=None, first=0):
        self.error, self.left = error, first
    def __len__(self):
        return 64
    def __getitem__(self, index):
        self.left -= 1
        if self.error is not None and self.left < 0:
            raise self.error
        return torch.ones(4) * index / 64, index % 2

def leaves(): sys.exit(0)
def interrupts(): raise KeyboardInterrupt
def unreadable(): return Samples(SystemExit(0)), Samples()
def later(): return Samples(SystemExit(0), 100), Samples()
def plain(): return Samples(), Samples()

class Net(nn.Module):
    def __init__(self, error=None, where=""):
        super().__init__()
        self.layer, self.error, self.where = nn.Linear(4, 2), error, where
        if where == "built":
            sys.exit(0)
    def forward(self, x):
        if self.where == "always" or (self.where == "trained" and self.training):
            raise KeyboardInterrupt if self.error else SystemExit(0)
        return self.layer(x)
"""
DATA = "dsgd-run data=import data.classes=2 data.decode=each_read data.target=ending.{} nodes=2 batch_size=4"
MODEL = f"{DATA.format('plain')} model=import model.target=ending.Net 'model.arguments={{{{where: {{}}}}}}'"
RUN = "cluster.gradient_s=0.01 budget.steps=400 hydra.run.dir=run"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "ending.py").write_text(CODE, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("line", "refusal"),
    [
        (DATA.format("leaves"), "data.target=ending.leaves fails: SystemExit: 0"),
        (DATA.format("interrupts"), "model and data must not end the process, got KeyboardInterrupt:"),
        (DATA.format("unreadable"), "SystemExit: 0"),
        (MODEL.format("always"), "model.target=ending.Net cannot take the inputs of the data, 4: SystemExit: 0"),
    ],
)
def test_before_any_work_it_is_one_line(folder: Path, line: str, refusal: str) -> None:
    result = shell(f"{line} {RUN}", folder, PYTHONPATH=str(folder))
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert refusal in result.stderr
    assert not (folder / "run").exists()


@pytest.mark.parametrize(
    ("engine", "line", "error"),
    [("sim", DATA.format("later"), "SystemExit: 0"), ("dist", MODEL.format("trained"), "0")],
)
def test_in_the_midst_of_work_the_run_has_failed(folder: Path, engine: str, line: str, error: str) -> None:
    gradients = "engine.gradients=loop" if engine == "sim" else ""
    result = shell(f"{line} {RUN} engine={engine} {gradients}", folder, PYTHONPATH=str(folder))
    assert result.returncode == 1, result.stderr
    assert summary(folder / "run")["status"] == "failed"
    assert error in summary(folder / "run")["error"]


def test_an_interrupt_that_no_signal_has_raised_is_a_failure(folder: Path) -> None:
    line = MODEL.format("trained, error: true")
    result = shell(f"{line} {RUN} engine.gradients=loop engine=sim", folder, PYTHONPATH=str(folder))
    assert result.returncode == 1, result.stderr
    assert "KeyboardInterrupt" in summary(folder / "run")["error"]
