"""One run, from its configuration to its summary, whichever engine computes it: no Hydra, no command line."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    """Makes `dsgd.run([...])` a call: as soon as anything of this package is imported, Python binds that name to it."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Call `dsgd.python.run`."""
        return import_module("dsgd.python").run(*arguments, **options)


sys.modules[__name__].__class__ = _CallablePackage
