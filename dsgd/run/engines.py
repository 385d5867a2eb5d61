"""Import engines before processes are forked for runs: each would take more than a second to do it for itself."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterable

ENGINES = {"sim": "dsgd.run.simulated", "dist": "dsgd.run.distributed", "torch": "dsgd.run.over_groups"}
LATE = ("numpy.fft", "numpy.random", "dsgd.data.classification", "dsgd.models.networks")  # as runs come to need them


def import_engines(names: Iterable[str]) -> None:
    """Import engines, torch among what they need: hardly any of the objects that this makes are ever garbage, and to
    look for it would take a fifth of the time."""
    gc.disable()
    try:
        for module in (*(ENGINES[name] for name in names), *LATE):
            importlib.import_module(module)
    finally:
        gc.freeze()
        gc.enable()
