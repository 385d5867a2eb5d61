"""Which way of distributing SGD reaches a given accuracy soonest, and is what the papers say true there?

From Python: `dsgd.run`, `dsgd.load_runs`, `dsgd.load_marks` (docs/python.md).
Importing dsgd alone imports none of it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsgd.python import load_marks, load_runs, run

__all__ = ["load_marks", "load_runs", "run"]

_PLACES = {"run": "dsgd.run", "load_runs": "dsgd.python", "load_marks": "dsgd.python"}  # of what is found below


def __getattr__(name: str) -> Any:
    """Import what is asked for. `dsgd.run` is the package of that name, which can be called."""
    if name not in _PLACES:
        raise AttributeError(f"module 'dsgd' has no attribute {name!r}")
    module = import_module(_PLACES[name])
    return module if _PLACES[name] == f"dsgd.{name}" else getattr(module, name)
