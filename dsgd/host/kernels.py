"""Load the kernels in C that were compiled when the package was installed."""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path


@cache
def kernel_library() -> ctypes.CDLL | None:
    """Return the compiled kernels, or None."""
    for suffix in EXTENSION_SUFFIXES:
        path = Path(__file__).parents[1] / "gradients" / f"_kernels{suffix}"
        if path.is_file():
            library = ctypes.CDLL(str(path))
            library.extension.restype = ctypes.c_char_p
            return library
    return None
