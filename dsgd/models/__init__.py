"""Define models: one frozen dataclass for the options of each family, buildable for any data set that it can serve.

Importing this module does not import torch, so that a configuration is checked quickly; `build` does. A model
initialises itself from torch's default generator: whoever calls `build` seeds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from dsgd.checks import check_options

if TYPE_CHECKING:
    from torch import nn

MOST_WIDTH, MOST_CHANNELS, MOST_DEPTH = 2**16, 2**12, 2048  # a layer of more would take tens of gigabytes

__all__ = ["GPT", "MLP", "ModelConfig", "ResNet", "Vector"]


class TokenShape(tuple[int, ...]):
    """The shape [context] of one input of tokens: int64 numbers in [0, classes), whose targets, the tokens that follow,
    have the same shape. Logits are then [b, classes, context], as torch's cross entropy takes them."""

    __slots__ = ()


class ModelConfig(Protocol):
    """The options of a model, before it is built."""

    def check(self, input_shape: tuple[int, ...], classes: int | None) -> None:
        """Raise ValueError if the model cannot serve samples of `input_shape` (no batch axis) with `classes` labels.

        classes: None for data without labels (data=quadratic). A `TokenShape` is that of text."""
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
    norm: str = "batch"  # "group" makes a sample's gradient independent of the rest of its batch

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
