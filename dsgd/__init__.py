"""Compare algorithms for distributed SGD on your model, data and cluster.

From Python: `dsgd.run`, `dsgd.compare`, `dsgd.load_runs`, `dsgd.load_marks`,
`dsgd.__version__` (docs/reference/python.md).
`import dsgd` alone imports none of them."""

from __future__ import annotations

TYPE_CHECKING = False  # typing would take longer than all that a command does before it can be interrupted
if TYPE_CHECKING:
    from typing import Any

    from dsgd.python import compare, load_marks, load_runs, run

    __version__: str

__all__ = ["__version__", "compare", "load_marks", "load_runs", "run"]

# where `__getattr__` finds each name
_PLACES = {"run": "dsgd.run"} | dict.fromkeys(("compare", "load_runs", "load_marks"), "dsgd.python")


def __getattr__(name: str) -> Any:
    """Import a name on first use. `dsgd.run` is the package of that name, which can be called."""
    from importlib import import_module

    if name == "__version__":
        from importlib.metadata import version

        return version("dsgd")
    if name not in _PLACES:
        raise AttributeError(f"module 'dsgd' has no attribute {name!r}")
    module = import_module(_PLACES[name])
    return module if _PLACES[name] == f"dsgd.{name}" else getattr(module, name)
