"""One file per table of times that others measured: its rows, and the runs that predict them.

Each file has a `TABLE`. To add a table is to add a file, and its entry in tables.yaml."""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import yaml

from studies.reproduction.measured_table import Constant, MeasuredRow, MeasuredTable

HEADS = yaml.safe_load(Path(__file__).with_name("tables.yaml").read_text(encoding="utf-8"))  # by the tables' keys


def tables() -> list[MeasuredTable]:
    """Return all tables, in the order of the page."""
    modules = [import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    order = [*HEADS]
    return sorted((module.TABLE for module in modules), key=lambda table: order.index(table.key))


def described(key: str, rows: Sequence[MeasuredRow]) -> MeasuredTable:
    """Return a table with its entry in tables.yaml. Raises KeyError without one."""
    head = dict(HEADS[key])
    fitted = tuple(Constant(*each) for each in head.pop("fitted", ()))
    return MeasuredTable(key, rows=rows, fitted=fitted, **head)
