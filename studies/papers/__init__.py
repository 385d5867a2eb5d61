"""One file per paper: how its claims are judged, and its figures.

Each file has a `PAPER`. The paper's setting is in papers.yaml, and its runs are in runs.yaml. What is claimed, and with
which measurement it passes, is in claims.yaml. To add a paper is to add a file, and its entries in these. Claims about
learning are judged by pipelines, by the protocol of docs/explanation/papers.md."""

from __future__ import annotations

import pkgutil
import shlex
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import MappingProxyType

import yaml
from matplotlib.figure import Figure

from studies.evidence.contrast import Need
from studies.reproduction.criterion import read_statements
from studies.reproduction.grouped_rows import flat_rows
from studies.reproduction.paper import Assumption, Chart, Claim, Paper, Study

CLAIMS = read_statements(Path(__file__).with_name("claims.yaml"))  # by their ids
SETTINGS, RUNS = (  # by the papers' keys
    yaml.safe_load(Path(__file__).with_name(name).read_text(encoding="utf-8")) for name in ("papers.yaml", "runs.yaml")
)


def papers() -> list[Paper]:
    """Return all papers, in the order of their pages."""
    modules = [import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    order = [*SETTINGS]
    return sorted((module.PAPER for module in modules), key=lambda paper: order.index(paper.key))


def read_studies(key: str) -> dict[str, Study]:
    """Return the studies of a paper, by their names."""
    rows = flat_rows(RUNS[key]) if key in RUNS else ()
    return {row["name"]: Study(row["name"], tuple(shlex.split(row["command"])), row.get("by")) for row in rows}


def described(
    key: str,
    *claims: Claim,
    charts: Mapping[str, Callable[..., Figure | None]] = MappingProxyType({}),
    shown: Mapping[str, Sequence[Need]] = MappingProxyType({}),
) -> Paper:
    """Return a paper with its entries in papers.yaml and runs.yaml.

    charts: function that draws each. shown: pipelines of charts that show more than the claims. Raises KeyError without
    an entry, ValueError for one that is wrong."""
    setting = SETTINGS[key]
    drawn = []
    for name, draw in charts.items():
        entry = setting["charts"][name]
        drawn.append(Chart(name, entry["caption"], tuple(entry.get("studies", ())), draw, tuple(shown.get(name, ()))))
    assumptions = tuple(Assumption(*each) for each in setting.get("assumptions", ()))
    head = (setting["title"], setting["reference"], setting["summary"])
    return Paper(key, *head, assumptions, tuple(read_studies(key).values()), claims, tuple(drawn))
