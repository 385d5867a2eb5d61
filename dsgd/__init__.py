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


def __getattr__(name: str) -> Any:
    """Import a name on first use."""
    from importlib import import_module

    if name == "__version__":
        from importlib.metadata import version

        return version("dsgd")
    if name not in __all__:
        raise AttributeError(f"module 'dsgd' has no attribute {name!r}")
    return getattr(import_module("dsgd.python"), name)
