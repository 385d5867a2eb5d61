"""One file per table of times that others measured: its rows, and the runs that predict them.

Each file has a `TABLE`. To add a table is to add a file."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from studies.reproduction.measured_table import MeasuredTable


def tables() -> list[MeasuredTable]:
    """Return all tables, in the order of the page."""
    modules = [import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    return sorted((module.TABLE for module in modules), key=lambda table: table.order)
