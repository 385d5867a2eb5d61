"""One file per paper: its setting, the runs that test it, how its claims are judged, and its figures.

Each file has a `PAPER`. What is claimed, and with which measurement it passes, is in claims.yaml. To add a paper is to
add a file and its claims. Claims about learning are judged by pipelines, by the protocol of
docs/explanation/papers.md."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from pathlib import Path

from studies.reproduction.criterion import read_statements
from studies.reproduction.paper import Paper

CLAIMS = read_statements(Path(__file__).with_name("claims.yaml"))  # by their ids


def papers() -> list[Paper]:
    """Return all papers, in the order of their pages."""
    modules = [import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    return sorted((module.PAPER for module in modules), key=lambda paper: paper.order)
