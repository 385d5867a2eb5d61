"""Models that others have written: torchvision's, and a user's own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from dsgd.models.library import ImportedModel, Torchvision
from tests.support.command import call
from tests.support.simulate import experiment
from tests.unit.models.test_models import build, count

IMAGENET = (3, 224, 224)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("resnet18", 11_689_512), ("resnet34", 21_797_672), ("resnet50", 25_557_032), ("googlenet", 6_624_904)],
)
def test_the_papers_models_have_their_number_of_parameters(name: str, parameters: int) -> None:
    """ResNets as torchvision documents them; GoogLeNet's 13.0 M without 6.4 M of auxiliary classifiers."""
    config = experiment(f"model={name}", "data=shapes", "data.channels=3", "engine.gradients=none").model
    assert count(config.build(IMAGENET, 1000)) == parameters


def test_any_classifier_of_torchvision_by_name() -> None:
    config = experiment(
        "model=torchvision", "model.name=mobilenet_v2", "data=shapes", "data.channels=3", "engine.gradients=none"
    ).model
    assert count(config.build(IMAGENET, 1000)) == 3_504_872  # as torchvision documents it


def test_the_initialisation_is_torchvisions_own() -> None:
    """Kaiming with fan-out, gain of ReLU: what nn.Conv2d does by itself is smaller by sqrt(6) for the same layer."""
    module = build(Torchvision("resnet18"), IMAGENET, 10)
    weight = module.get_parameter("layer4.1.conv2.weight")
    assert float(weight.detach().std()) == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.01)


def test_zero_init_makes_every_block_the_identity() -> None:
    module = build(Torchvision("resnet18", zero_init_last_norm=True), IMAGENET, 10)
    assert isinstance(module, nn.Module)
    lasts = [name for name, _ in module.named_modules() if name.endswith("bn2")]
    assert len(lasts) == 8
    for name in lasts:
        assert not module.get_parameter(f"{name}.weight").any()
    plain = build(Torchvision("resnet18"), IMAGENET, 10)
    assert all(plain.get_parameter(f"{name}.weight").all() for name in lasts)


def test_a_model_of_your_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From outside the package; the same call twice gives the same run."""
    (tmp_path / "mynets.py").write_text(
        "from torch import nn\n\ndef make(width, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Tanh(), nn.Linear(width, classes))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    line = ["model=import", "model.target=mynets.make", "+model.arguments={width: 8, classes: 10}", "nodes=2"]
    result = call(*line, "budget.epochs=1", "hydra.run.dir=run")
    assert result.status == 0, result.err
    assert "mynets.make" in (tmp_path / "run" / "config.yaml").read_text()
    assert '"model": "make(width=8, classes=10)"' in (tmp_path / "run" / "summary.json").read_text()


NETS = """
import torch
from torch import nn
number = 3
def few(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
def word(): return "no module"
def deep(): return nn.Conv2d(3, 10, 3)
"""


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("model=torchvision data=shapes data.channels=3", "model.name must be given, got nothing"),
        (
            "model=torchvision model.name=resnet19 data=shapes data.channels=3",
            "model.name must be a classifier of torchvision.models",
        ),
        ("model=resnet18", "model=resnet18 needs images of 3 channels, got inputs of 1 x 8 x 8"),
        (
            "model=googlenet model.zero_init_last_norm=true data=shapes data.channels=3",
            "model.zero_init_last_norm must be false",
        ),
        ("model=import", "model.target must be given, got nothing"),
        ("model=import model.target=net", "model.target must be a path like package.module.function, got 'net'"),
        ("model=import model.target=nowhere.net", "model.target must be importable, got 'nowhere.net'"),
        ("model=import model.target=badnets.missing", "model.target must be importable, got 'badnets.missing'"),
        ("model=import model.target=badnets.number", "model.target must be something to call, got 'badnets.number'"),
        ("model=import model.target=badnets.word", "model.target must give a torch.nn.Module, got str"),
        ("model=import model.target=badnets.few", "model.target=badnets.few must give 10 outputs for each sample"),
        (
            "model=import model.target=badnets.deep",
            "model.target=badnets.deep cannot take the inputs of the data, 1 x 8",
        ),
    ],
)
def test_models_that_cannot_be(line: str, rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "badnets.py").write_text(NETS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    result = call(*line.split(), "nodes=2", "budget.epochs=1", "hydra.run.dir=run")
    assert result.status == 2
    assert rule in result.err
    assert len(result.err.splitlines()) <= 2  # the engine's line may come before it
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_training_lowers_the_loss_of_a_small_image_classifier() -> None:
    """Torchvision's ResNet-18 learns 20 pictures by heart."""
    torch.set_num_threads(1)
    module = build(Torchvision("resnet18"), (3, 32, 32), 4).train()
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(20, 3, 32, 32, generator=generator)
    labels = torch.randint(4, (20,), generator=generator)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]


def test_imported_arguments_default_to_none_at_all() -> None:
    with pytest.raises(ValueError, match="must give 10 outputs"):
        ImportedModel("torch.nn.Flatten").build((1, 8, 8), 10)
