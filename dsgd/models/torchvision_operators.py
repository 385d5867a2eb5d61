"""Declare the operators without which `import torchvision` fails.

Its compiled operators do not load beside a torch that they were not built for, such as a CPU build."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import torch

# torchvision.ops registers functions for these as soon as it is imported
OPERATORS = ("nms", "qnms")
SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_libraries: list[torch.library.Library] = []  # an operator is gone with the library that declared it


@cache
def declare_missing_operators() -> None:
    """Declare what `import torchvision` needs if its compiled operators cannot be loaded. Call before each import.

    Models, data sets and transforms work then; the operators themselves (non-maximum suppression) and torchvision's
    own JPEG decoder do not. Raises ModuleNotFoundError if torchvision is not installed."""
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
