"""Random streams that are a pure function of what they are for."""

from __future__ import annotations

from zlib import crc32

import numpy as np


def stream(purpose: str, *numbers: int) -> np.random.Generator:
    """A generator determined by `purpose` and `numbers` (each >= 0: seed, rank, step, ...); one purpose, one arity."""
    return np.random.default_rng([crc32(purpose.encode()), *numbers])
