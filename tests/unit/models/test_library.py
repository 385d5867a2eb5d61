"""Models that others have written: torchvision's, and a user's own."""

from __future__ import annotations

import sys

import pytest
from torch import nn

from dsgd.models.library import ImportedModel, Torchvision
from tests.support.each_row import each_row
from tests.support.simulate import experiment
from tests.unit.models.test_models import build, count

IMAGENET = (3, 224, 224)


@each_row(
    ("name", "parameters"),
    [
        ("resnet18", 11_689_512),
        ("resnet34", 21_797_672),
        ("resnet50", 25_557_032),
        ("googlenet", 6_624_904),
        ("torchvision", 3_504_872),
    ],
)
def test_the_papers_models_have_their_number_of_parameters(name: str, parameters: int) -> None:
    """ResNets as torchvision documents them; GoogLeNet's 13.0 M without 6.4 M of auxiliary classifiers."""
    named = ["model.name=mobilenet_v2"] if name == "torchvision" else []  # any classifier by its name
    config = experiment(f"model={name}", *named, "data=shapes", "data.channels=3", "engine.gradients=none").model
    assert count(config.build(IMAGENET, 1000)) == parameters


def test_zero_init_makes_every_block_the_identity() -> None:
    module = build(Torchvision("resnet18", zero_init_last_norm=True), IMAGENET, 10)
    assert isinstance(module, nn.Module)
    lasts = [name for name, _ in module.named_modules() if name.endswith("bn2")]
    assert len(lasts) == 8
    for name in lasts:
        assert not module.get_parameter(f"{name}.weight").any()
    plain = build(Torchvision("resnet18"), IMAGENET, 10)
    assert all(plain.get_parameter(f"{name}.weight").all() for name in lasts)


def test_imported_arguments_default_to_none_at_all() -> None:
    with pytest.raises(ValueError, match="must give 10 outputs"):
        ImportedModel("torch.nn.Flatten").build((1, 8, 8), 10)


def test_a_model_of_torchvision_without_it_is_refused_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(ValueError, match=r"^model=resnet18 needs torchvision, got none: pip install torchvision$"):
        Torchvision("resnet18").check((3, 32, 32), 10)
