"""Build classifiers from outside of dsgd: torchvision's by name, the user's own by import path."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from dsgd.models import RAISED, TokenShape, call_by_path, declare_missing_operators, first_line, labelled

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Torchvision:
    """A classifier of torchvision, with its own initialisation and as many outputs as the data has classes."""

    name: str  # a name of torchvision.models.list_models()
    zero_init_last_norm: bool = False  # of every residual block: it begins as the identity (Goyal et al. 2017, 5.1)

    def check(self, input_shape: tuple[int, ...], classes: int | None) -> None:
        labelled(self.name, classes, input_shape)
        if len(input_shape) != 3 or input_shape[0] != 3:
            shape = " x ".join(map(str, input_shape))
            raise ValueError(f"model={self.name} needs images of 3 channels, got inputs of {shape}")
        if find_spec("torchvision") is None:
            raise ValueError(f"model={self.name} needs torchvision, got none: pip install torchvision")
        if self.zero_init_last_norm and "resne" not in self.name:
            raise ValueError(f"model.zero_init_last_norm must be false without residual blocks, got model={self.name}")

    def build(self, input_shape: tuple[int, ...], classes: int | None) -> nn.Module:
        self.check(input_shape, classes)
        declare_missing_operators()
        from torchvision import models

        if self.name not in models.list_models(module=models):
            raise ValueError(f"model.name must be a classifier of torchvision.models, got {self.name!r}")
        options: dict[str, Any] = {"num_classes": labelled(self.name, classes)}
        taken = inspect.signature(models.get_model_builder(self.name)).parameters
        if self.zero_init_last_norm:
            options["zero_init_residual"] = True
        if self.name in ("googlenet", "inception_v3"):
            # without their second and third outputs, which are losses that no other model has
            options |= {"aux_logits": False, "init_weights": True}
        assert "weights" in taken  # nothing is downloaded by default
        return fitting(models.get_model(self.name, **options), f"model={self.name}", input_shape, classes)


@dataclass(frozen=True)
class ImportedModel:
    """A module that a function of the user's makes, by its import path."""

    target: str  # package.module.function, or a class
    arguments: dict[str, Any] = field(default_factory=dict)
    label: str | None = None  # its name in tables and figures

    def check(self, input_shape: tuple[int, ...], classes: int | None) -> None:
        labelled(self.target, classes)

    def build(self, input_shape: tuple[int, ...], classes: int | None) -> nn.Module:
        from torch import nn

        module = call_by_path(self.target, self.arguments, "model.target")
        if not isinstance(module, nn.Module):
            raise ValueError(f"model.target must give a torch.nn.Module, got {type(module).__name__} of {self.target}")
        return fitting(module, f"model.target={self.target}", input_shape, classes)


def fitting(module: nn.Module, name: str, input_shape: tuple[int, ...], classes: int | None) -> nn.Module:
    """Return the module after a trial on two samples. Raises ValueError unless it gives `classes` numbers for each, or
    for each of its tokens."""
    import torch

    training = module.training
    tokens = isinstance(input_shape, TokenShape)
    with torch.no_grad():
        try:
            outputs = module.eval()(torch.zeros(2, *input_shape, dtype=torch.int64 if tokens else None))
        except RAISED as error:  # a module may raise anything
            shape = " x ".join(map(str, input_shape))
            raise ValueError(f"{name} cannot take the inputs of the data, {shape}: {first_line(error)}") from error
    given = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
    if tokens and given != (2, classes, *input_shape):
        rule = f"{name} must give {classes} outputs for each token, [samples, classes, tokens]"
        raise ValueError(f"{rule}, got {given} for {(2, *input_shape)}")
    if not tokens and given != (2, classes):
        raise ValueError(f"{name} must give {classes} outputs for each sample, one a class, got {given} for 2 samples")
    return module.train(training)
