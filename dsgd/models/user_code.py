"""Call functions that a user names by their import path: a model or data of their own. Their errors become one line.

Such code may import torchvision, whose compiled operators do not load beside a torch that they were not built for,
such as a CPU build. The operators without which `import torchvision` fails are declared before.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

RAISED = (Exception, SystemExit)  # by code of others; a SystemExit would end this process without a word
# torchvision.ops registers functions for these as soon as it is imported
OPERATORS = ("nms", "qnms")
SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_libraries: list[object] = []  # an operator is gone with the library that declared it


class TorchvisionFinder(MetaPathFinder):
    """Finds nothing: declares the operators that torchvision needs before it is imported for the first time, by whoever
    imports it."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if fullname != "torchvision":
            return
        sys.meta_path.remove(self)
        with suppress(ModuleNotFoundError):  # Python says that there is no torchvision
            declare_missing_operators()


@cache
def declare_missing_operators() -> None:
    """Declare what `import torchvision` needs if its compiled operators cannot be loaded. Call before each import.

    Models, data sets and transforms work then; the operators themselves (non-maximum suppression) and torchvision's
    own JPEG decoder do not. Raises ModuleNotFoundError if torchvision is not installed."""
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
    """Import a module of the user's, which may import torchvision now or later. Raises whatever it raises."""
    if "torchvision" not in sys.modules and not any(isinstance(finder, TorchvisionFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, TorchvisionFinder())
    return importlib.import_module(module)


def call_by_path(path: str, arguments: Mapping[str, Any], key: str) -> Any:
    """Import the function or class at `path`, package.module.name, and return what it gives for the arguments.

    Raises ValueError, one line that names the configuration's `key`, if it cannot be imported or fails."""
    module, _, name = path.rpartition(".")
    if not module:
        raise ValueError(f"{key} must be a path like package.module.function, got {path!r}")
    try:
        function = getattr(imported(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{key} must be importable, got {path!r}: {error}{hint(error)}") from error
    except RAISED as error:  # a module may raise anything
        raise ValueError(f"{key} must be importable, got {path!r}: {first_line(error)}") from error
    if not callable(function):
        raise ValueError(f"{key} must be something to call, got {path!r}: {type(function).__name__}")
    try:
        return function(**arguments)
    except RAISED as error:  # so may a function
        raise ValueError(f"{key}={path} fails: {first_line(error)}") from error


def hint(error: Exception) -> str:
    """Return how a module of the current folder is found, if that is what could not be imported; else nothing."""
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    existing = next((text for text in (f"{name}.py", name) if name and os.path.exists(text)), None)
    return f"; {existing} is in this folder: PYTHONPATH=. before the command makes Python look here" if existing else ""


def first_line(error: BaseException) -> str:
    """Return the type and the first line of the text of an exception."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
