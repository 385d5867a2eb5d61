"""A run goes on with the data and the model that it began with, or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.support.command import call, marks

HERE = f"{__name__}."
RUN = ("nodes=2", "batch_size=4", "eval.every_epochs=null", "budget.epochs=null", "hydra.run.dir=run")
DATA = ("data=import", f"data.target={HERE}stored", "data.classes=2", "model.hidden=[]")


def stored() -> tuple[list[tuple[np.ndarray, int]], list[tuple[np.ndarray, int]]]:
    """40 samples for training and 10 for test, as the folder has them now."""
    labels = [int(letter) for letter in Path("labels").read_text()]
    samples = [(np.full(3, index, np.float32), label) for index, label in enumerate(labels)]
    return samples[:40], samples[40:]


class Renamed(nn.Module):
    """A linear model whose weights are called as the folder says."""

    def __init__(self) -> None:
        super().__init__()
        self.add_module(Path("layer").read_text(), nn.Linear(64, 10))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        (layer,) = self.children()
        return layer(inputs.flatten(1))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("kind", "engine"), [("data", ("engine=dist",)), ("model", ("engine=sim", "cluster.gradient_s=0.01"))]
)
def test_other_data_or_another_model_after_a_resume_are_one_line(kind: str, engine: tuple[str, ...]) -> None:
    Path("labels").write_text("01" * 25)
    Path("layer").write_text("first")
    options = DATA if kind == "data" else ("model=import", f"model.target={HERE}Renamed")
    line = (*RUN, *engine, *options, "engine.keep_checkpoint=true")
    first = call(*line, "budget.steps=8")
    assert first.status == 0, first.err
    before = marks(Path("run"))

    Path("labels").write_text("01" * 24 + "11")
    Path("layer").write_text("second")
    other = call("resume=run", "budget.steps=12", "resume_trusted=true")
    rule = "resume must find the data and the model that the run began with, got "
    differs = {"data": "other data: test labels differ", "model": "another model: parameters differ"}
    assert other.status == 2, other.err
    assert other.err.splitlines()[-1] == rule + differs[kind]
    assert marks(Path("run")) == before

    Path("labels").write_text("01" * 25)
    Path("layer").write_text("first")
    again = call("resume=run", "budget.steps=12", "resume_trusted=true")
    assert again.status == 0, again.err
