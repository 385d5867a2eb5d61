"""Import engines before processes are forked for runs: each would take more than a second to do it for itself."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterable

MODULES = {
    "sim": "dsgd.engines.sim.simulated",
    "dist": "dsgd.engines.dist.distributed",
    "torch": "dsgd.engines.torch.over_groups",
}
LATE = ("numpy.fft", "numpy.random", "dsgd.data.classification", "dsgd.models.networks")  # as runs come to need them


def import_engines(names: Iterable[str]) -> None:
    """Import engines, torch among what they need.

    Hardly any of the objects that this makes are ever garbage. Looking for it would take a fifth of the time."""
    gc.disable()
    try:
        for module in (*(MODULES[name] for name in names), *LATE):
            importlib.import_module(module)
    finally:
        gc.freeze()
        gc.enable()
