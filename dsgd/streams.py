"""Seed random streams by their purpose, so that none depends on what others have drawn."""

from __future__ import annotations

from zlib import crc32

import numpy as np


def stream(purpose: str, *numbers: int) -> np.random.Generator:
    """Make a generator from `purpose` and `numbers` (each >= 0: seed, rank, step, ...); one purpose, one arity."""
    return np.random.default_rng([crc32(purpose.encode()), *numbers])
