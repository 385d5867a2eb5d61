"""One file per paper: the runs that test it, how its claims are judged, and its figures.

Each file has a `PAPER`. Its setting is in papers.yaml; what is claimed, and with which measurement it passes, is in
claims.yaml. To add a paper is to add a file, and its entries in both. Claims about learning are judged by pipelines, by
the protocol of docs/explanation/papers.md."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from pathlib import Path

import yaml

from studies.reproduction.criterion import read_statements
from studies.reproduction.paper import Assumption, Chart, Claim, Paper, Study

CLAIMS = read_statements(Path(__file__).with_name("claims.yaml"))  # by their ids
SETTINGS = yaml.safe_load(Path(__file__).with_name("papers.yaml").read_text(encoding="utf-8"))  # by the papers' keys


def papers() -> list[Paper]:
    """Return all papers, in the order of their pages."""
    modules = [import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    order = [*SETTINGS]
    return sorted((module.PAPER for module in modules), key=lambda paper: order.index(paper.key))


def described(
    key: str, claims: tuple[Claim, ...], studies: tuple[Study, ...] = (), charts: tuple[Chart, ...] = ()
) -> Paper:
    """Return a paper with its entry in papers.yaml. Raises KeyError without one, ValueError for one that is wrong."""
    setting = SETTINGS[key]
    assumptions = tuple(Assumption(*each) for each in setting.get("assumptions", ()))
    head = (setting["title"], setting["reference"], setting["summary"])
    return Paper(key, *head, assumptions, studies, claims, charts)
