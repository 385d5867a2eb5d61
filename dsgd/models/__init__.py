"""Define models: one frozen dataclass for the options of each family, buildable for any data set that it can serve.

Importing this module does not import torch, so that a configuration is checked quickly; `build` does. A model
initialises itself from torch's default generator, which the caller of `build` seeds.

A user's model or data set is a function, called by its import path (`imported`). Its errors become one line. It may
import torchvision, whose compiled operators do not load with a different build of torch, such as a CPU build. The
operators that `import torchvision` needs are declared before.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from dsgd.keys import check_options

if TYPE_CHECKING:
    from torch import nn

MOST_WIDTH, MOST_CHANNELS, MOST_DEPTH = 2**16, 2**12, 2048  # a layer of more would take tens of gigabytes

__all__ = ["GPT", "MLP", "ModelConfig", "ResNet", "Vector"]
RAISED = (Exception, SystemExit)  # by code of others; a SystemExit would end this process without a word
# torchvision.ops registers functions for these as soon as it is imported
OPERATORS = ("nms", "qnms")
SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_libraries: list[object] = []  # an operator is gone with the library that declared it


class TokenShape(tuple[int, ...]):
    """The shape [context] of one input of tokens: int64 numbers in [0, classes), whose targets, the tokens that follow,
    have the same shape. Logits are then [b, classes, context], as torch's cross entropy takes them."""

    __slots__ = ()


class ModelConfig(Protocol):
    """The options of a model, before it is built."""

    def check(self, input_shape: tuple[int, ...], classes: int | None) -> None:
        """Raise ValueError if the model cannot serve samples of `input_shape` (no batch axis) with `classes` labels.

        classes: None for data without labels (data=quadratic). A `TokenShape` is the shape of text."""
        ...

    def build(self, input_shape: tuple[int, ...], classes: int | None) -> nn.Module:
        """Build and initialise a float32 module: [b, *input_shape] -> [b, classes], or of tokens [b, context] ->
        [b, classes, context]. Raises ValueError as `check`."""
        ...


@dataclass(frozen=True)
class MLP:
    """Fully connected network on the flattened input, ReLU between layers."""

    hidden: list[int]  # width of each hidden layer; empty: a linear model

    def __post_init__(self) -> None:
        if any(not 1 <= width <= MOST_WIDTH for width in self.hidden) or len(self.hidden) > MOST_DEPTH:
            rule = f"hidden must be a list of at most {MOST_DEPTH} widths in [1, {MOST_WIDTH}]"
            raise ValueError(f"{rule}, got {str(list(self.hidden))[:100]}")

    def check(self, input_shape: tuple[int, ...], classes: int | None) -> None:
        labelled("mlp", classes, input_shape)

    def build(self, input_shape: tuple[int, ...], classes: int | None) -> nn.Module:
        from dsgd.models.networks import multilayer_perceptron

        self.check(input_shape, classes)
        return multilayer_perceptron(self.hidden, input_shape, labelled("mlp", classes))


@dataclass(frozen=True)
class ResNet:
    """The CIFAR form of He et al. 2015 (arXiv 1512.03385, section 4.2), shortcuts without parameters."""

    depth: int  # 6n + 2: three stages of n blocks of two convolutions each
    width: int = 16  # channels of the first stage; the next two have twice and four times as many
    norm: str = "batch"  # "group" makes a sample's gradient independent of other samples of its batch

    def __post_init__(self) -> None:
        if self.depth < 8 or self.depth % 6 != 2:
            raise ValueError(f"depth must be 6n + 2 with n >= 1 (8, 14, 20, ...), got {self.depth}")
        if self.depth > MOST_DEPTH:
            raise ValueError(f"depth must be <= {MOST_DEPTH}, got {self.depth}")
        check_options(self, width=f"in [1, {MOST_CHANNELS}]")
        if self.norm not in ("batch", "group"):
            raise ValueError(f"norm must be batch or group, got {self.norm!r}")

    def check(self, input_shape: tuple[int, ...], classes: int | None) -> None:
        labelled(f"resnet{self.depth}", classes, input_shape)
        if len(input_shape) != 3 or min(input_shape[1:]) < 8:
            shape = " x ".join(map(str, input_shape))
            raise ValueError(f"model=resnet{self.depth} needs images of at least 8 x 8 pixels, got inputs of {shape}")

    def build(self, input_shape: tuple[int, ...], classes: int | None) -> nn.Module:
        from dsgd.models.networks import CifarResNet

        self.check(input_shape, classes)
        labels = labelled(f"resnet{self.depth}", classes)
        return CifarResNet(self.depth, self.width, self.norm, channels=input_shape[0], classes=labels)


