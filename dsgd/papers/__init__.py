"""One file per paper: its setting, the runs that test it, its claims with their thresholds, and its figures.

Each file has a `PAPER`. To add a paper is to add a file."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from dsgd.reproduction.paper import Paper


def papers() -> list[Paper]:
    """Return all papers, in the order of their pages."""
    modules = [import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    return sorted((module.PAPER for module in modules), key=lambda paper: paper.order)
