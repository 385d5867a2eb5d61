"""Makes `import torchvision` work beside a torch that its compiled operators do not fit, such as a CPU build."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import torch

# what torchvision.ops registers functions for as soon as it is imported
OPERATORS = ("nms", "qnms")
SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_libraries: list[torch.library.Library] = []  # what a library defines is gone with it


@cache
def ready_torchvision() -> None:
    """Call before each `import torchvision`: declares the operators that it needs if the compiled ones cannot load.

    Models, data sets and transforms work then; the operators themselves (non-maximum suppression) and torchvision's
    own JPEG decoder do not. Raises ModuleNotFoundError if torchvision is not installed."""
    found = find_spec("torchvision")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("torchvision is not installed; pip install torchvision", name="torchvision")
    try:
        for compiled in Path(found.origin).parent.glob("_C.*"):
            torch.ops.load_library(compiled)
    except OSError:  # a library of CUDA, or a symbol of another torch, is missing
        pass
    if not hasattr(torch.ops.torchvision, "nms"):
        library = torch.library.Library("torchvision", "DEF")
        for name in OPERATORS:
            library.define(name + SIGNATURE)
        _libraries.append(library)