@dataclass(frozen=True)
class GPT:
    """Small decoder-only transformer for tokens, with as many positions as the data's windows have."""

    width: int = 64  # numbers for each token between the layers
    depth: int = 2  # blocks, each of attention and a multilayer perceptron
    heads: int = 4  # of attention, each of width / heads numbers

    def __post_init__(self) -> None:
        check_options(self, width=f"in [1, {MOST_WIDTH}]", depth=f"in [1, {MOST_DEPTH}]")
        if self.heads < 1 or self.width % self.heads:
            raise ValueError(f"heads must divide width ({self.width}), got {self.heads}")

    def check(self, input_shape: tuple[int, ...], classes: int | None) -> None:
        if not isinstance(input_shape, TokenShape):
            raise ValueError("model=gpt needs data=text")

    def build(self, input_shape: tuple[int, ...], classes: int | None) -> nn.Module:
        from dsgd.models.networks import Transformer

        self.check(input_shape, classes)
        return Transformer(labelled("gpt", classes), input_shape[0], self.width, self.depth, self.heads)


@dataclass(frozen=True)
class Vector:
    """The parameter vector itself, [dim], from 0: the model for data=quadratic."""

    def check(self, input_shape: tuple[int, ...], classes: int | None) -> None:
        if classes is not None or len(input_shape) != 1:
            raise ValueError("model=vector needs data=quadratic")

    def build(self, input_shape: tuple[int, ...], classes: int | None) -> nn.Module:
        from dsgd.models.networks import FreeVector

        self.check(input_shape, classes)
        return FreeVector(input_shape[0])


def labelled(model: str, classes: int | None, input_shape: tuple[int, ...] = ()) -> int:
    """Return the number of classes. Raises ValueError for data without classes, which `model` cannot serve, and for
    data of tokens, if their shape is given."""
    if isinstance(input_shape, TokenShape):
        raise ValueError(f"model={model} needs data of measured numbers; data=text has tokens and needs model=gpt")
    if classes is None:
        raise ValueError(f"model={model} needs data with classes; data=quadratic has none and needs model=vector")
    return classes


class TorchvisionFinder(MetaPathFinder):
    """Find nothing, but declare the operators that torchvision needs before its first import, wherever that happens."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if fullname != "torchvision":
            return
        sys.meta_path.remove(self)
        with suppress(ModuleNotFoundError):  # Python says that there is no torchvision
            declare_missing_operators()


@cache
def declare_missing_operators() -> None:
    """Declare what `import torchvision` needs if its compiled operators cannot be loaded. Call before each import.

    Then models, data sets and transforms work, but not the operators themselves (non-maximum suppression) and
    torchvision's JPEG decoder. Raises ModuleNotFoundError if torchvision is not installed."""
    import torch

    spec = find_spec("torchvision")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("torchvision is not installed; pip install torchvision", name="torchvision")
    try:
        for compiled in Path(spec.origin).parent.glob("_C.*"):
            torch.ops.load_library(compiled)
    except OSError:  # a library of CUDA, or a symbol of another torch, is missing
        pass
    if not hasattr(torch.ops.torchvision, "nms"):
        library = torch.library.Library("torchvision", "DEF")
        for name in OPERATORS:
            library.define(name + SIGNATURE)
        _libraries.append(library)


def imported(module: str) -> ModuleType:
    """Import a module of the user's, which may import torchvision now or later. Raises any exception of the module."""
    if "torchvision" not in sys.modules and not any(isinstance(finder, TorchvisionFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, TorchvisionFinder())
    return importlib.import_module(module)


def imported_attribute(module: str, name: str, rule: str) -> Any:
    """Import a module of the user's and return one of its attributes. rule: beginning of the error's line.

    Raises ValueError, one line, if it cannot be imported."""
    try:
        return getattr(imported(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{rule}: {error}{hint(error)}") from error
    except RAISED as error:  # a module may raise anything
        raise ValueError(f"{rule}: {first_line(error)}") from error


def call_by_path(path: str, arguments: Mapping[str, Any], key: str) -> Any:
    """Import the function or class at `path`, package.module.name, and return its result for the arguments.

    Raises ValueError, one line that names the configuration's `key`, if it cannot be imported or fails."""
    module, _, name = path.rpartition(".")
    if not module:
        raise ValueError(f"{key} must be a path like package.module.function, got {path!r}")
    function = imported_attribute(module, name, f"{key} must be importable, got {path!r}")
    if not callable(function):
        raise ValueError(f"{key} must be something to call, got {path!r}: {type(function).__name__}")
    try:
        return function(**arguments)
    except RAISED as error:  # so may a function
        raise ValueError(f"{key}={path} fails: {first_line(error)}") from error


def hint(error: Exception) -> str:
    """Return a hint on importing a module of the current folder, if its import failed; else ""."""
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    existing = next((text for text in (f"{name}.py", name) if name and os.path.exists(text)), None)
    return f"; {existing} is in this folder: PYTHONPATH=. before the command makes Python look here" if existing else ""


def first_line(error: BaseException) -> str:
    """Return the type and the first line of the text of an exception."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
