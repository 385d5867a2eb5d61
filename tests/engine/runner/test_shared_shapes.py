"""The jobs of a sweep inherit one drawing of their images."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from dsgd.cli.run import main
from dsgd.data import Shapes

RUN = ("-m", "algo=sync", "nodes=2", "data=shapes", "data.train_size=64", "data.test_size=16", "budget.steps=2")


@pytest.mark.parametrize(("noise", "drawing"), [("0.0311", 1), ("0.0312,0.0313", 2)])
def test_the_jobs_of_a_sweep_inherit_one_drawing(
    noise: str, drawing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If all have the same: once by the command itself, for training and for test; else by each job."""
    draw, noted = Shapes.draw, tmp_path / "drawn"

    def draw_and_note(self: Shapes, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        with noted.open("a") as file:
            file.write(f"{os.getpid()} {count}\n")
        return draw(self, count, rng)

    monkeypatch.setattr(Shapes, "draw", draw_and_note)
    keys = [f"data.noise={noise}", "seed=0,1", "cluster.gradient_s=0.01", f"hydra.sweep.dir={tmp_path / 'sweep'}"]
    assert main([*RUN, *keys]) == 0
    drawn = [line.split() for line in noted.read_text().splitlines()]
    own = [count for process, count in drawn if process == str(os.getpid())]
    assert own == (["64", "16"] if drawing == 1 else [])
    assert len(drawn) == (2 if drawing == 1 else 8)
