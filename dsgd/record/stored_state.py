"""Load the output of `torch.save` from any source: loading runs no code, and takes little more memory than the
content."""

from __future__ import annotations

import io
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

STATM = Path("/proc/self/statm")
COPIES, MARGIN_BYTES = 3, 2**26  # memory that loading may take: copies of the content, and a margin


def load_stored(content: bytes) -> Any:
    """Return the plain values and tensors stored in `content`. Raises torch's errors, or ValueError.

    torch unpacks deflated data, and calls `bytearray` with any number, so its memory is limited by the size of the
    content."""
    with _limited(COPIES * len(content) + MARGIN_BYTES):
        state = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    _check(state)
    return state


@contextmanager
def _limited(nbytes: int) -> Iterator[None]:
    """Let this process allocate at most `nbytes` more memory inside of the block. Only on Linux."""
    if not STATM.exists():
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = int(STATM.read_text(encoding="ascii").split()[0]) * resource.getpagesize() + nbytes
    if soft == resource.RLIM_INFINITY or limit < soft:
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _check(state: Any) -> None:
    """Raise ValueError for a tensor that stands for more numbers than are stored: a copy would take their memory."""
    waiting, seen = [state], set[int]()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor) and value.nbytes > value.untyped_storage().nbytes():
            raise ValueError("it has a tensor larger than its storage")
        if isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, (list, tuple)):
            waiting.extend(value)
