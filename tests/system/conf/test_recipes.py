"""The papers' recipes at full size take a step."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.support.command import call, marks, summary
from tests.unit.conf.test_recipes import RECIPES, write_data

# a centre has not moved after one step
STEPPED_BY = {"zhang2015_cifar10": ["algo=sync"]}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return by the ending of a recipe's name where its data are."""
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize("name", RECIPES)
def test_the_recipe_takes_a_step(name: str, data: dict[str, str], here: Path) -> None:
    """Of the published model, on images of the published size. Evaluation is on a few images."""
    ending = name.rpartition("_")[2]
    few = ["data.workers=1"] if ending == "imagenet" else []
    line = ["nodes=2", "batch_size=2", "budget.steps=1", "eval.train_samples=2", "engine=sim", "engine.gradients=loop"]
    result = call(f"experiment={name}", data[ending], *few, *STEPPED_BY.get(name, []), *line, "hydra.run.dir=run")
    assert result.status == 0, result.err
    found = summary(here / "run")
    assert found["dimension"] == RECIPES[name][0]
    assert found["samples"] == 4
    assert math.isfinite(found["train_loss"])
    assert found["train_loss"] != marks(here / "run")[0]["train_loss"]
