"""Read pickles of others without running what they name."""

from __future__ import annotations

import pickle
import pickletools
from collections.abc import Mapping
from io import BytesIO
from typing import Any


def unpickled(content: bytes, allowed: Mapping[tuple[str, str], Any], encoding: str = "ASCII") -> Any:
    """Return the value of a pickle of built-in containers and plain values.

    allowed: stand-ins for the globals that it may name, by module and name. encoding: encoding of Python 2's strings.
    Raises UnpicklingError for other globals, and for a pickle that allocates more memory than its content: truncated
    bytes, or a long list of memos. Damaged pickles may raise anything."""
    for opcode, value, _ in pickletools.genops(content):
        if opcode.name in ("PUT", "LONG_BINPUT") and isinstance(value, int) and value > len(content):
            raise pickle.UnpicklingError(f"it asks for {opcode.name}, which is not allowed")
    reader = _ForeignUnpickler(BytesIO(content), encoding=encoding)
    reader.allowed = allowed
    return reader.load()


class _ForeignUnpickler(pickle.Unpickler):
    allowed: Mapping[tuple[str, str], Any]

    def find_class(self, module: str, name: str, /) -> Any:
        try:
            return self.allowed[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not allowed") from None
