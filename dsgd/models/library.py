"""Classifiers that others have written: torchvision's by name, your own by import path."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dsgd.models import labelled

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Torchvision:
    """A classifier of torchvision, with its own initialisation and as many outputs as the data has classes."""

    name: str  # as torchvision.models.list_models() gives it
    zero_init_last_norm: bool = False  # of every residual block: it begins as the identity (Goyal et al. 2017, 5.1)

    def check(self, input_shape: tuple[int, ...], classes: int | None) -> None:
        labelled(self.name, classes)
        if len(input_shape) != 3 or input_shape[0] != 3:
            shape = " x ".join(map(str, input_shape))
            raise ValueError(f"model={self.name} needs images of 3 channels, got inputs of {shape}")
        if self.zero_init_last_norm and "resne" not in self.name:
            raise ValueError(f"model.zero_init_last_norm must be false without residual blocks, got model={self.name}")

    def build(self, input_shape: tuple[int, ...], classes: int | None) -> nn.Module:
        from dsgd.models.vision import ready_torchvision

        self.check(input_shape, classes)
        ready_torchvision()
        from torchvision import models

        if self.name not in models.list_models(module=models):
            raise ValueError(f"model.name must be a classifier of torchvision.models, got {self.name!r}")
        options: dict[str, Any] = {"num_classes": labelled(self.name, classes)}
        taken = inspect.signature(models.get_model_builder(self.name)).parameters
        if self.zero_init_last_norm:
            options["zero_init_residual"] = True
        if self.name in ("googlenet", "inception_v3"):
            # their second and third outputs are losses of their own, which no other model has: without them
            options |= {"aux_logits": False, "init_weights": True}
        assert "weights" in taken  # nothing is downloaded unless it is asked for
        return fitting(models.get_model(self.name, **options), f"model={self.name}", input_shape, classes)


@dataclass(frozen=True)
class Imported:
    """A module that a function of yours makes: its target is imported and called with the arguments."""

    target: str  # package.module.function, or a class
    arguments: dict[str, Any] = field(default_factory=dict)

    def check(self, input_shape: tuple[int, ...], classes: int | None) -> None:
        labelled(self.target, classes)

    def build(self, input_shape: tuple[int, ...], classes: int | None) -> nn.Module:
        from torch import nn

        function = imported(self.target, "model.target")
        try:
            module = function(**self.arguments)
        except Exception as error:  # whatever it may raise
            raise ValueError(f"model.target={self.target} fails: {told(error)}") from error
        if not isinstance(module, nn.Module):
            raise ValueError(f"model.target must give a torch.nn.Module, got {type(module).__name__} of {self.target}")
        return fitting(module, f"model.target={self.target}", input_shape, classes)


def imported(path: str, key: str) -> Callable[..., Any]:
    """What is found at an import path. key: names it in the ValueError."""
    place, _, name = path.rpartition(".")
    if not place:
        raise ValueError(f"{key} must be a path like package.module.function, got {path!r}")
    try:
        found = getattr(importlib.import_module(place), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{key} must be importable, got {path!r}: {error}") from error
    except Exception as error:  # a module may raise anything
        raise ValueError(f"{key} must be importable, got {path!r}: {told(error)}") from error
    if not callable(found):
        raise ValueError(f"{key} must be something to call, got {path!r}: {type(found).__name__}")
    return found


def told(error: Exception) -> str:
    """An exception of somebody else's code, in one line."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def fitting(module: nn.Module, name: str, input_shape: tuple[int, ...], classes: int | None) -> nn.Module:
    """The module, after a look at what it makes of two samples. Raises ValueError if that is not `classes` numbers
    for each."""
    import torch

    training = module.training
    with torch.no_grad():
        try:
            outputs = module.eval()(torch.zeros(2, *input_shape))
        except Exception as error:  # whatever it may raise
            shape = " x ".join(map(str, input_shape))
            raise ValueError(f"{name} cannot take the inputs of the data, {shape}: {told(error)}") from error
    given = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
    if given != (2, classes):
        raise ValueError(f"{name} must give {classes} outputs for each sample, one a class, got {given} for 2 samples")
    return module.train(training)
