"""The papers' recipes at full size: what they resolve to and their rates at every epoch."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from dsgd.data.imagenet import Generated
from tests.support.each_row import each_row
from tests.support.simulate import experiment
from tests.unit.data.test_data import write_cifar

# recipe: parameters (with 2 and 10 classes); rates as published, or where that is unconfirmed as in the recipe's file
JIN = [0.1] * 30 + [0.01] * 30 + [0.001] * 20 + [0.0001] * 11
LIAN = [0.1] * 81 + [0.01] * 41 + [0.001] * 39
# from 0.01 to the number of machines times as much, in 50,000 iterations of 4 x 32 images, 5 epochs
TALYANSKY = [0.01, 0.016, 0.022, 0.028, 0.034] + [0.04] * 25 + [0.004] * 30 + [0.0004] * 31
# 0.1 for a batch of 256, 32 times that for 8192
GOYAL = [0.1, 0.72, 1.34, 1.96, 2.58] + [3.2] * 25 + [0.32] * 30 + [0.032] * 20 + [0.0032] * 11
ZHANG = [0.1] * 161
RECIPES = {
    "goyal2017_resnet50_imagenet": (23_512_130, GOYAL),
    "jin2016_resnet18_imagenet": (11_177_538, JIN),
    "lian2017_resnet20_cifar10": (269_722, LIAN),
    "lian2017_resnet56_cifar10": (853_018, LIAN),
    "talyansky2018_googlenet_imagenet": (5_601_954, TALYANSKY),
    "zhang2015_cifar10": (269_722, ZHANG),
}
# as large a multiple of the reference batch with few images
FEWER = {"goyal2017_resnet50_imagenet": ["nodes=32", "schedule.reference_batch=1"]}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return write_data(tmp_path_factory.mktemp("data"))


def write_data(folder: Path) -> dict[str, str]:
    """Write few images. Returns by the ending of a recipe's name where its data are."""
    Generated(classes=2, samples_per_class=16, test_per_class=1, seed=0, side=48).make(folder / "images")
    write_cifar(folder, 10)
    return {"imagenet": f"data.path={folder / 'images'}", "cifar10": f"data.root={folder}"}


@each_row("name", RECIPES)
def test_the_rate_is_the_published_one_at_every_epoch_boundary(name: str, data: dict[str, str]) -> None:
    """Before the first epoch, after each, and just before a boundary, where it is still the one before."""
    of = experiment(f"experiment={name}", data[name.rpartition("_")[2]], "batch_size=1", *FEWER.get(name, []))
    rates = RECIPES[name][1]
    assert of.budget.epochs == len(rates) - 1
    for epoch, rate in enumerate(rates):
        assert of.learning_rate(epoch * of.epoch_samples) == pytest.approx(rate, rel=1e-12)
    for epoch, (rate, following) in enumerate(pairwise(rates), start=1):
        if following <= rate:
            assert of.learning_rate(epoch * of.epoch_samples - 1) == pytest.approx(rate, rel=1e-12)
